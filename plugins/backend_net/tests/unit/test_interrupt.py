"""What ends a blocked call when its wait is cancelled, and only that call."""

import select
import socket
import threading

import pytest

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import WaitBudget
from elastic_core.api.stores import WaitCancelledError


@pytest.fixture
def interrupt():
    made = Interrupt()
    yield made
    made.close()


def test_a_cancelled_wait_wakes_the_call_that_it_is_for(interrupt):
    wait, woken = WaitBudget(), []
    with interrupt.by(wait, lambda: woken.append("now")):
        wait.cancel()
        assert woken == ["now"]


def test_a_wait_that_is_cancelled_before_wakes_at_once(interrupt):
    wait, woken = WaitBudget(), []
    wait.cancel()
    with interrupt.by(wait, lambda: woken.append("now")):
        assert woken


def test_who_comes_too_late_does_not_wake_the_next_call(interrupt):
    late, next_one, woken = WaitBudget(), WaitBudget(), []
    with interrupt.by(late, lambda: woken.append("late")):
        pass
    with interrupt.by(next_one, lambda: woken.append("next")):
        late.cancel()
    assert woken == []


def test_a_call_is_not_left_while_it_is_being_woken(interrupt):
    wait, order, begun = WaitBudget(), [], threading.Event()

    def wake():
        begun.set()
        assert not left.wait(0.2)
        order.append("woken")

    left = threading.Event()
    canceller = threading.Thread(target=wait.cancel)
    with interrupt.by(wait, wake):
        canceller.start()
        assert begun.wait(10)
    left.set()
    order.append("left")
    canceller.join(10)
    assert order == ["woken", "left"]


def test_a_wait_that_was_cancelled_before_its_poll_does_not_end_the_next_one(interrupt):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cancelled = WaitBudget()
        cancelled.cancel()
        with pytest.raises(WaitCancelledError):
            interrupt.poll(ours, 0.0, cancelled)
        assert not interrupt.poll(ours, 0.0, WaitBudget())
        theirs.send(b"x")
        assert interrupt.poll(ours, 60.0, WaitBudget())
        assert select.select([interrupt._fd], [], [], 0)[0] == []
