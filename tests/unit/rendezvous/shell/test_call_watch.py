"""A store's call that does not return: what follows from it, and no sooner than it must."""

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugin_faults import PluginLabel
from elastic_core.rendezvous.shell.call_watch import consequence, late_call
from elastic_core.rendezvous.shell.driver import PendingCall
from elastic_core.types import RoundEnded, Undecided

BACKEND = PluginLabel("backend", "seats", "acme 1.0", hint="report it")
NEVER_S = float("inf")


class Driver:
    ttl_s, connect_timeout_s, node = 6.0, 20.0, "n0"
    first_contact_s = None
    stops_s = (NEVER_S, NEVER_S)
    call = None


@pytest.fixture
def driver():
    return Driver()


def end(driver, now_s, *, joining=False, awaits=False):
    return consequence(driver.call, driver, BACKEND, joining=joining, awaits=awaits, now_s=now_s)


def test_a_call_within_its_wait_or_a_moment_past_it_is_nothing(driver):
    assert late_call(driver, 100.0) is None
    driver.call = PendingCall("renew", 100.0, 101.0)
    assert late_call(driver, 101.9) is None
    assert late_call(driver, 102.0) == driver.call
    assert end(driver, 104.0) is None
    assert end(driver, 104.0, joining=True) is None


def test_a_round_ends_under_the_calls_name_when_the_lease_can_not_be_kept(driver):
    driver.stops_s = (104.4, 105.2)
    driver.call = PendingCall("renew", 100.0, 101.0)
    assert end(driver, 104.3) is None
    ended = end(driver, 105.0)
    assert isinstance(ended, RoundEnded)
    assert ended.reason == (
        "renew of backend 'seats' (acme 1.0) has not returned, 4.0 s past its wait, "
        "and this node's lease can't be kept without it"
    )
    assert ended.lost == ("n0",)
    assert ended.stop_within_s == pytest.approx(0.2)
    assert end(driver, 106.0).stop_within_s == 0.0


@pytest.mark.parametrize(("first_s", "given_up_s"), [(None, 120.0), (95.0, 115.0)])
def test_a_join_is_given_up_after_the_connect_timeout(driver, first_s, given_up_s):
    driver.first_contact_s = first_s
    driver.call = PendingCall("connect", 100.0, 105.0)
    assert end(driver, given_up_s - 0.01, joining=True) is None
    error = end(driver, given_up_s, joining=True)
    assert isinstance(error, RendezvousConnectionError)
    assert error.what.endswith("s past its wait: given up after 20 s (--connect-timeout)")
    assert error.hint == "report it"


def test_a_stopped_round_is_left_to_the_agent(driver):
    driver.call = PendingCall("update", 100.0, 101.0)
    assert end(driver, 119.9, awaits=True) is None
    ended = end(driver, 120.0, awaits=True)
    assert isinstance(ended, Undecided)
    assert ended.final
