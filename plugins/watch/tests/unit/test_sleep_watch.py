"""Workers in uninterruptible sleep, on a tree that looks like /proc."""

import pytest

from elastic_core.api import (
    FailureClass,
    FailureSeen,
    HookSettings,
    RunningWorker,
    WorkerFault,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.settings import Entrypoint
from elastic_plugin_kit import AgentHookConformance, sample_failure, sample_round
from elastic_plugin_kit.manual_clock import ManualClock
from elastic_watch.sleep import look, sleep_place, sleep_serial
from elastic_watch.sleep_hook import Sleeper, SleepWatch, report


class Tree:
    def __init__(self, root):
        self.root = root

    def put(self, pid, state, switches, wait="0"):
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        text = f"Name:\tpython\nState:\t{state} (whatever)\nvoluntary_ctxt_switches:\t{switches}\n"
        (folder / "status").write_text(text)
        (folder / "wchan").write_text(wait)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


class Timers:
    """The reactor's timers, run by hand."""

    def __init__(self, clock):
        self.clock = clock
        self.pending = []

    def call_later(self, delay_s, callback):
        timer = _Timer(self.clock.monotonic_s() + delay_s, callback)
        self.pending.append(timer)
        return timer

    def run_until(self, at_s):
        while due := [timer for timer in self.pending if timer.at_s <= at_s and not timer.cancelled]:
            timer = min(due, key=lambda each: each.at_s)
            self.pending.remove(timer)
            self.clock.advance(max(0.0, timer.at_s - self.clock.monotonic_s()))
            timer.callback()
        self.clock.advance(at_s - self.clock.monotonic_s())


class _Timer:
    def __init__(self, at_s, callback):
        self.at_s, self.callback, self.cancelled = at_s, callback, False

    def cancel(self):
        self.cancelled = True


class Run:
    """The handle: takes a report after as many refusals as the test says, and then has the hook told of the failure."""

    def __init__(self, timers, refusals):
        self.call_later = timers.call_later
        self.refusals = refusals
        self.told = []
        self.live = {0: 70, 1: 71}
        self.hook = None

    def workers(self):
        return tuple(RunningWorker(local_rank=rank, global_rank=rank + 4, pid=pid) for rank, pid in self.live.items())

    def report(self, report):
        self.told.append(report)
        if len(self.told) > self.refusals:
            failure = sample_failure(failure_class=report.failure_class, local_rank=report.workers[0].local_rank)
            self.hook.on_failure(FailureSeen(failure=failure))


@pytest.fixture
def watch(tree, request):
    clock = ManualClock()
    began_s = clock.monotonic_s()
    timers = Timers(clock)
    run = Run(timers, getattr(request, "param", 0))
    made = SleepWatch(HookSettings(name="uninterruptible-timeout", options={"uninterruptible_timeout": 8.0}))
    made.run, made.clock, made.proc, run.hook = run, clock, str(tree.root), made
    tree.put(70, "S", 1)
    tree.put(71, "R", 1)
    made.on_workers_started(WorkersStarted(round=sample_round(), pids=(70, 71)))
    return made, run, lambda after_s: timers.run_until(began_s + after_s)


def test_only_that_sleep_counts(tree):
    tree.put(5, "D", 17, "nfs_wait")
    tree.put(6, "S", 17, "0")
    root = str(tree.root)
    assert [sleep_serial(pid, proc=root) for pid in (5, 6, 7)] == [17, None, None]
    assert [sleep_place(pid, proc=root) for pid in (5, 6, 7)] == ["nfs_wait", "", ""]


def test_another_sleep_begins_anew():
    first = look({}, {0: 3, 1: None}, now_s=10)
    assert set(first) == {0}
    assert look(first, {0: 3}, now_s=20)[0].since_s == 10
    assert look(first, {0: 4}, now_s=20)[0].since_s == 20
    assert look(first, {0: None}, now_s=20) == {}


def test_a_worker_that_sleeps_on_is_told_once(tree, watch):
    _, run, run_until = watch
    run_until(10)
    tree.put(71, "D", 5, "nfs_wait")
    run_until(19)
    assert run.told == []
    run_until(40)
    (report,) = run.told
    assert report.summary == "rank 5: in uninterruptible sleep for 8 s (nfs_wait)"
    assert (report.failure_class, report.retryable) == (FailureClass.HANG, False)
    assert report.workers == (WorkerFault(local_rank=1, quiet_s=8.0),)
    seen = {"global_rank": 5, "blamed": True, "quiet_s": 8.0, "state": "D", "wait": "nfs_wait"}
    assert report.fields == {"hang": {"ranks": [seen]}}


@pytest.mark.parametrize("watch", [2], indirect=True)
def test_where_something_else_is_being_decided_it_is_told_again(tree, watch):
    _, run, run_until = watch
    tree.put(71, "D", 5)
    run_until(40)
    seen = [(report.workers[0].local_rank, report.workers[0].quiet_s) for report in run.told]
    assert seen == [(1, 8.0), (1, 10.0), (1, 12.0)]


def test_a_worker_that_reads_a_slow_disk_is_not(tree, watch):
    _, run, run_until = watch
    for second in range(1, 40):
        tree.put(71, "D", second)
        run_until(second)
    assert run.told == []


def test_a_worker_that_has_ended_is_not(tree, watch):
    _, run, run_until = watch
    tree.put(71, "D", 5)
    run_until(4)
    del run.live[1]
    run_until(40)
    assert run.told == []


def test_nobody_looks_after_the_end(tree, watch):
    made, run, run_until = watch
    tree.put(71, "D", 5)
    made.on_workers_stopping(WorkersStopping(round_index=0, reason="enough", grace_s=1.0))
    run_until(40)
    assert run.told == []


def test_several_are_named_together_the_longest_first():
    found = report([Sleeper(local_rank=rank, global_rank=rank, slept_s=9.0 - rank, wait="") for rank in (0, 1, 2, 5)])
    assert found.summary == "ranks 0-2, 5: in uninterruptible sleep for 9 s"
    assert [fault.local_rank for fault in found.workers] == [0, 1, 2, 5]


@pytest.mark.parametrize(("text", "seconds"), [("300", 300.0), ("0", None), ("-1", None)])
def test_torchs_variable_stands_for_the_option(text, seconds):
    entrypoint = Entrypoint(argv=("x",), name="x", python=False)
    environ = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": text}
    resolution = resolve({}, environ=environ, entrypoint=entrypoint, node=Node({}))
    assert resolution.settings.hook_options.get("uninterruptible_timeout") == seconds


class TestSleepWatch(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        def make(run_dir):
            options = {"uninterruptible_timeout": 0.0}
            return SleepWatch(HookSettings(name="uninterruptible-timeout", run_dir=run_dir, options=options))

        return make
