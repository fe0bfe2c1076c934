"""Our own output streams: pipes, terminals, sockets and files that are slow, stuck, gone or full."""

import fcntl
import os
import pty
import select
import socket
import threading
import time
import tty
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.processes.output import sink as sink_module
from elastic_core.processes.output.sink import HIGH_WATER_BYTES, Console, Sink
from elastic_core.processes.spec import StreamPlan
from elastic_core.system.reactor import Reactor
from elastic_plugin_kit import ManualClock
from group_kit import GroupKit, all_closed_since, open_fds
from patience import Deadline, kept

LINE = b"x" * 79 + b"\n"


@pytest.fixture
def reactor():
    before = open_fds()
    reactor = Reactor()
    yield reactor
    reactor.close()
    all_closed_since(before)


@pytest.fixture
def pipe(reactor):
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        with suppress(OSError):  # the test closed it
            os.close(fd)


@pytest.fixture
def make_sink(reactor):
    sinks = []

    def make(fd, **more):
        sinks.append(Sink(reactor, fd, **more))
        return sinks[-1]

    yield make
    for each in sinks:
        each.close()


def read_available(fd):
    data = b""
    while select.select([fd], [], [], 0)[0]:
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data


def turn_until(reactor, condition, *, within_s=20):
    end = Deadline(within_s)
    while not condition():
        assert not end.passed()
        reactor.turn(0.02)


class Source:
    """Both ends of one kind of stream: `fd` is ours, `peer` is the reader's."""

    def __init__(self, kind):
        if kind == "socket":
            ends = socket.socketpair()
            ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 13)
            self.peer, self.fd = (end.detach() for end in ends)
        elif kind == "terminal":
            self.peer, self.fd = pty.openpty()
            tty.setraw(self.fd)
        else:
            self.peer, self.fd = os.pipe()

    def close(self):
        os.close(self.peer)
        os.close(self.fd)


@pytest.mark.parametrize("kind", ["pipe", "polled pipe", "socket", "terminal", "polled terminal"])
def test_a_reader_that_is_slow_gets_every_byte_and_the_loop_never_blocks(reactor, make_sink, kind, monkeypatch):
    if kind.startswith("polled"):  # another user's pipe, a container's terminal: it can't be opened again
        monkeypatch.setattr(sink_module, "_open_again", lambda *args: None)
    source = Source(kind.rpartition(" ")[2])
    try:
        sink = make_sink(source.fd)
        for number in range(4000):
            sink.submit(b"%079d\n" % number)
        assert sink.queued_bytes > 0
        assert os.get_blocking(source.fd)  # the description that we share with others is as it was
        got = b""

        def read_some():
            nonlocal got
            got += read_available(source.peer)
            return len(got) == 4000 * 80

        turn_until(reactor, read_some)
        assert got == b"".join(b"%079d\n" % number for number in range(4000))
        assert sink.queued_bytes == 0
        began_s = time.monotonic()
        reactor.turn(0.1)
        assert time.monotonic() - began_s >= 0.1  # an empty queue waits for nothing
    finally:
        sink.close()
        source.close()


def test_a_file_is_simply_written(make_sink, tmp_path):
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    sink = make_sink(fd)
    sink.submit(LINE * 1000)
    assert (tmp_path / "out").read_bytes() == LINE * 1000
    os.close(fd)


def test_a_full_queue_asks_for_a_pause_and_an_empty_one_ends_it(reactor, make_sink, pipe):
    sink, relieved = make_sink(pipe[1]), []
    while not sink.congested:
        sink.submit(LINE * 100)
    sink.when_relieved(lambda: relieved.append(1))
    assert HIGH_WATER_BYTES < sink.queued_bytes < HIGH_WATER_BYTES + 80 * 100 + 1
    reactor.turn(0.02)
    assert not relieved

    def read_some():
        read_available(pipe[0])
        return relieved

    turn_until(reactor, read_some)
    assert not sink.congested


def test_a_reader_that_stalls_loses_lines_and_is_told_how_many(reactor, make_sink, pipe):
    sink, relieved = make_sink(pipe[1], stall_s=0.2), []
    submitted = 0
    while not sink.congested:
        sink.submit(LINE * 3)
        submitted += 3
    sink.when_relieved(lambda: relieved.append(1))
    sink.submit(b"agent: kept\n", own=True)
    turn_until(reactor, lambda: relieved)
    assert sink.queued_bytes < 1000
    sink.submit(LINE * 5)  # dropped at once: training must not wait for this reader any more
    sink.submit(b"agent: kept too\n", own=True)
    submitted += 5
    got = b""

    def read_some():
        nonlocal got
        got += read_available(pipe[0])
        return b"missing" in got and got.endswith(b"\n")

    turn_until(reactor, read_some)
    *rest, kept, kept_too, account = got.splitlines(keepends=True)
    assert (kept, kept_too) == (b"agent: kept\n", b"agent: kept too\n")
    assert all(line == LINE for line in rest)  # the line that the pipe had a part of was ended
    assert account.startswith(b"[elastic] %d lines are missing here" % (submitted - len(rest)))
    sink.submit(b"after\n")
    turn_until(reactor, lambda: b"after\n" in read_available(pipe[0]))


def test_a_reader_that_is_slow_but_alive_loses_nothing(pipe):
    clock = ManualClock()
    reactor = Reactor(clock=clock)
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    sink = Sink(reactor, pipe[1], stall_s=0.3)
    for _ in range(1000):
        sink.submit(LINE)
    got = b""
    for _ in range(8):  # a page each 0.1 s, for longer than a stall
        got += os.read(pipe[0], 4096)
        clock.advance(0.1)
        reactor.turn(0)
    while sink.queued_bytes:
        got += read_available(pipe[0])
        reactor.turn(0)
    assert got + read_available(pipe[0]) == LINE * 1000
    sink.close()
    reactor.close()


def test_a_reader_that_is_gone_turns_the_stream_off(reactor, make_sink, pipe):
    sink, relieved = make_sink(pipe[1]), []
    while not sink.congested:
        sink.submit(LINE * 100)
    sink.when_relieved(lambda: relieved.append(1))
    os.close(pipe[0])
    turn_until(reactor, lambda: sink.broken)
    assert relieved
    sink.submit(LINE)
    assert sink.queued_bytes == 0
    assert sink.flush(reactor.now_s() + 1)


def test_a_stream_that_was_closed_before_we_started_takes_nothing(make_sink):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    os.close(write_fd)
    sink = make_sink(write_fd)
    assert sink.broken
    sink.submit(LINE)


def test_a_full_disk_behind_our_stream_is_survived(make_sink):
    fd = os.open("/dev/full", os.O_WRONLY)
    sink = make_sink(fd)
    sink.submit(LINE)
    sink.submit(LINE)
    assert not sink.broken
    assert sink.queued_bytes == 0
    os.close(fd)


def test_the_end_waits_for_a_slow_reader_but_not_for_ever(reactor, pipe):
    console = Console(reactor, stdout_fd=pipe[1], stderr_fd=pipe[1])
    for number in range(3000):
        console.stdout.submit(b"%079d\n" % number)
    began_s = time.monotonic()
    assert console.flush(0.3) is False
    took_s = time.monotonic() - began_s
    assert took_s > 0.25
    kept(took_s, 1)
    got = []
    thread = threading.Thread(target=lambda: got.append(read_to_end(pipe[0])))
    thread.start()
    assert console.flush(10) is True
    console.close()
    os.close(pipe[1])
    thread.join(10)
    assert got == [b"".join(b"%079d\n" % number for number in range(3000))]


def read_to_end(fd):
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    return data


def test_streams_that_are_one_file_share_one_queue(reactor, pipe):
    twin = os.dup(pipe[1])
    console = Console(reactor, stdout_fd=pipe[1], stderr_fd=twin)
    assert console.stdout is console.stderr
    console.line("agent: ü \udc80")
    assert read_available(pipe[0]) == "agent: ü \\udc80\n".encode()
    console.close()
    os.close(twin)


def test_what_others_wrote_is_cleaned_and_lines_stay_lines(reactor, pipe):
    console = Console(reactor, stdout_fd=pipe[1], stderr_fd=pipe[1])
    console.line("elastic: round 0 is over: evil\x1b]0;t\a\x1b[2J\n\x1b[31mFAKE LINE lost", "the next")
    assert read_available(pipe[0]) == b"elastic: round 0 is over: evil?]0;t??[2J ?[31mFAKE LINE lost\nthe next\n"
    console.stdout.submit(b"\x1b[1mof a worker\n")
    assert read_available(pipe[0]) == b"\x1b[1mof a worker\n"
    console.close()


def test_other_threads_may_say_a_line(reactor, pipe):
    console = Console(reactor, stdout_fd=pipe[1], stderr_fd=pipe[1])
    thread = threading.Thread(target=lambda: console.line("from a hook"))
    thread.start()
    thread.join(10)
    assert read_available(pipe[0]) == b""
    turn_until(reactor, lambda: read_available(pipe[0]) == b"from a hook\n")
    console.close()


def test_the_agents_lines_never_tear_a_workers(reactor, pipe):
    console = Console(reactor, stdout_fd=pipe[1], stderr_fd=pipe[1])
    for number in range(300):
        console.stdout.submit(b"w" * 999 + b"\n")
        console.line(f"agent {number}")
    got = b""

    def read_some():
        nonlocal got
        got += read_available(pipe[0])
        return got.endswith(b"agent 299\n")

    turn_until(reactor, read_some)
    assert set(got.splitlines()) == {b"w" * 999} | {b"agent %d" % number for number in range(300)}
    console.close()


# --- with workers


def console_plan(kit, rank=0, *, file=True):
    return StreamPlan(file=kit.log(rank) if file else None, console=True, inherit=False, prefix=f"[{rank}]:")


def test_a_console_that_is_never_read_does_not_stop_training(tmp_path):
    read_fd, write_fd = os.pipe()
    kit = GroupKit(tmp_path, console=(write_fd, write_fd), stall_s=0.3)
    try:
        code = "for i in range(150_000): print('step', i)"
        kit.group.start([kit.launch(code, rank, stdout=console_plan(kit, rank)) for rank in range(2)])
        kit.run_until_exits(2)
        kit.stop()
        expected = "".join(f"step {i}\n" for i in range(150_000))
        assert [kit.said(rank) == expected for rank in range(2)] == [True, True]
        assert [e.code for e in kit.exits] == [0, 0]
        assert kit.console.stdout.queued_bytes < 1 << 17
    finally:
        kit.close()
        os.close(read_fd)
        os.close(write_fd)


def test_back_pressure_is_bounded_and_loses_nothing(tmp_path):
    read_fd, write_fd = os.pipe()
    kit = GroupKit(tmp_path, console=(write_fd, write_fd), stall_s=60)
    try:
        code = "for i in range(200_000): print('step', i, '.' * 30)"
        kit.group.start([kit.launch(code, stdout=console_plan(kit, file=False))])
        kit.run_until(lambda: kit.console.stdout.congested)
        for _ in range(10):
            kit.reactor.turn(0.02)
        assert kit.console.stdout.queued_bytes < 2 * HIGH_WATER_BYTES
        assert not kit.exits  # the worker waits for us, as it would for a terminal
        got = []

        def finished():
            got.append(read_available(read_fd))
            return kit.exits and not kit.console.stdout.queued_bytes

        kit.run_until(finished)
        kit.stop()
        got.append(read_available(read_fd))
        assert b"".join(got) == b"".join(b"[0]:step %d %s\n" % (i, b"." * 30) for i in range(200_000))
    finally:
        kit.close()
        os.close(read_fd)
        os.close(write_fd)


def test_a_console_that_goes_away_leaves_files_whole(tmp_path):
    read_fd, write_fd = os.pipe()
    kit = GroupKit(tmp_path, console=(write_fd, write_fd))
    try:
        code = "import sys\nprint('first', flush=True); sys.stdin.readline()\nfor i in range(50_000): print(i)"
        stdin = os.dup(0)
        gate_read, gate_write = os.pipe()
        os.dup2(gate_read, 0)
        try:
            kit.group.start([kit.launch(code, stdout=console_plan(kit))])
        finally:
            os.dup2(stdin, 0)
            os.close(stdin)
            os.close(gate_read)
        kit.run_until_said("first")
        os.close(read_fd)
        os.write(gate_write, b"go\n")
        os.close(gate_write)
        kit.run_until_exits(1)
        kit.stop()
        assert kit.exits[0].code == 0
        assert kit.console.stdout.broken
        assert Path(kit.log(0)).read_text() == "first\n" + "".join(f"{i}\n" for i in range(50_000))
    finally:
        kit.close()
        os.close(write_fd)
