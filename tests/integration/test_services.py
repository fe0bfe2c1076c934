"""What the agent does for its rendezvous handler: each thing on the thread that can do it, none of it at once."""

import socket

import msgspec
import pytest

from elastic_core.clock import WaitBudget
from elastic_core.errors import ConfigError
from elastic_core.launcher.services import RoundPort, Services
from elastic_core.types import RendezvousSettings

SETTINGS = RendezvousSettings(
    backend="redis", run_id="r", endpoint="h:1", min_nodes=1, max_nodes=2, local_world_size=1, options={"db": 3}
)


class Mailbox:
    """A reactor of which only the mailbox is needed."""

    def __init__(self):
        self.posted = []

    def post(self, callback):
        self.posted.append(callback)

    def turn(self):
        while self.posted:
            self.posted.pop(0)()


class Agent:
    turned_s = 7.5


class Guardian:
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def fence(self, until_s):
        self.told.append(until_s)

    def last_act(self, store, seat, settings):
        self.told.append((store, seat, settings))


@pytest.fixture
def served():
    class Served:
        mailbox, guardian, said = Mailbox(), Guardian(), []
        services = Services(
            mailbox, agent=Agent(), guardian=guardian, settings=SETTINGS, reserve_port=lambda: 4711, notice=said.append
        )

    return Served()


def test_all_that_is_asked_is_done_by_the_loop_in_order(served):
    served.services.fence(1.0)
    served.services.say("store back")
    served.services.set_last_act("module:Store", b"seat")
    assert (served.guardian.told, served.said) == ([], [])
    served.mailbox.turn()
    fence, (store, seat, settings) = served.guardian.told
    assert (fence, store, seat, served.said) == (1.0, "module:Store", b"seat", ["store back"])
    assert msgspec.json.decode(settings, type=RendezvousSettings) == SETTINGS


def test_asking_for_the_pulse_makes_the_loop_turn(served):
    assert served.services.ticked_s() == 7.5
    assert len(served.mailbox.posted) == 1


def test_the_port_is_whatever_the_launcher_holds(served):
    assert served.services.reserve_port() == 4711


def test_each_round_has_a_port_of_its_own_and_the_last_is_given_back():
    held = RoundPort(None)
    first = held.renew(WaitBudget())
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", first))
    second = held.renew(WaitBudget())
    assert second
    held.close()
    held.close()


def test_the_port_that_the_user_chose_can_be_held_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        held = RoundPort(port)
        with pytest.raises(ConfigError, match=str(port)):
            held.renew(WaitBudget())
    assert held.renew(WaitBudget()) == held.renew(WaitBudget()) == port
    held.close()
