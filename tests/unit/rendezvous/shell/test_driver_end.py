"""The end of the thread that talks to a store: whoever waits for it hears of it, whatever a store does then."""

from elastic_core.moments import StoreCall
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.state import Me
from elastic_core.rendezvous.shell.driver import Driver
from elastic_plugin_kit import ManualClock


class Broken:
    """A store of somebody's that raises what it should not, even when it is closed."""

    where = "nowhere"
    notices = ()

    def connect(self, *, wait):
        raise ZeroDivisionError("connect")

    def close(self):
        raise ZeroDivisionError("close")


class Somebody:
    agent_port = 0

    def me(self):
        return Me(
            node="a", incarnation="1", run_id="r", where="nowhere", fresh_epoch="e", secret="s", min_nodes=1,
            max_nodes=1,
        )  # fmt: skip


def test_the_first_error_reaches_whoever_waits_also_if_the_store_cannot_be_closed():
    ended = []
    driver = Driver(
        Broken(),
        Somebody(),
        emit=lambda event: None,
        ended=ended.append,
        turned_s=lambda: float("inf"),
    )
    driver.post(protocol.JoinAsked(master_port=0))
    driver.start()
    assert driver.join(10.0)
    assert [str(error) for error in ended] == ["connect"]


def test_a_call_is_reported_where_an_observer_takes_it():
    emitted = []
    driver = Driver(
        Broken(),
        Somebody(),
        emit=emitted.append,
        ended=lambda error: None,
        turned_s=lambda: float("inf"),
    )
    driver.post(protocol.JoinAsked(master_port=0))
    driver.start(measured=True)
    assert driver.join(10.0)
    calls = [each for each in emitted if isinstance(each, StoreCall)]
    assert [(each.call, each.failed) for each in calls] == [("connect", True)]


def test_a_loop_is_stuck_after_half_a_lease_and_a_moment_to_run_again():
    clock, turned_s = ManualClock(100.0), [100.0]
    driver = Driver(
        Broken(),
        Somebody(),
        emit=lambda event: None,
        ended=lambda error: None,
        turned_s=lambda: turned_s[0],
        clock=clock,
    )
    seen = []
    for share in (0.3, 0.15, 0.15, 0.15, 0.05):
        clock.advance(share * driver.ttl_s)
        seen.append(driver._loop_is_stuck())
    assert seen == [False, False, False, False, True]
    turned_s[0] = clock.monotonic_s()
    assert not driver._loop_is_stuck()
    clock.advance(10 * driver.ttl_s)  # the whole process was stopped
    assert not driver._loop_is_stuck()
