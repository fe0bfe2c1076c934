"""The hook behind `--requeue` with Slurm's answers played: whether another attempt is asked for, and in which line."""

import json
import signal
import threading

import pytest

from elastic_core.api import (
    AgentStarted,
    AgentStopped,
    Draining,
    HookSettings,
    MembershipChanged,
    RoundJoined,
    RunningWorker,
    WorkerEnded,
    WorkerExit,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.feed import Answer
from elastic_core.api.rendezvous import RoundEnded
from elastic_env_slurm import requeue as module
from elastic_plugin_kit import FakeRun, sample_round
from support import wait_for

JOB = {"JobId": "4711", "JobState": "COMPLETING", "Reason": "TimeLimit", "Requeue": "1", "Restarts": "0"}
JOB |= {"BatchFlag": "1", "Partition": "main", "PreemptTime": "None", "TimeLimit": "01:00:00"}
ASKED = "job 4711 is out of time: Slurm is asked to begin it again"
STUCK = "job 4711 is out of time, and is not begun again: no worker made a step or saved in this attempt, as far as its"


class Node:
    """The hook on the first node of a job, with one worker, and Slurm as this test plays it."""

    def __init__(self, monkeypatch, kill_wait_s=30, job=JOB, number=0, run_id="4711.0", backend="c10d", **options):
        self.asked = []
        answers = {"job": job, "partition": {}, "config": {"KillWait": str(kill_wait_s)}}
        monkeypatch.setattr(module.scheduler, "show", lambda what, *_: answers[what])
        monkeypatch.setattr(module.scheduler, "requeue", self.asked.append)
        monkeypatch.setattr(module.atexit, "register", lambda call: None)
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        monkeypatch.setenv("SLURM_NODEID", str(number))
        monkeypatch.setenv("SLURMD_NODENAME", f"n{number}")
        monkeypatch.setenv("SLURM_STEP_ID", "0")
        monkeypatch.setenv("SLURM_STEP_NODELIST", "n[0-2]")
        monkeypatch.setattr(module, "_OTHERS_S", 0.0)
        given = {"requeue": "auto", "requeue_limit": None} | options
        named = {"name": "requeue", "run_id": run_id, "backend": backend}
        settings = HookSettings(**named, options=given, shutdown_timeout_s=30.0)
        self.hook = module.Requeue(settings)
        worker = RunningWorker(local_rank=0, global_rank=0, pid=7, stdout="", stderr="", error_file="")
        self.run = self.hook.run = FakeRun((worker,))
        self.hook.on_agent_started(AgentStarted(run_id="4711.0", node_id="n", run_dir="", pid=1))
        self.hook.on_workers_started(WorkersStarted(round=sample_round(), pids=(7,)))

    def beats(self, step):
        content = json.dumps({"workers": {0: {"pid": 7, "age_s": 0.1, "step": step, "sections": []}}})
        self.run.offered["heartbeats"] = lambda parameters: Answer(content=content)
        self.run.pass_time(3.0)

    def offers(self, text):
        self.run.offered["planned-stops"] = lambda parameters: Answer(content=text)

    def drains(self):
        self.hook.on_drain(Draining(signum=signal.SIGTERM, deadline_s=30.0))

    def loses(self, *names, planned=False):
        change = RoundEnded(reason="", lost=names, planned=planned)
        self.hook.on_membership_changed(MembershipChanged(round_index=0, change=change))

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


@pytest.mark.parametrize(("kill_wait_s", "shown"), [(30, 1), (60, 0)])
def test_a_stop_names_the_limit_of_slurm_that_is_shorter_than_its_own(node, kill_wait_s, shown):
    it = node(kill_wait_s=kill_wait_s)
    it.offers('{"asks": true, "steps": 1, "saved": false, "within_s": 30}')
    it.drains()
    it.decided()
    lines = [line for line in it.run.notices if "before the 60 s are over" in line]
    assert (
        lines
        == [f"Slurm kills what is left {kill_wait_s} s after its signal (KillWait): before the 60 s are over"] * shown
    )


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


@pytest.mark.parametrize(
    ("nodes", "codes", "waited_s", "over"),
    [("1", 0, 0.0, True), ("3", 2, 20.0, False), ("3", 3, 0.0, True), ("3", 0, 35.0, True)],
)
def test_the_nodes_of_a_preempted_job_are_over_by_their_codes_or_by_time(
    node, monkeypatch, tmp_path, nodes, codes, waited_s, over
):
    it = node()
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", nodes)
    monkeypatch.setenv("ELASTIC_SLURM_VERDICTS", str(tmp_path))
    for number in range(codes):
        (tmp_path / str(number)).touch()
    assert it.hook._all_over(it.hook.clock.monotonic_s() - waited_s) is over


# --- agents that are lost

RUNS = JOB | {"JobState": "RUNNING", "Reason": "None"}
ENDS = "lost its agent, and nothing in a step of Slurm starts it again: this run ends"


def test_a_run_whose_agent_is_lost_ends_and_another_attempt_is_asked_for(node):
    it = node(job=RUNS)
    it.beats(40)
    it.beats(41)
    it.loses("n2")
    assert it.run.drains == []
    it.run.pass_time(10.0)
    assert [reason for reason, _ in it.run.drains] == [f"n2 {ENDS}"]
    it.drains()
    it.ends()
    assert it.hook._fate.end is module.End.ASK_LAST
    assert it.lines == ["job 4711 has lost the agent of n2: Slurm is asked to begin it again"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"requeue": "preempted"}, "job 4711 has lost the agent of n2, and is not begun again. Try: --requeue auto"),
        ({}, "job 4711 has lost the agent of n2, and is not begun again: no worker made a step or saved in this"),
        ({"requeue_limit": 0}, "job 4711 has lost the agent of n2, and is not begun again: it may not. Try: a greater"),
    ],
)
def test_it_is_bounded_as_after_a_time_limit(node, capsys, options, line):
    it = node(job=RUNS, **options)
    it.loses("n2")
    it.run.pass_time(10.0)
    it.drains()
    it.ends()
    said = [*it.lines, *capsys.readouterr().err.removeprefix("elastic: ").splitlines()]
    assert len(said) == 1
    assert said[0].startswith(line)
    assert it.hook._fate.end is module.End.AS_IT_IS


def test_an_agent_that_comes_back_in_time_is_not_lost(node):
    it = node(job=RUNS)
    it.loses("n2")
    it.run.pass_time(9.0)
    it.hook.on_round_joined(RoundJoined(round=sample_round()))
    it.run.pass_time(60.0)
    assert it.run.drains == []


def test_a_run_that_stops_meanwhile_is_not_stopped_once_more(node):
    it = node(job=RUNS)
    it.loses("n2")
    it.drains()
    it.run.pass_time(60.0)
    assert it.run.drains == []


@pytest.mark.parametrize(
    ("given", "planned"),
    [({}, True), ({"run_id": "bert-7"}, False)],  # it has left; nodes of another job may join
)
def test_a_run_that_may_go_on_is_waited_for(node, given, planned):
    it = node(job=RUNS, **given)
    it.loses("n2", planned=planned)
    it.run.pass_time(60.0)
    assert it.run.drains == []


@pytest.mark.parametrize(("number", "speaks"), [(1, True), (2, False)])
def test_for_a_lost_first_node_the_next_one_reports(node, number, speaks):
    it = node(job=RUNS, number=number)
    it.loses("n0")
    it.run.pass_time(10.0)
    assert [reason for reason, _ in it.run.drains] == [f"n0 {ENDS}" if speaks else ""]


@pytest.mark.parametrize(
    ("given", "asks"),
    [({}, True), ({"requeue": "preempted"}, False), ({"backend": "redis"}, False), ({"number": 0}, False)],
)
def test_without_the_node_that_kept_the_store_another_attempt_is_asked_for(node, capsys, given, asks):
    it = node(**{"job": RUNS, "number": 1} | given)
    it.beats(40)
    it.beats(41)
    it.hook.on_agent_stopped(AgentStopped(exit_code=4, reason="its store is lost"))
    if asks:
        it.decided()
    line = "elastic: job 4711 has lost the agent of n0: Slurm is asked to begin it again\n"
    assert capsys.readouterr().err == line * asks
    assert (it.hook._fate.end is module.End.ASK_LAST) is asks
