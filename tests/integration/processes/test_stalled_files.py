"""A file system that does not answer: a pipe in a log file's place, which takes nothing while nobody reads it."""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from elastic_core.processes.errors.record_pipe import ERROR_FILE_VARIABLE, HOOKS_VARIABLE, RecordPipes
from elastic_core.processes.output.disk import Disk
from elastic_core.processes.spec import StreamPlan, WorkerLaunch
from elastic_core.system.reactor import Reactor
from elastic_plugin_kit import ManualClock
from group_kit import GroupKit
from patience import Deadline, patience
from proc_kit import is_alive
from support import Lines, wait_for

CHATTY = """
import os
for i in range(2000): os.write(1, b"%6d " % i + b"x" * 1016 + b"\\n")
"""
LINES = 2000
STALL_S = round(patience(0.3), 1)
"""So long a write to a real disk does not take, beside tests that write, too."""


class StalledFile:
    """A named pipe; what is written to it waits until `read` takes it."""

    def __init__(self, path):
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, 4096)
        self.taken = b""

    def read(self):
        try:
            while chunk := os.read(self.fd, 1 << 20):
                self.taken += chunk
        except BlockingIOError:
            pass

    def close(self):
        os.close(self.fd)


@pytest.fixture
def kit(tmp_path):
    kit = GroupKit(tmp_path, disk_stall_s=STALL_S)
    yield kit
    kit.close()


@pytest.fixture
def stalled(tmp_path):
    file = StalledFile(tmp_path / "0.out")
    yield file
    file.close()


def chatty(kit, rank, code=CHATTY, **more):
    plan = StreamPlan(file=kit.log(rank), console=True, inherit=False, prefix=f"[default{rank}]:", **more)
    return kit.launch(code, rank, stdout=plan)


def expected():
    return b"".join(b"%6d " % i + b"x" * 1016 + b"\n" for i in range(LINES))


def test_a_stalled_log_file_holds_back_the_worker_that_writes_there_and_nobody_else(kit, stalled):
    kit.group.start([chatty(kit, 0), chatty(kit, 1)])
    kit.run_until_exits(1)
    assert [exit.local_rank for exit in kit.exits] == [1]
    assert Path(kit.log(1)).read_bytes() == expected()
    kit.run_until(lambda: kit.notices)
    assert kit.notices[0] == (
        f"the file system of {kit.log(0)!r} has not responded for {STALL_S:g} s; its data waits, and so does "
        "a worker whose pipe is full"
    )
    assert kit.group.alive == {0}  # its pipe is full, and what waits for the file has a bound

    def answers():
        stalled.read()
        return len(kit.exits) == 2

    kit.run_until(answers)
    assert kit.exits[1].code == 0
    kit.run_until(lambda: stalled.read() or len(kit.notices) >= 2)
    assert kit.notices[1].startswith("that file system responds again, after ")
    kit.stop()
    wait_for(lambda: stalled.read() or len(stalled.taken) >= len(expected()), what="what still waited for the file")
    assert stalled.taken == expected()
    console = Path(kit.folder / "console.out").read_bytes().splitlines(keepends=True)
    assert b"".join(line[len("[default0]:") :] for line in console if line.startswith(b"[default0]:")) == expected()


def test_workers_are_stopped_at_once_while_their_log_is_stalled(kit, stalled):
    kit.group.start([chatty(kit, 0)])
    kit.run_until(lambda: kit.notices)
    pid = kit.group.pids[0]
    assert kit.stop(signal.SIGTERM, grace_s=20.0) < 10.0
    assert not is_alive(pid)
    assert kit.exits[0].code == -signal.SIGTERM


def test_what_a_stalled_file_lacks_at_the_end_is_told(kit, stalled):
    kit.group.start([chatty(kit, 0)])
    kit.run_until(lambda: kit.notices)
    kit.stop()
    began_s = time.monotonic()
    kit.disk.close(within_s=0.5)
    assert time.monotonic() - began_s < 10.0
    lacks = [line for line in kit.notices if " lacks its last " in line]
    assert len(lacks) == 1
    assert lacks[0].startswith(f"{kit.log(0)!r} lacks its last ")
    assert lacks[0].endswith(" bytes: its file system does not respond")
    stalled.read()  # lets the thread go


def test_a_filtered_copy_on_a_stalled_file_system_loses_no_line(kit, tmp_path):
    copy = StalledFile(tmp_path / "filtered")
    plan = {"filters": ("x",), "filtered_file": str(tmp_path / "filtered")}
    kit.group.start([chatty(kit, 0, **plan)])
    kit.run_until(lambda: kit.notices)
    kit.run_until(lambda: copy.read() or kit.exits)
    kit.run_until(lambda: copy.read() or len(copy.taken) == len(expected()) + LINES * len("[default0]:"))
    kit.stop()
    copy.close()


@pytest.fixture
def disk():
    reactor = Reactor()
    notices = Lines()
    disk = Disk(reactor, log=notices, stall_s=0.2)
    disk.reactor, disk.notices = reactor, notices
    yield disk
    disk.close()
    reactor.close()


def turn_until(disk, condition):
    end = Deadline(30)
    while not condition():
        assert not end.passed()
        disk.reactor.turn(0.02)


def test_jobs_of_a_lane_are_done_in_order_and_lanes_do_not_wait_for_one_another(disk):
    gate, done = threading.Event(), []
    held_up, free = disk.lane("a"), disk.lane("b")
    held_up.put(gate.wait, 100)
    for number in range(3):
        held_up.put(lambda number=number: done.append(("a", number)), 100)
        free.put(lambda number=number: done.append(("b", number)), 100)
    turn_until(disk, lambda: len(done) == 3)
    assert done == [("b", 0), ("b", 1), ("b", 2)]
    assert held_up.queued_bytes == 400
    turn_until(disk, lambda: disk.notices)
    gate.set()
    turn_until(disk, lambda: len(done) == 6)
    assert done[3:] == [("a", 0), ("a", 1), ("a", 2)]
    turn_until(disk, lambda: len(disk.notices) >= 2)
    assert held_up.queued_bytes == 0


def test_nothing_wakes_a_disk_without_work(disk):
    results = []
    disk.run("a", lambda: 6 * 7, lambda *result: results.append(result))
    disk.run("b", lambda: 1 / 0, lambda *result: results.append(result))
    turn_until(disk, lambda: len(results) == 2)
    values = {result[0] for result in results}
    assert values == {42, None}
    assert {type(result[1]) for result in results} == {type(None), ZeroDivisionError}
    turn_until(disk, lambda: disk._timer is None)
    assert not disk._busy


def test_several_stalled_files_are_one_line(disk):
    gate = threading.Event()
    for name in "abc":
        disk.lane(name).put(gate.wait)
    turn_until(disk, lambda: disk.notices)
    turn_until(disk, lambda: disk._threads == 3)
    assert len(disk.notices) == 1
    assert disk.notices[0].startswith("the file system of 'a'")
    gate.set()
    turn_until(disk, lambda: len(disk.notices) >= 2)


def test_a_pipe_beside_an_error_file_is_made_and_removed_beside_the_loop(disk, tmp_path):
    pids, gate, pipe = [], threading.Event(), tmp_path / "error.json.pipe"
    pipes = RecordPipes(disk.reactor, disk, lambda pid, _: pids.append(pid))
    env = {ERROR_FILE_VARIABLE: str(tmp_path / "error.json"), HOOKS_VARIABLE: "1"}
    launch = WorkerLaunch(local_rank=0, global_rank=0, argv=("true",), env=env)
    try:
        pipes._lane.put(gate.wait)
        pipes.open(launch)
        pipes.close()
        pipes.open(launch)  # the name again: made when the one before is removed
        assert not pipe.exists()
    finally:
        gate.set()
    turn_until(disk, lambda: not disk._busy)
    pipe.write_text("17")
    turn_until(disk, lambda: pids == [17])
    pipes.close()
    turn_until(disk, lambda: not pipe.exists())
    pipes.open_ahead([str(tmp_path / "error.json")])
    assert pipe.exists()
    pipes.forget_ahead()
    turn_until(disk, lambda: not pipe.exists())


def test_time_in_which_the_process_itself_stood_still_counts_against_no_file_system():
    """Held by a plugin that keeps the interpreter, say, or stopped: the disk's thread had no turn either."""
    clock, notices, gate = ManualClock(), Lines(), threading.Event()
    reactor = Reactor(clock=clock)
    disk = Disk(reactor, log=notices, stall_s=2.0)
    disk.lane("a").put(gate.wait)
    clock.advance(30.0)
    reactor.turn(0)
    assert notices == []
    while not notices:  # it does not answer, and that is found all the same
        assert clock.monotonic_s() < 60
        clock.advance(0.1)
        reactor.turn(0)
    assert 31 < clock.monotonic_s() < 33
    assert notices[0].startswith("the file system of 'a' has not responded for 2 s")
    gate.set()
    disk.close()
    reactor.close()


def test_threads_that_helped_out_end_with_the_work(tmp_path):
    """A run on a busy node looked often while a lane was held up, and had 1,200 threads after 5,900 restarts."""
    reactor = Reactor()
    disk = Disk(reactor, log=Lines())
    before = {*os.listdir("/proc/self/task")}
    for _ in range(5):
        answers, ended = threading.Event(), []
        for name, work in (("held up", answers.wait), ("other", bool)):
            disk.run(name, work, lambda *_, name=name, ended=ended: ended.append(name))
        while "other" not in ended:  # by a second thread, which a look has started
            reactor.turn(0.05)
        answers.set()
        while len(ended) < 2:
            reactor.turn(0.05)
    wait_for(lambda: len({*os.listdir("/proc/self/task")} - before) == 1, what="the one thread that waits for work")
    disk.close()
    wait_for(lambda: {*os.listdir("/proc/self/task")} <= before, what="the end of the last thread")
    reactor.close()
