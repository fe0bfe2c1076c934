"""Workers in uninterruptible sleep, on a tree that looks like /proc."""

import pytest

from elastic_core.agent.watch.sleep_watch import Sleeper, SleepWatch, look, sleep_place, sleep_serial
from elastic_core.workers.spec import WorkerLaunch
from elastic_plugin_kit.manual_clock import ManualClock


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


@pytest.fixture
def watch(tree, request):
    clock = ManualClock()
    began_s = clock.monotonic_s()
    timers, told = Timers(clock), []

    def on_stuck(found):
        told.append(found)
        return len(told) > refusals

    refusals = getattr(request, "param", 0)
    made = SleepWatch(timers, limit_s=8, on_stuck=on_stuck, clock=clock, proc=str(tree.root))
    launches = [WorkerLaunch(local_rank=rank, global_rank=rank + 4, argv=("x",), env={}) for rank in (0, 1)]
    tree.put(70, "S", 1)
    tree.put(71, "R", 1)
    made.begin(launches, {0: 70, 1: 71})
    return made, told, lambda after_s: timers.run_until(began_s + after_s)


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
    _, told, run_until = watch
    run_until(10)
    tree.put(71, "D", 5, "nfs_wait")
    run_until(19)
    assert told == []
    run_until(40)
    assert told == [(Sleeper(local_rank=1, global_rank=5, pid=71, slept_s=8.0, wait="nfs_wait"),)]


@pytest.mark.parametrize("watch", [2], indirect=True)
def test_where_something_else_is_being_decided_it_is_told_again(tree, watch):
    _, told, run_until = watch
    tree.put(71, "D", 5)
    run_until(40)
    assert [(found[0].local_rank, found[0].slept_s) for found in told] == [(1, 8.0), (1, 10.0), (1, 12.0)]


def test_a_worker_that_reads_a_slow_disk_is_not(tree, watch):
    _, told, run_until = watch
    for second in range(1, 40):
        tree.put(71, "D", second)
        run_until(second)
    assert told == []


def test_a_worker_that_has_ended_is_not(tree, watch):
    made, told, run_until = watch
    tree.put(71, "D", 5)
    run_until(4)
    made.ended(1)
    run_until(40)
    assert told == []


def test_nobody_looks_after_the_end(tree, watch):
    made, told, run_until = watch
    tree.put(71, "D", 5)
    made.end()
    run_until(40)
    assert told == []
