"""The hook behind `--requeue` with Slurm's answers played: whether another attempt is asked for, and in which line."""

import signal
import threading

import pytest

from elastic_core.api import (
    AgentStarted,
    AgentStopped,
    Answer,
    Draining,
    HookSettings,
    RunningWorker,
    WorkerBeats,
    WorkerEnded,
    WorkerExit,
    WorkersStarted,
    WorkersStopping,
)
from elastic_env_slurm import requeue as module
from elastic_plugin_kit import FakeRun, sample_round
from support import wait_for

JOB = {"JobId": "4711", "JobState": "COMPLETING", "Reason": "TimeLimit", "Requeue": "1", "Restarts": "0"}
JOB |= {"BatchFlag": "1", "Partition": "main", "PreemptTime": "None", "TimeLimit": "01:00:00"}
ASKED = "job 4711 is out of time: Slurm is asked to begin it again"
STUCK = "job 4711 is out of time, and is not begun again: no worker made a step or saved in this attempt, as far as its"


class Node:
    """The hook on the first node of a job, with one worker, and Slurm as this test plays it."""

    def __init__(self, monkeypatch, kill_wait_s=30, **options):
        self.asked = []
        answers = {"job": JOB, "partition": {}, "config": {"KillWait": str(kill_wait_s)}}
        monkeypatch.setattr(module.scheduler, "show", lambda what, *_: answers[what])
        monkeypatch.setattr(module.scheduler, "requeue", self.asked.append)
        monkeypatch.setattr(module.atexit, "register", lambda call: None)
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        monkeypatch.setenv("SLURM_NODEID", "0")
        given = {"requeue": "auto", "requeue_limit": None} | options
        self.hook = module.Requeue(HookSettings(name="requeue", options=given, shutdown_timeout_s=30.0))
        worker = RunningWorker(local_rank=0, global_rank=0, pid=7, stdout="", stderr="", error_file="")
        self.run = self.hook.run = FakeRun((worker,))
        self.hook.on_agent_started(AgentStarted(run_id="4711.0", node_id="n", run_dir="", pid=1))
        self.hook.on_workers_started(WorkersStarted(round=sample_round(), pids=(7,)))

    def beats(self, step):
        self.run.said[0] = WorkerBeats(owner=7, step=step)
        self.run.pass_time(3.0)

    def offers(self, text):
        self.run.offered["planned-stops"] = lambda parameters: Answer(content=text)

    def drains(self):
        self.hook.on_drain(Draining(signum=signal.SIGTERM, deadline_s=30.0))

    def ends(self, code=143):
        self.hook.on_agent_stopped(AgentStopped(exit_code=code, reason=""))
        self.decided()

    def decided(self):
        self.hook._asking.join(10)
        assert not self.hook._asking.is_alive()

    @property
    def lines(self):
        return [line for line in self.run.notices if "4711" in line]


@pytest.fixture
def node(monkeypatch):
    return lambda **given: Node(monkeypatch, **given)


def test_an_attempt_whose_workers_beat_steps_is_followed_by_another_at_once(node):
    it = node()
    it.beats(40)
    it.beats(41)
    it.drains()
    it.decided()
    assert (it.asked, it.lines) == (["4711"], [ASKED])


@pytest.mark.parametrize("steps", [1, 500])
def test_so_is_one_whose_workers_ask_should_stop_with_steps(node, steps):
    it = node()
    it.offers(f'{{"asks": true, "steps": {steps}, "saved": false, "within_s": 30}}')
    it.drains()
    it.decided()
    assert (it.asked, it.lines) == (["4711"], [ASKED])


def test_one_that_saves_because_of_the_stop_is_followed_by_another_then(node):
    it = node()
    it.offers('{"asks": true, "steps": 0, "saved": false, "within_s": 30}')
    it.drains()
    it.offers('{"asks": true, "steps": 0, "saved": true, "within_s": 30}')
    assert it.asked == []
    it.hook.on_workers_stopping(WorkersStopping(round_index=0, reason="SIGTERM", grace_s=30.0))
    it.decided()
    assert (it.asked, it.lines) == (["4711"], [ASKED])


@pytest.mark.parametrize(("code", "asked"), [(0, True), (143, True), (-15, False)])
def test_a_script_that_catches_sigterm_has_saved(node, code, asked):
    it = node()
    it.drains()
    ended = WorkerExit(local_rank=0, global_rank=0, pid=7, code=code, at_s=1.0, at_ns=1, runtime_s=9.0)
    it.hook.on_worker_exited(WorkerEnded(round_index=0, exit=ended))
    it.ends()
    assert it.asked == (["4711"] if asked else [])


def test_one_in_which_nobody_made_a_step_is_the_last(node, capsys):
    it = node()
    it.beats(40)
    it.beats(40)
    it.drains()
    it.ends()
    assert it.asked == []
    (line,) = capsys.readouterr().err.splitlines()  # the run is over by then
    assert line.startswith(f"elastic: {STUCK}")
    assert "Try: should_stop(step=n) or heartbeat(step=n) in the script, or --requeue-limit N for" in line


def test_the_agent_decides_before_slurm_kills_it(node):
    it = node(kill_wait_s=4)
    it.drains()
    it.decided()  # though the workers still run
    assert it.asked == []
    assert it.lines[0].startswith(STUCK)


@pytest.mark.parametrize(("shows", "asked"), [(False, True), (True, False)])
def test_with_a_limit_scripts_that_show_no_steps_are_bounded_by_it_alone(node, shows, asked):
    it = node(requeue_limit=3)
    if shows:
        it.beats(40)
    it.drains()
    it.ends()
    assert it.asked == (["4711"] if asked else [])


def test_times_are_compared_again_when_workers_begin_to_ask_and_shown_once(node, monkeypatch):
    it = node()
    assert it.run.notices == []
    it.offers('{"asks": true, "steps": 1, "saved": false, "within_s": 30}')
    it.run.pass_time(3.0)
    wait_for(lambda: it.run.notices)
    assert "workers may take 60 s to save and stop (--save-timeout 30 s, --shutdown-timeout 30 s)" in it.run.notices[0]
    it.run.pass_time(60.0)
    wait_for(lambda: not any(thread.name == "slurm" for thread in threading.enumerate()))
    assert len(it.run.notices) == 1


@pytest.mark.parametrize(
    ("job", "options", "line"),
    [
        ("", {"requeue": "auto"}, "--requeue auto has no effect: this is no job of Slurm's"),
        ("", {"requeue": None, "requeue_limit": 3}, "--requeue-limit 3 has no effect: this is no job of Slurm's"),
        ("1", {"requeue": "preempted", "requeue_limit": 3}, "--requeue-limit 3 has no effect without --requeue auto"),
    ],
)
def test_what_has_no_effect_is_a_line(monkeypatch, job, options, line):
    monkeypatch.setenv("SLURM_JOB_ID", job)
    settings = HookSettings(name="requeue", options={"requeue_limit": None} | options)
    assert module.Requeue(settings).notices == (line,)
