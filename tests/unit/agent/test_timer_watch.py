"""Whose timers count in an agent, and when: with a pipe, processes and a clock that tests make up."""

import signal

import pytest

from elastic_core.agent.feed import WatchdogAct
from elastic_core.agent.watch import timer_expiry, timer_watch
from elastic_core.agent.watch.timer_expiry import TimerExpiry
from elastic_core.agent.watch.timer_watch import Overdue, TimerWatch
from elastic_core.processes.procfs import ProcessStat
from elastic_core.timer.file_request import FileTimerRequest
from elastic_plugin_kit.manual_clock import ManualClock
from elastic_plugin_kit.samples import sample_round

PARENTS = {1: 0, 10: 1, 11: 1, 20: 11, 30: 1, 40: 30}
"""Workers 10 and 11, a child of the second, a stranger and its child."""


class Loop:
    """The reactor's timers, run by hand."""

    def __init__(self, clock):
        self.clock = clock
        self.pending = []
        self.readers = {}

    def now_s(self):
        return self.clock.monotonic_s()

    def add_reader(self, fd, callback):
        self.readers[fd] = callback

    def remove_reader(self, fd):
        del self.readers[fd]

    def call_later(self, delay_s, callback):
        timer = _Timer(self.now_s() + delay_s, callback)
        self.pending.append(timer)
        return timer

    def advance(self, by_s, *, stopped=False):
        """Let time pass; `stopped`: without a turn of the loop until its end."""
        end_s = self.now_s() + by_s
        if stopped:
            self.clock.advance(by_s)
        while due := [timer for timer in self.pending if timer.at_s <= end_s and not timer.cancelled]:
            timer = min(due, key=lambda each: each.at_s)
            self.pending.remove(timer)
            self.clock.advance(max(0.0, timer.at_s - self.now_s()))
            timer.callback()
        self.clock.advance(max(0.0, end_s - self.now_s()))


class _Timer:
    def __init__(self, at_s, callback):
        self.at_s, self.callback, self.cancelled = at_s, callback, False

    def cancel(self):
        self.cancelled = True


class Pipe:
    fd = 5

    def __init__(self):
        self.chunks = []

    def read(self):
        return self.chunks.pop(0) if self.chunks else b""

    def close(self):
        self.fd = -1


class Node:
    """A watch over workers 10 and 11, and what it tells."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.loop, self.pipe = Loop(self.clock), Pipe()
        self.overdue, self.notices = [], []
        self.watch = TimerWatch(
            self.loop,
            self.pipe,
            on_overdue=self.overdue.append,
            notice=self.notices.append,
            clock=self.clock,
            **options,
        )

    def begin(self):
        self.watch.begin((), {0: 10, 1: 11})
        return self

    def wall_s(self):
        return self.clock.wall_ns() / 1e9

    def write(self, data, *, unread=False):
        self.pipe.chunks.append(data)
        if not unread:
            self.loop.readers[self.pipe.fd]()

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
        fields = [b"S", str(processes[pid]).encode(), *([b"1"] * 20)]
        return ProcessStat(pid, fields)

    monkeypatch.setattr(timer_watch, "read_stat", read_stat)
    return processes


def test_a_timer_that_runs_down_is_told_once_with_its_worker():
    node = Node().begin()
    node.ask(11, 5, "a")
    node.ask(10, 9, "b")
    node.loop.advance(4.9)
    assert node.late() == []
    node.loop.advance(10)
    assert node.late() == [(1, "a"), (0, "b")]
    assert node.overdue[0][0].late_s == pytest.approx(0, abs=1e-6)


def test_a_timer_that_is_given_back_is_not():
    node = Node().begin()
    for _ in range(3):
        node.ask(10, 5)
        node.loop.advance(3)
        node.ask(10, None)
        node.loop.advance(3)
    assert (node.late(), node.notices) == ([], [])


def test_a_timer_that_was_given_back_in_time_is_not_late_though_the_agent_is():
    node = Node().begin()
    node.ask(10, 5)
    node.ask(10, None, unread=True)
    node.loop.advance(20)
    assert node.late() == []


def test_workers_that_were_stopped_with_the_agent_have_time_to_go_on():
    node = Node().begin()
    node.ask(10, 5)
    node.loop.advance(60, stopped=True)
    node.loop.advance(4)
    assert node.late() == []
    node.loop.advance(60)
    assert node.late() == [(0, "s")]


def test_what_a_worker_has_started_may_set_timers_too():
    node = Node().begin()
    node.ask(20, 1)
    node.loop.advance(2)
    assert node.late() == [(1, "s")]


@pytest.mark.parametrize("pid", [1, 30, 40])
def test_a_stranger_may_not_and_is_told_once(pid):
    node = Node().begin()
    for _ in range(3):
        node.ask(pid, 1)
    node.loop.advance(2)
    assert node.late() == []
    assert len(node.notices) == 1
    assert f"process {pid}, which is no worker" in node.notices[0]


def test_what_has_ended_has_no_timers_any_more(parents):
    node = Node().begin()
    for pid in (10, 11, 20):
        node.ask(pid, 1)
    node.ask(99, 1)  # it is gone by the time its line is read
    del parents[20]  # before its worker
    node.watch.ended(0)
    node.loop.advance(2)
    assert (node.late(), node.notices) == ([(1, "s")], [])


def test_a_pid_that_another_worker_has_now_is_not_the_one_that_asked(parents):
    node = Node().begin()
    node.ask(20, 1)
    parents[20] = 10
    node.loop.advance(2)
    assert node.late() == []


def test_nobody_is_heeded_before_workers_start_nor_when_they_are_stopped():
    node = Node()
    node.ask(10, 1)
    node.ask(10, 1, unread=True)
    node.begin()
    node.loop.advance(2)
    node.ask(10, 1)
    node.watch.end()
    node.ask(10, 1)
    node.loop.advance(2)
    assert (node.late(), node.notices) == ([], [])


def test_lines_that_are_none_are_told_once_and_the_others_count():
    node = Node().begin()
    for _ in range(3):
        node.write(b"nonsense\n" + b"x" * 5000 + b"\n")
    node.ask(10, 1)
    node.loop.advance(2)
    assert node.late() == [(0, "s")]
    assert len(node.notices) == 2
    assert "'nonsense' in the pipe of timers is no request" in node.notices[0]
    assert "more than 4096 bytes" in node.notices[1]


def test_timers_are_read_and_forgotten_where_no_limit_counts():
    node = Node(heeds=False).begin()
    node.ask(10, 1)
    node.loop.advance(2)
    assert node.late() == []
    assert node.pipe.chunks == []


def test_a_loop_over_short_blocks_leaves_no_heap_of_timers():
    node = Node().begin()
    for _ in range(1000):
        node.ask(10, 60)
        node.ask(10, None)
    assert len(node.loop.pending) == 1


def test_the_pipe_is_closed_once():
    node = Node()
    node.watch.close()
    node.watch.close()
    assert node.loop.readers == {}


# --- what follows


class Following:
    """What becomes of overdue timers of ranks 0 and 1, which are busy elsewhere for as long as `busy`."""

    def __init__(self, monkeypatch, tmp_path):
        self.busy, self.reports, self.told = False, [], []
        self.loop = Loop(ManualClock())
        self.sources = {0: (10, 10, None), 1: (11, 11, None)}
        monkeypatch.setattr(timer_expiry.vitals, "look_at", lambda pid: None)
        self.expiry = TimerExpiry(
            self.loop,
            folder=tmp_path,
            sources=lambda: self.sources,
            on_hang=self.hung,
            send=lambda rank, signum: self.told.append((rank, signum)),
            heard=lambda name, request: self.told.append((name, request.scope_id)),
            notice=self.told.append,
        )
        self.expiry.begin(sample_round())

    def hung(self, report, send):
        if not self.busy:
            self.reports.append(report())
            send()
        return not self.busy

    def take(self, *overdue):
        self.expiry.take(
            tuple(
                Overdue(local_rank=rank, request=FileTimerRequest(10 + rank, scope, 0, signum), late_s=0.5)
                for rank, scope, signum in overdue
            )
        )


@pytest.fixture
def following(monkeypatch, tmp_path):
    monkeypatch.setattr("elastic_core.agent.watch.stack_collector.shutil.which", lambda program: None)
    return Following(monkeypatch, tmp_path)


def test_a_worker_that_is_late_is_a_hang_and_gets_the_signal_that_it_named(following):
    following.take((1, "load", signal.SIGTERM))
    following.loop.advance(5)
    assert following.told == [("timer expired", "load"), (1, signal.SIGTERM), ("kill worker process", "load")]
    (report,) = following.reports
    assert report.blamed == (1,)
    assert report.stall.section == "load"
    assert "is over its time for 'load' by 0.5" in report.told


def test_all_that_are_late_by_then_are_in_one_report(following):
    following.take((1, "load", 9))
    following.take((0, "load", 9))
    following.take((0, "more", 9))
    following.loop.advance(5)
    assert [report.blamed for report in following.reports] == [(1, 0)]
    assert "ranks 0, 1 are over their time for 'load'" in following.reports[0].told


def test_of_one_worker_the_first_timer_with_a_signal_counts(following):
    following.take((1, "told", 0), (1, "first", 9), (1, "second", 15))
    following.loop.advance(5)
    assert following.told == [
        ("timer expired", "told"),
        "rank 1 is over its time for 'told', and goes on: it has asked for no signal",
        ("timer expired", "first"),
        (1, 9),
        ("kill worker process", "first"),
    ]


def test_what_is_only_reported_ends_nothing(following):
    following.take((1, "told", 0), (0, "told", -1))
    following.loop.advance(5)
    assert following.reports == []
    assert [told for told in following.told if isinstance(told, str)] != []


def test_while_something_else_is_decided_it_waits(following):
    following.busy = True
    following.take((1, "load", 9))
    following.loop.advance(5)
    assert following.told == [("timer expired", "load")]
    following.busy = False
    following.loop.advance(5)
    assert len(following.reports) == 1


def test_who_has_ended_meanwhile_is_not_late(following):
    following.take((1, "load", 9))
    following.expiry.ended(1)
    following.loop.advance(5)
    following.take((1, "load", 9))
    following.expiry.end()
    following.loop.advance(5)
    assert following.reports == []


def test_scopes_that_are_long_are_cut(following):
    following.take((1, "x" * 3000 + "train.py#7", 9))
    following.loop.advance(5)
    assert len(following.reports[0].told) < 250
    assert "train.py#7'" in following.reports[0].told


def test_events_are_torchs():
    import json

    from elastic_core.launcher.agent_events import AgentEvents, Identity
    from elastic_core.launcher.observations import Observed

    identity = Identity(run_id="r", role="trainer", backend="local", entry_point="t.py", hostname="h", pid=1)
    told = WatchdogAct(name="timer expired", worker_pid=7, scope_id="s", expiration_time=1.5, signal=9)
    (event,) = AgentEvents(identity).observe(Observed(at_s=1.0, at_ns=5_000_000, what=told))
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
    monkeypatch.setattr(timer_watch, "MOST", 4)
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
    assert len(node.watch._owners) <= 8
    node.loop.advance(10)
    assert node.late() == [(1, "kept")]
