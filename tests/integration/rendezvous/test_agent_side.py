"""The agent's side of its rendezvous: each event reaches whom it is for, on the loop, and the port of rank 0."""

import socket

import msgspec
import pytest

from elastic_core import messages as m
from elastic_core.clock import WaitBudget
from elastic_core.errors import ConfigError
from elastic_core.launcher.agent_side import RoundPort, RunSide
from elastic_core.moments import StepsAsked, StepsSeen
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.rendezvous.blocking import HandlerServices
from elastic_core.reports import NodeReport, RunSteps
from elastic_core.testing import sample_failure
from elastic_core.types import RendezvousInfo, RendezvousSettings

SETTINGS = RendezvousSettings(
    backend="redis", run_id="r", endpoint="h:1", min_nodes=1, max_nodes=1, local_world_size=1, options={"db": 3}
)


class Loop:
    """A reactor of which only the mailbox and the timers are needed."""

    def __init__(self):
        self.posted, self.later = [], []

    def post(self, callback):
        self.posted.append(callback)

    def call_later(self, delay_s, callback):
        self.later.append((delay_s, callback))

    def turn(self):
        while self.posted:
            self.posted.pop(0)()


class Noted:
    """Takes the place of agent, guardian, feed and handler: notes what each is given."""

    turned_s = 7.5
    settings = SETTINGS

    def __init__(self):
        self.given = []

    def __getattr__(self, name):
        return lambda *args: self.given.append((name, *args))


@pytest.fixture
def served():
    class Served:
        loop, noted, lines = Loop(), Noted(), []
        port = RoundPort(None)
        side = RunSide(
            loop, agent=lambda: Served.noted, guardian=noted, handler=noted, settings=SETTINGS, port=port,
            masters=None, notice=lines.append, publish=noted.publish,
            backend=PluginLabel("backend", "mine", "acme 1.0", hint="look"), faults=PluginFaults(),
        )  # fmt: skip

    yield Served
    Served.port.close()


def test_all_that_a_handler_asks_is_done_by_the_loop_in_order(served):
    class Handler:
        wait = WaitBudget()

    services = HandlerServices(served.side, Handler())
    report, seen = NodeReport(node_id="a"), RunSteps(serial=3)
    services.fence(1.0)
    services.say("store back")
    services.set_last_act("module:Store", b"seat")
    services.decide([report], [sample_failure()], question="1 n")
    services.tell_steps(3)
    services.hear_steps(seen)
    assert (served.noted.given, served.lines) == ([], [])
    served.loop.turn()
    fence, last_act, *rest = served.noted.given
    assert (fence, served.lines) == (("fence", 1.0), ["store back"])
    assert last_act[:3] == ("last_act", "module:Store", b"seat")
    assert msgspec.json.decode(last_act[3], type=RendezvousSettings) == SETTINGS
    assert rest == [
        ("decide_for_run", (report,), (sample_failure(),), "1 n"),
        ("publish", StepsAsked(serial=3)),
        ("publish", StepsSeen(seen=seen)),
    ]
    assert services.reserve_port() > 0


def test_what_the_machine_is_to_know_is_dispatched(served):
    served.side.take(m.RendezvousLeft())
    assert served.noted.given == [("dispatch", m.RendezvousLeft())]


def test_asking_for_the_pulse_makes_the_loop_turn(served):
    assert served.side.turned_s() == 7.5
    assert len(served.loop.posted) == 1


def test_a_round_without_a_port_gets_one_and_those_after_it_the_next_index(served):
    formed = []
    for _ in range(2):
        served.side.form(RendezvousInfo(rank=0, world_size=1), formed.append)
    assert [round_.index for round_ in formed] == [0, 1]
    assert formed[0].master_addr == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", formed[1].master_port))


def test_a_port_that_is_refused_for_a_moment_is_tried_again_by_the_loop(served, monkeypatch):
    ports = []

    def refuse():
        raise ConfigError("no TCP port") from OSError(24, "too many open files")

    monkeypatch.setattr(served.port, "_renew", refuse)
    served.side.reserve_port(ports.append)
    assert [delay_s for delay_s, _ in served.loop.later] == [0.5]
    served.loop.turn()
    assert served.lines == ["no TCP port: trying again for 30 s; this costs no restart"]
    monkeypatch.setattr(served.port, "_renew", lambda: 4711)
    served.loop.later.pop()[1]()
    assert ports == [4711]


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


def test_what_a_call_raises_is_a_line_with_whose_it_is_which_call_it_was_where_and_what_to_do(served):
    fault = served.side.raised("renew", KeyError("seat"), "; the run goes on")
    assert fault.text == "renew of backend 'mine' (acme 1.0) raised KeyError: 'seat'; the run goes on. Try: look"
    assert not fault.again
    assert served.side.raised("renew", KeyError("seat")).again
