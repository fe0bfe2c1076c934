"""The reactor with real descriptors, threads and signals."""

import os
import signal
import threading

import pytest

from elastic_core.system.clock import SystemClock
from elastic_core.system.reactor import Reactor


@pytest.fixture
def reactor():
    reactor = Reactor()
    yield reactor
    reactor.close()


def run_until(reactor, condition, turns=200):
    for _ in range(turns):
        if condition():
            return
        reactor.turn(1.0)
    raise AssertionError("the condition never came true")


def test_timers_fire_in_order_and_a_cancelled_one_never(reactor):
    fired = []
    reactor.call_later(0.02, lambda: fired.append("late"))
    reactor.call_later(0.01, lambda: fired.append("cancelled")).cancel()
    reactor.call_later(0.0, lambda: fired.append("early"))
    run_until(reactor, lambda: "late" in fired)
    assert fired == ["early", "late"]


def test_a_call_that_is_awaited_is_not_requested_again_and_later_it_is(reactor):
    called = []

    def call():
        called.append(len(called))

    for awaited in (1, 2):
        for _ in range(3):
            reactor.call_once(0.0, call)
        reactor.turn(0.0)
        assert called == list(range(awaited))


class Stoppable(SystemClock):
    """The host's clock, ahead by what a test leaves out."""

    ahead_s = 0.0

    def monotonic_s(self):
        return super().monotonic_s() + self.ahead_s


def test_time_that_is_left_out_does_not_count_for_timers():
    clock, fired = Stoppable(), []
    reactor = Reactor(clock=clock)
    reactor.call_later(30.0, lambda: fired.append("a"))
    clock.ahead_s = 100.0
    reactor.leave_out(100.0)
    reactor.turn(0.0)
    assert fired == []
    clock.ahead_s += 30.0
    reactor.turn(0.0)
    assert fired == ["a"]
    reactor.close()


def test_sleep_in_which_the_process_was_stopped_does_not_count_for_timers(monkeypatch):
    clock, fired = Stoppable(), []
    reactor = Reactor(clock=clock)
    reactor.call_later(30.0, lambda: fired.append("a"))

    def stopped(timeout_s):
        clock.ahead_s += 100.0
        return []

    with monkeypatch.context() as patch:
        patch.setattr(reactor._selector, "select", stopped)
        reactor.turn()
    assert fired == []
    clock.ahead_s += 31.0
    reactor.turn(0.0)
    assert fired == ["a"]
    reactor.close()


def test_post_from_another_thread_wakes_a_sleeping_reactor(reactor):
    here = []
    thread = threading.Timer(0.02, lambda: reactor.post(lambda: here.append(threading.get_ident())))
    thread.start()
    run_until(reactor, lambda: here)
    thread.join()
    assert here == [threading.get_ident()]


def test_reader_and_writer_of_one_descriptor_are_independent(reactor):
    left, right = os.pipe2(os.O_NONBLOCK)
    seen = []
    reactor.add_writer(right, lambda: (seen.append("writable"), reactor.remove_writer(right), os.write(right, b"x")))
    reactor.add_reader(left, lambda: seen.append(os.read(left, 10)))
    run_until(reactor, lambda: b"x" in seen)
    reactor.remove_reader(left)
    reactor.remove_reader(left)
    assert seen == ["writable", b"x"]
    os.close(left)
    os.close(right)


def test_callback_may_remove_another_that_is_due_in_the_same_turn(reactor):
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    seen = []
    for own, (read, _) in enumerate(pipes):
        other = pipes[1 - own][0]
        reactor.add_reader(read, lambda other=other, own=own: (seen.append(own), reactor.remove_reader(other)))
    for _, write in pipes:
        os.write(write, b"x")
    reactor.turn(1.0)
    assert len(seen) == 1
    for pair in pipes:
        reactor.remove_reader(pair[0])
        os.close(pair[0])
        os.close(pair[1])


def test_signals_arrive_on_the_loop_in_order_and_handlers_are_given_back():
    reactor = Reactor()
    before = signal.getsignal(signal.SIGUSR1)
    got = []
    reactor.handle_signals([signal.SIGUSR1, signal.SIGUSR2], got.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    run_until(reactor, lambda: len(got) == 2)
    assert got == [signal.SIGUSR1, signal.SIGUSR2]
    reactor.close()
    reactor.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_signal_outlives_a_full_wake_up_pipe():
    reactor = Reactor()
    got = []
    reactor.handle_signals([signal.SIGTERM], got.append)
    for _ in range(70_000):  # more than a pipe holds: what threads post while the loop stands still
        reactor.post(lambda: None)
    os.kill(os.getpid(), signal.SIGTERM)
    run_until(reactor, lambda: got)
    assert got == [signal.SIGTERM]
    reactor.close()


def test_signal_comes_before_the_end_of_a_process_that_the_same_turn_finds():
    reactor = Reactor()
    told = []
    pid = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(pid)
    reactor.add_reader(pidfd, lambda: (told.append("end"), reactor.remove_reader(pidfd)))
    reactor.handle_signals([signal.SIGTERM], told.append)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)  # so it is the first that the kernel reports
    os.kill(os.getpid(), signal.SIGTERM)
    reactor.turn(1.0)
    assert told == [signal.SIGTERM, "end"]
    reactor.close()
    os.waitpid(pid, 0)
    os.close(pidfd)


def test_signal_that_somebody_else_handles_is_not_ours():
    reactor = Reactor()
    got, theirs = [], []
    reactor.handle_signals([signal.SIGTERM], got.append)
    before = signal.signal(signal.SIGALRM, lambda *_: theirs.append("alarm"))
    try:
        os.kill(os.getpid(), signal.SIGALRM)
        reactor.turn(0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
        reactor.close()
    assert (got, theirs) == ([], ["alarm"])


def test_pidfd_wakes_when_the_process_ends(reactor):
    pid = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(pid)
    ended = []
    reactor.add_reader(pidfd, lambda: (ended.append(os.waitpid(pid, 0)), reactor.remove_reader(pidfd)))
    run_until(reactor, lambda: ended)
    os.close(pidfd)
    assert ended == [(pid, 0)]
