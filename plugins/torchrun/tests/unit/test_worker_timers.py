"""Whose timers count in an agent, and when: with a pipe, processes and a clock that tests make up."""

import json
import shutil
import signal
import threading

import pytest

from elastic_core.api import FailureClass, HookSettings, RunningWorker
from elastic_core.api.feed import Answer, RunEvent
from elastic_plugin_kit import AgentHookConformance, FakeRun
from elastic_plugin_kit.manual_clock import ManualClock
from elastic_plugin_kit.samples import sample_failure, sample_round
from elastic_torchrun.proc import ProcessStat
from elastic_torchrun.timer import late_workers, worker_timers
from elastic_torchrun.timer.file_request import FileTimerRequest
from elastic_torchrun.timer.hook import FileTimers
from elastic_torchrun.timer.late_workers import LateWorkers, record
from elastic_torchrun.timer.worker_timers import Overdue, WorkerTimers

PARENTS = {1: 0, 10: 1, 11: 1, 20: 11, 30: 1, 40: 30}
"""Workers 10 and 11, a child of the second, a stranger and its child."""


class Pipe:
    fd = 5

    def __init__(self):
        self.chunks = []

    def read(self):
        return self.chunks.pop(0) if self.chunks else b""

    def close(self):
        self.fd = -1


class Node:
    """The timers of workers 10 and 11, and what becomes of them; the thread's turns are made by hand."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.pipe = Pipe()
        self.overdue, self.notices = [], []
        self.timers = WorkerTimers(
            self.pipe, on_overdue=self.overdue.append, notice=self.notices.append, clock=self.clock, **options
        )

    def begin(self):
        self.timers.expect()
        self.timers.begin({0: 10, 1: 11})
        return self

    def advance(self, by_s, *, stopped=False):
        """Let time pass; `stopped`: without a turn until its end."""
        end_s = self.clock.monotonic_s() + by_s
        while not stopped and (pause_ms := self.timers._pause_ms()) is not None:
            if self.clock.monotonic_s() + pause_ms / 1000 > end_s:
                break
            self.clock.advance(pause_ms / 1000)
            self.timers.turn()
        self.clock.advance(max(0.0, end_s - self.clock.monotonic_s()))
        if stopped:
            self.timers.turn()

    def wall_s(self):
        return self.clock.wall_ns() / 1e9

    def write(self, data, *, unread=False):
        self.pipe.chunks.append(data)
        if not unread:
            self.timers.turn()

    def ask(self, pid, after_s, scope="s", signum=9, *, unread=False):
        at_s = -1 if after_s is None else self.wall_s() + after_s
        self.write(FileTimerRequest(pid, scope, at_s, signum).to_json().encode() + b"\n", unread=unread)

    def late(self):
        return [(each.local_rank, each.request.scope_id) for found in self.overdue for each in found]


@pytest.fixture(autouse=True)
def parents(monkeypatch):
    processes = dict(PARENTS)

    def read_stat(pid):
        if pid not in processes:
            return None
        return ProcessStat(state="S", parent=processes[pid], thread_count=1)

    monkeypatch.setattr(worker_timers, "read_stat", read_stat)
    return processes


def test_a_timer_that_runs_down_is_told_once_with_its_worker():
    node = Node().begin()
    node.ask(11, 5, "a")
    node.ask(10, 9, "b")
    node.advance(4.9)
    assert node.late() == []
    node.advance(10)
    assert node.late() == [(1, "a"), (0, "b")]
    assert node.overdue[0][0].late_s == pytest.approx(0, abs=1e-6)


def test_a_timer_that_is_given_back_is_not():
    node = Node().begin()
    for _ in range(3):
        node.ask(10, 5)
        node.advance(3)
        node.ask(10, None)
        node.advance(3)
    assert (node.late(), node.notices) == ([], [])


def test_a_timer_that_was_given_back_in_time_is_not_late_though_the_agent_is():
    node = Node().begin()
    node.ask(10, 5)
    node.ask(10, None, unread=True)
    node.advance(20)
    assert node.late() == []


def test_workers_that_were_stopped_with_the_agent_have_time_to_go_on():
    node = Node().begin()
    node.ask(10, 5)
    node.advance(60, stopped=True)
    node.advance(4)
    assert node.late() == []
    node.advance(60)
    assert node.late() == [(0, "s")]


def test_what_a_worker_has_started_may_set_timers_too():
    node = Node().begin()
    node.ask(20, 1)
    node.advance(2)
    assert node.late() == [(1, "s")]


@pytest.mark.parametrize("pid", [1, 30, 40])
def test_a_stranger_may_not_and_is_told_once(pid):
    node = Node().begin()
    for _ in range(3):
        node.ask(pid, 1)
    node.advance(2)
    assert node.late() == []
    assert len(node.notices) == 1
    assert f"process {pid}, which is no worker" in node.notices[0]


def test_what_has_ended_has_no_timers_any_more(parents):
    node = Node().begin()
    for pid in (10, 11, 20):
        node.ask(pid, 1)
    node.ask(99, 1)  # it is gone by the time its line is read
    del parents[20]  # before its worker
    node.timers.ended(0)
    node.advance(2)
    assert (node.late(), node.notices) == ([(1, "s")], [])


def test_a_pid_that_another_worker_has_now_is_not_the_one_that_asked(parents):
    node = Node().begin()
    node.ask(20, 1)
    parents[20] = 10
    node.advance(2)
    assert node.late() == []


def test_nobody_is_heeded_before_workers_start_nor_when_they_are_stopped():
    node = Node()
    node.ask(10, 1)
    node.ask(10, 1, unread=True)
    node.begin()
    node.advance(2)
    node.ask(10, 1)
    node.timers.end()
    node.ask(10, 1)
    node.advance(2)
    assert (node.late(), node.notices) == ([], [])


def test_lines_that_are_none_are_told_once_and_the_others_count():
    node = Node().begin()
    for _ in range(3):
        node.write(b"nonsense\n" + b"x" * 5000 + b"\n")
    node.ask(10, 1)
    node.advance(2)
    assert node.late() == [(0, "s")]
    assert len(node.notices) == 2
    assert "'nonsense' in the pipe of timers is no request" in node.notices[0]
    assert "more than 4096 bytes" in node.notices[1]


def test_timers_are_read_and_forgotten_where_no_limit_counts():
    node = Node(limits=False).begin()
    node.ask(10, 1)
    node.advance(2)
    assert node.late() == []
    assert node.pipe.chunks == []


def test_a_loop_over_short_blocks_leaves_no_heap_of_timers():
    node = Node().begin()
    for _ in range(1000):
        node.ask(10, 60)
        node.ask(10, None)
    assert node.timers._pause_ms() is None


def test_timers_that_come_before_the_agent_is_told_of_the_start_count():
    node = Node()
    node.ask(10, 1)  # of the round before
    node.timers.expect()
    node.ask(10, 3, "early")
    node.timers.begin({0: 10, 1: 11})
    node.advance(5)
    assert node.late() == [(0, "early")]


def test_the_pipe_is_closed_once():
    node = Node()
    node.timers.start()
    node.timers.close()
    node.timers.close()
    assert node.pipe.fd == -1


# --- what follows


class Following:
    """What becomes of overdue timers of ranks 0 and 1, while reports are left alone for as long as `busy`."""

    def __init__(self, monkeypatch, tmp_path):
        self.busy, self.seen = False, 0
        self.run = FakeRun(tuple(RunningWorker(local_rank=rank, global_rank=rank, pid=10 + rank) for rank in (0, 1)))
        monkeypatch.setattr(late_workers, "state_and_wait", lambda pid: ("S", ""))
        self.late = LateWorkers(self.run, folder=tmp_path, clock=ManualClock())
        self.late.begin(sample_round())

    @property
    def told(self):
        return [(name, fields["scope_id"]) for name, fields in self.run.events]

    def take(self, *overdue):
        self.late.take(
            tuple(
                Overdue(local_rank=rank, request=FileTimerRequest(10 + rank, scope, 0, signum), late_s=0.5)
                for rank, scope, signum in overdue
            )
        )
        for thread in [each for each in threading.enumerate() if each.name == "timer-stacks"]:
            thread.join(10)

    def has_stack(self, local_rank, **stack):
        """Play elastic-watch, which has taken one worker's."""
        content = json.dumps({"workers": {local_rank: stack}})
        self.run.offered["stacks"] = lambda parameters: Answer(content=content)

    def advance(self, seconds):
        """Let time pass, and the agent take what is reported, unless it is busy."""
        for _ in range(int(seconds / 0.1)):
            self.run.pass_time(0.1)
            if self.busy:
                self.run.reports.clear()
            for report in self.run.reports[self.seen :]:
                self.seen += 1
                self.late.taken(sample_failure(summary=report.summary))


@pytest.fixture
def following(monkeypatch, tmp_path):
    return Following(monkeypatch, tmp_path)


def test_a_worker_that_is_late_is_a_hang_and_gets_the_signal_that_it_named(following):
    following.take((1, "load", signal.SIGTERM))
    following.advance(5)
    assert following.told == [("timer expired", "load"), ("kill worker process", "load")]
    (report,) = following.run.reports
    assert report.failure_class is FailureClass.HANG
    assert [(fault.local_rank, fault.signal) for fault in report.workers] == [(1, signal.SIGTERM)]
    assert report.fields["hang"]["section"] == "load"
    assert "is over its time for 'load' by 0.5" in report.summary


def test_all_that_are_late_by_then_are_in_one_report(following):
    following.take((1, "load", 9))
    following.take((0, "load", 9))
    following.take((0, "more", 9))
    following.advance(5)
    assert [[fault.local_rank for fault in report.workers] for report in following.run.reports] == [[1, 0]]
    assert "ranks 0, 1 are over their time for 'load'" in following.run.reports[0].summary


def test_of_one_worker_the_first_timer_with_a_signal_counts(following):
    following.take((1, "told", 0), (1, "first", 9), (1, "second", 15))
    following.advance(5)
    assert following.told == [("timer expired", "told"), ("timer expired", "first"), ("kill worker process", "first")]
    assert following.run.notices == ["rank 1 is over its time for 'told', and goes on: it has asked for no signal"]
    assert [fault.signal for fault in following.run.reports[0].workers] == [9]


def test_what_is_only_reported_ends_nothing(following):
    following.take((1, "told", 0), (0, "told", -1))
    following.advance(5)
    assert following.run.reports == []
    assert len(following.run.notices) == 2


def test_while_something_else_is_decided_it_waits(following):
    following.busy = True
    following.take((1, "load", 9))
    following.advance(5)
    assert following.told == [("timer expired", "load")]
    following.busy = False
    following.advance(5)
    assert len(following.run.reports) == 1


def test_who_has_ended_meanwhile_is_not_late(following):
    following.take((1, "load", 9))
    following.late.ended(1)
    following.advance(5)
    following.take((1, "load", 9))
    following.late.end()
    following.advance(5)
    assert following.run.reports == []


def test_scopes_that_are_long_are_cut(following):
    following.take((1, "x" * 3000 + "train.py#7", 9))
    following.advance(5)
    assert len(following.run.reports[0].summary) < 250
    assert "train.py#7'" in following.run.reports[0].summary


def test_stacks_are_kept_in_a_file_for_each_rank(following, tmp_path):
    frames = (("train.py", 7, "load_batch", ""),)
    following.has_stack(1, text="in load_batch", source="faulthandler", place="train.py:7", frames=frames)
    following.take((1, "load", 9))
    following.advance(5)
    (report,) = following.run.reports
    assert report.summary.endswith("in train.py:7")
    assert report.workers[0].error.frames == frames
    assert "in load_batch" in (tmp_path / "round_0_timer_1" / "rank_1.txt").read_text()
    assert report.fields["hang"]["stacks"] == str(tmp_path / "round_0_timer_1")
    assert [rank["stacks"] for rank in report.fields["hang"]["ranks"]] == ["rank_1.txt", "rank_0.txt"]


class TestFileTimers(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        hooks = []

        def make(run_dir):
            settings = HookSettings(name="file-timer", run_dir=str(run_dir), options={"file_timer": "1"})
            hooks.append(FileTimers(settings))
            return hooks[-1]

        yield make
        for hook in hooks:
            hook.close()


def test_a_dry_run_makes_no_pipe(tmp_path):
    settings = HookSettings(name="file-timer", run_dir=str(tmp_path), options={"file_timer": "1"}, dry_run=True)
    FileTimers(settings).close()
    assert list(tmp_path.iterdir()) == []


def test_events_are_torchs():
    from elastic_ops.exporters.agent_events import AgentEvents, Identity

    identity = Identity(run_id="r", role="trainer", backend="local", entry_point="t.py", hostname="h", pid=1)
    run = FakeRun()
    request = FileTimerRequest(7, "s", 1.5, 9)
    record(run, "timer expired", request)
    ((name, fields),) = run.events
    told = RunEvent(name=name, at_s=1.0, at_ns=5_000_000, values=fields, source="file-timer")
    (event,) = AgentEvents(identity).observe(told)
    assert (event.name, event.source, event.timestamp) == ("timer expired", "AGENT", 5)
    assert (event.metadata["state"], event.metadata["run_id"]) == ("RUNNING", "r")
    metadata = json.loads(event.metadata["metadata"])
    del metadata["group_world_size"], metadata["entry_point"]
    assert metadata == {
        "watchdog_event": "timer expired",
        "worker_pid": "7",
        "scope_id": "s",
        "expiration_time": "1.5",
        "signal": "9",
    }


def test_processes_that_come_and_go_with_their_timers_are_not_remembered(parents, monkeypatch):
    monkeypatch.setattr(worker_timers, "MOST", 4)
    node = Node().begin()
    for pid in range(100, 140):
        parents[pid] = 11
        node.ask(pid, 5)
        node.ask(pid, None)
    node.ask(20, 5, "kept")
    for pid in range(140, 160):
        parents[pid] = 11
        node.ask(pid, 5)
        node.ask(pid, None)
    assert len(node.timers._owners) <= 8
    node.advance(10)
    assert node.late() == [(1, "kept")]


@pytest.mark.parametrize("gone", [True, False])
def test_an_old_folder_that_can_not_be_removed_costs_no_stacks(following, tmp_path, monkeypatch, gone):
    monkeypatch.setattr(late_workers, "KEPT_FOLDERS", 2)
    for times in (1, 2, 3):
        following.has_stack(1, text="in load_batch", source="faulthandler", place="", frames=())
        following.take((1, "load", 9))
        following.advance(5)
        folder = tmp_path / f"round_0_timer_{times}"
        assert following.run.reports[-1].fields["hang"]["stacks"] == str(folder)
        if gone:
            shutil.rmtree(folder)
        else:
            (folder / "more").mkdir()
    assert following.run.notices == []
