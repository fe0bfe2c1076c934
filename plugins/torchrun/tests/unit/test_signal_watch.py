"""Signals of a process that waits for workers: who has them during the watch, after it, and in a forked process."""

import os
import signal
import threading

import pytest

from elastic_torchrun.processes.signals import SignalException, SignalWatch

SIGNUM = signal.SIGTERM


@pytest.fixture
def heard(monkeypatch):
    """The signals that reach the caller's own handler, which must be there again afterwards."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", SIGNUM.name)
    told = []

    def handler(signum, frame):
        told.append(signum)

    before = signal.signal(SIGNUM, handler)
    yield told
    assert signal.getsignal(SIGNUM) is handler
    signal.signal(SIGNUM, before)


def begun():
    watch = SignalWatch()
    watch.begin()
    return watch


def test_a_signal_is_told_where_somebody_waits(heard):
    watch = begun()
    os.kill(os.getpid(), SIGNUM)
    with pytest.raises(SignalException), watch.wait():
        pass
    watch.end()
    assert heard == []


@pytest.mark.parametrize("first", [0, 1])
def test_two_watches_end_in_any_order(heard, first):
    watches = [begun(), begun()]
    watches.pop(first).end()
    watches.pop().end()
    os.kill(os.getpid(), SIGNUM)
    assert heard == [SIGNUM]


def test_an_ended_watch_below_another_passes_signals_on(heard):
    lower, upper = begun(), begun()
    lower.end()
    for _ in range(2):
        os.kill(os.getpid(), SIGNUM)
    assert heard == [SIGNUM], "the upper one keeps the first; the second is the caller's"
    upper.end()


def test_a_watch_that_another_thread_ended_takes_nothing(heard):
    watch = begun()
    thread = threading.Thread(target=watch.end)
    thread.start()
    thread.join()
    os.kill(os.getpid(), SIGNUM)
    assert heard == [SIGNUM]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks with threads, from Python 3.12 on
def test_a_forked_process_is_not_watched(heard):
    watch = begun()
    pid = os.fork()
    if pid == 0:
        try:
            os.kill(os.getpid(), SIGNUM)
        finally:
            os._exit(len(heard))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    watch.end()
