"""Wait budgets end by deadline or by cancellation, and say which."""

import threading

import pytest

from elastic_core.errors import WaitCancelledError, WaitExpiredError
from elastic_core.system.clock import WaitBudget, duration_text


class ManualClock:
    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return 0


def test_remaining_counts_down_to_zero_and_no_further():
    clock = ManualClock()
    wait = WaitBudget.lasting(10.0, clock=clock)
    assert wait.remaining_s() == 10.0
    assert wait.remaining_s(3.0) == 3.0
    clock.now_s += 11
    assert wait.remaining_s() == 0.0
    with pytest.raises(WaitExpiredError):
        wait.check()


def test_budget_without_deadline_has_no_end_of_its_own():
    wait = WaitBudget()
    assert wait.remaining_s() == float("inf")
    wait.check()


def test_cancel_ends_sleep_and_tells_listeners_once_each():
    wait = WaitBudget()
    told = []
    wait.on_cancel(lambda: told.append("before"))
    wait.cancel()
    wait.on_cancel(lambda: told.append("after"))
    assert told == ["before", "after"]
    assert wait.cancelled
    with pytest.raises(WaitCancelledError):
        wait.sleep(60)


def test_sleep_past_the_deadline_says_so():
    clock = ManualClock()
    wait = WaitBudget.lasting(0.0, clock=clock)
    with pytest.raises(WaitExpiredError):
        wait.sleep(60)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0 s"),
        (0.5, "0.5 s"),
        (18.27, "18.3 s"),
        (60, "1 min"),
        (61.4, "1 min 1 s"),
        (7260, "2 h 1 min"),
        (7200, "2 h"),
        (3599.47, "59 min 59 s"),
        (273_600, "3 d 4 h"),
        (2.592e6, "30 d"),
        (1e300, "1e+300 s"),
    ],
)
def test_durations_are_in_units_that_people_use(seconds, shown):
    assert duration_text(seconds) == shown


def test_a_call_runs_in_a_thread_of_its_own():
    assert WaitBudget().call(threading.current_thread, timeout_s=5) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        WaitBudget().call(lambda: 1 / 0, timeout_s=5)
    with pytest.raises(WaitExpiredError):
        WaitBudget.lasting(0).call(lambda: 1, timeout_s=5)
