"""A store's call that does not return: told of once, with what follows from it, and no sooner than it must."""

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugin_faults import CallUnderWay, PluginLabel
from elastic_core.rendezvous.shell.call_watch import CallWatch
from elastic_core.types import RoundEnded, Undecided

BACKEND = PluginLabel("backend", "seats", "acme 1.0", hint="report it")
NEVER_S = float("inf")


class Clock:
    now_s = 100.0

    def monotonic_s(self):
        return self.now_s


class Calls:
    call = None

    def late(self, now_s):
        return self.call if self.call is not None and now_s > self.call.due_s else None


class Driver:
    ttl_s, connect_timeout_s, node = 6.0, 20.0, "n0"
    first_contact_s = None
    stops_s = (NEVER_S, NEVER_S)

    def __init__(self):
        self.calls = Calls()


class Rounds:
    over = joining = awaits = False

    def __init__(self):
        self.ends = []
        self.lose = self.give_up = self.ends.append


class Bench:
    """A watch, what it says and does, and its time."""

    backend = BACKEND

    def __init__(self):
        self.clock, self.driver, self.rounds, self.lines = Clock(), Driver(), Rounds(), []
        self.timers = []
        self.notice = self.lines.append
        self.watch = CallWatch(self.driver, self, self.rounds, clock=self.clock)

    def call_later(self, delay_s, callback):
        self.timers.append((self.clock.now_s + delay_s, callback))

    def until(self, now_s):
        while self.timers and self.timers[0][0] <= now_s:
            self.clock.now_s, callback = self.timers.pop(0)
            callback()
        self.clock.now_s = now_s


@pytest.fixture
def bench():
    return Bench()


def test_a_call_within_its_wait_or_a_moment_past_it_is_nothing(bench):
    bench.rounds.joining = True
    bench.driver.calls.call = CallUnderWay("renew", 100.0, 101.0)
    bench.until(103.9)
    assert (bench.lines, bench.rounds.ends) == ([], [])


def test_a_late_call_is_told_of_once_and_so_is_its_return(bench):
    bench.rounds.joining = True
    bench.driver.calls.call = CallUnderWay("enlist", 100.0, 101.0)
    bench.until(110.0)
    (line,) = bench.lines
    assert line == (
        "enlist of backend 'seats' (acme 1.0) has not returned, 3.0 s past its wait; "
        "it is given up in 16 s (--connect-timeout)"
    )
    bench.driver.calls.call = None
    bench.until(112.0)
    assert bench.lines[1:] == ["enlist of backend 'seats' (acme 1.0) has returned, after 11.0 s"]
    assert not bench.rounds.ends


def test_a_round_ends_under_the_calls_name_when_the_lease_can_not_be_kept(bench):
    bench.driver.stops_s = (104.4, 105.2)
    bench.driver.calls.call = CallUnderWay("renew", 100.0, 101.0)
    bench.until(130.0)
    (end,) = bench.rounds.ends
    assert isinstance(end, RoundEnded)
    assert end.reason == (
        "renew of backend 'seats' (acme 1.0) has not returned, 4.0 s past its wait, "
        "and this node's lease can't be kept without it"
    )
    assert end.lost == ("n0",)
    assert end.stop_within_s == pytest.approx(0.2)
    assert len(bench.lines) == 1
    assert "workers run for as long as this node's lease allows" in bench.lines[0]


@pytest.mark.parametrize(("first_s", "given_up_s"), [(None, 120.0), (95.0, 115.0)])
def test_a_join_is_given_up_after_the_connect_timeout(bench, first_s, given_up_s):
    bench.rounds.joining = True
    bench.driver.first_contact_s = first_s
    bench.driver.calls.call = CallUnderWay("connect", 100.0, 105.0)
    bench.until(given_up_s - 0.01)
    assert not bench.rounds.ends
    bench.until(given_up_s)
    (error,) = bench.rounds.ends
    assert isinstance(error, RendezvousConnectionError)
    assert error.what.endswith("s past its wait: given up after 20 s (--connect-timeout)")
    assert error.hint == "report it"


def test_a_stopped_round_is_left_to_the_agent(bench):
    bench.rounds.awaits = True
    bench.driver.calls.call = CallUnderWay("update", 100.0, 101.0)
    bench.until(120.0)
    (end,) = bench.rounds.ends
    assert isinstance(end, Undecided)
    assert end.final


def test_it_ends_with_the_member(bench):
    bench.rounds.over = True
    bench.until(200.0)
    assert not bench.timers
