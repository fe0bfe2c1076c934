"""The end of the thread that talks to a store: whoever waits for it hears of it, whatever a store does then."""

from elastic_core.moments import StoreCall
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.state import Me
from elastic_core.rendezvous.shell.driver import Driver


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
