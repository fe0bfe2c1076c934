"""The agent's side of its rendezvous: each event reaches whom it is for, on the loop, and the port of rank 0."""

import socket
import threading

import msgspec
import pytest

from elastic_core import messages as m
from elastic_core.agent.port import HeldPort
from elastic_core.errors import BackendUnavailableError, ConfigError, ElasticError, WaitCancelledError
from elastic_core.launcher import round_maker
from elastic_core.launcher.agent_side import RunSide
from elastic_core.launcher.round_maker import RoundMaker, RoundPort
from elastic_core.moments import AnswersGathered, Concluded, NodesAsked
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.rendezvous.blocking import HandlerServices
from elastic_core.reports import NodeReport
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousInfo, RendezvousSettings
from elastic_plugin_kit import sample_failure
from ports import free_port
from support import Lines, wait_for

SETTINGS = RendezvousSettings(
    backend="redis", run_id="r", endpoint="h:1", min_nodes=1, max_nodes=1, local_world_size=1, options={"db": 3}
)


class Loop:
    """A reactor of which only the mailbox and the timers are needed."""

    turned_s = 7.5

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

    settings = SETTINGS
    use_agent_store = False

    def __init__(self):
        self.given = []

    def __getattr__(self, name):
        return lambda *args: self.given.append((name, *args))


@pytest.fixture
def served():
    class Served:
        loop, noted, lines = Loop(), Noted(), Lines()
        port = RoundPort(None, lines)
        side = RunSide(
            loop, agent=noted, guardian=noted, handler=noted, feed=noted, log=lines,
            rounds=RoundMaker(loop, SETTINGS, handler=noted, port=port, masters=None, feed=noted),
            backend=PluginLabel("backend", "mine", "acme 1.0", hint="look"), faults=PluginFaults(),
        )  # fmt: skip

    yield Served
    Served.port.close()


def test_the_notice_of_a_handler_is_printed_by_the_loop(served):
    class Handler:
        wait = WaitBudget()

    services = HandlerServices(served.side, Handler())
    services.notice("store back")
    assert served.lines == []
    served.loop.turn()
    assert served.lines == ["store back"]


def test_what_the_rounds_ask_goes_to_whom_it_is_for(served):
    report = NodeReport(node_id="a")
    asked, gathered = NodesAsked(serial=3, topic="t"), AnswersGathered(serial=3, topic="t", answers={"a": b"1"})
    concluded = Concluded(serial=3, topic="t", data=b"c")
    served.side.take(m.Fenced(until_s=1.0))
    served.side.take(m.SeatHeld(store="module:Store", seat=b"seat"))
    served.side.take(m.DecisionAsked(reports=(report,), history=(sample_failure(),), question="1 n"))
    for moment in (asked, gathered, concluded):
        served.side.take(moment)
    fence, last_act, *rest = served.noted.given
    assert fence == ("fence", 1.0)
    assert last_act[:3] == ("last_act", "module:Store", b"seat")
    assert msgspec.json.decode(last_act[3], type=RendezvousSettings) == SETTINGS
    assert rest == [
        ("decide_for_run", (report,), (sample_failure(),), "1 n"),
        ("publish", asked),
        ("publish", gathered),
        ("publish", concluded),
    ]


def test_what_the_machine_is_to_know_is_dispatched(served):
    served.side.take(m.RendezvousLeft())
    assert served.noted.given == [("dispatch", m.RendezvousLeft())]


def test_asking_for_the_pulse_makes_the_loop_turn_only_for_a_handler_that_blocks(served):
    assert served.side.turned_s() == 7.5
    assert served.loop.posted == []
    assert HandlerServices(served.side, handler=None).ticked_s() == 7.5
    assert len(served.loop.posted) == 1


def test_a_round_without_a_port_gets_one_and_those_after_it_the_next_index(served):
    formed = []
    for _ in range(2):
        served.side.form(RendezvousInfo(rank=0, world_size=1), formed.append)
    assert [one.round.index for one in formed] == [0, 1]
    assert formed[0].round.master_addr == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", formed[1].round.master_port))


def test_a_port_that_is_refused_for_a_moment_is_tried_again_by_the_loop(served, monkeypatch):
    ports = []

    def refuse():
        raise ConfigError("no TCP port") from OSError(24, "too many open files")

    real = HeldPort.reserve
    monkeypatch.setattr(HeldPort, "reserve", refuse)
    served.side.reserve_port(ports.append)
    assert [delay_s for delay_s, _ in served.loop.later] == [0.5]
    served.loop.turn()
    assert served.lines == ["no TCP port: trying again for 30 s; this costs no restart"]
    monkeypatch.setattr(HeldPort, "reserve", real)
    served.loop.later.pop()[1]()
    assert is_held(*ports)


def renewed(held):
    """Return the port or the error of a request that the system does not put off."""
    answers = []
    held.renew(Loop().call_later, answers.append)
    (answer,) = answers
    return answer


def test_each_round_has_a_port_of_its_own_and_the_last_is_given_back():
    held = RoundPort(None, Lines())
    first = renewed(held)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", first))
    assert renewed(held)
    held.close()
    held.close()


def test_the_port_that_the_user_chose_can_be_held_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        held = RoundPort(port, Lines())
        assert str(port) in str(renewed(held))
    assert renewed(held) == renewed(held) == port
    held.close()


def on_thread(call):
    """Return a list that has the result or the error of a call on another thread once it has ended."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except ElasticError as err:
            outcome.append(err)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def resolved(rounds, loop, info):
    """Return the result of a handler's thread while the loop turns."""
    outcome = on_thread(lambda: rounds.resolve(info, WaitBudget()))
    wait_for(lambda: loop.turn() or outcome, what="the round")
    return outcome[0]


class Masters:
    """A hook's servers: they answer when the test does."""

    def __init__(self):
        self.waiting = []

    def shut(self, done):
        self.waiting.append(done)


def served_by(masters):
    loop, noted = Loop(), Noted()
    return loop, RoundMaker(loop, SETTINGS, handler=noted, port=RoundPort(None, Lines()), masters=masters, feed=noted)


def test_a_handlers_thread_blocks_until_the_loop_has_answered():
    masters = Masters()
    loop, rounds = served_by(masters)
    outcome = on_thread(lambda: rounds.await_port(WaitBudget()))
    wait_for(lambda: loop.posted, what="the question to be posted")
    loop.turn()
    assert outcome == []
    masters.waiting[0](BackendUnavailableError("port taken"))
    wait_for(lambda: outcome, what="the call to return")
    assert isinstance(outcome[0], BackendUnavailableError)


def test_a_cancelled_wait_for_the_loop_ends_at_once():
    wait = WaitBudget()
    loop, rounds = served_by(Masters())
    outcome = on_thread(lambda: rounds.await_port(wait))
    wait_for(lambda: loop.posted, what="the question to be posted")
    wait.cancel()
    wait_for(lambda: outcome, what="the cancelled call to return")
    assert isinstance(outcome[0], WaitCancelledError)


@pytest.fixture
def chosen():
    """The side of a node whose user chose where rank 0 is, with its loop, what it was given and the place."""
    made = []

    def make(address, *, rank=0, nodes=1, use_agent_store=False):
        number = free_port("")
        noted, loop = Noted(), Loop()
        noted.use_agent_store = use_agent_store
        made.append(port := RoundPort(number, Lines()))
        settings = msgspec.structs.replace(SETTINGS, master_addr=address, master_port=number, max_nodes=nodes)
        rounds = RoundMaker(loop, settings, handler=noted, port=port, masters=None, feed=noted)
        return rounds, loop, RendezvousInfo(rank=rank, world_size=nodes, master_addr=address, master_port=number)

    yield make
    for port in made:
        port.close()


def is_held(port):
    with socket.socket() as other:
        try:
            other.bind(("", port))
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("address", "rank", "use_agent_store", "held"),
    [
        ("127.0.0.1", 0, False, True),
        ("localhost", 0, False, True),
        (socket.gethostname(), 0, False, True),
        ("192.0.2.7", 0, False, False),  # the worker will listen elsewhere, or not at all
        ("127.0.0.1", 1, False, False),  # of another node on this host
        ("127.0.0.1", 0, True, False),  # the handler's own store listens there
    ],
)
def test_a_chosen_port_is_held_where_rank_0_of_this_node_will_listen(chosen, address, rank, use_agent_store, held):
    side, loop, info = chosen(address, rank=rank, nodes=rank + 1, use_agent_store=use_agent_store)
    assert resolved(side, loop, info).round.master_addr == address
    assert is_held(info.master_port) is held
    formed = []
    side.form(info, formed.append)
    assert (formed[0].round.master_addr, formed[0].round.master_port) == (address, info.master_port)
    assert is_held(info.master_port) is held


def test_a_port_that_the_handler_chose_is_its_own(chosen):
    side, loop, info = chosen("127.0.0.1")
    other = msgspec.structs.replace(info, master_port=free_port(""))
    assert resolved(side, loop, other).round.master_port == other.master_port
    assert not is_held(other.master_port)


def test_a_chosen_port_is_held_where_the_handler_reaches_this_node_by_loopback(chosen):
    side, loop, info = chosen("name-that-is-for-others.test")
    local = msgspec.structs.replace(info, master_addr="127.0.0.1")
    assert resolved(side, loop, local).round.master_port == info.master_port
    assert is_held(info.master_port)


def test_a_second_run_with_the_same_address_and_port_is_refused(chosen):
    side, loop, info = chosen("127.0.0.1")
    resolved(side, loop, info)
    second, loop, _ = chosen("127.0.0.1")
    second._settings = side._settings
    second._port = RoundPort(info.master_port, Lines())
    words = f"--master-port {info.master_port} is in use on this host"
    assert words in str(resolved(second, loop, info))
    formed = []
    second.form(info, formed.append)
    assert words in str(formed[0])


@pytest.mark.parametrize("own", [True, False])
def test_a_name_server_that_takes_its_time_does_not_hold_the_loop_up(chosen, monkeypatch, own):
    asked = threading.Event()

    def is_this_host(host, *, look_up=True):
        return own if look_up and asked.wait(60) else None

    monkeypatch.setattr(round_maker, "is_this_host", is_this_host)
    side, loop, info = chosen("node0.example")
    formed = []
    side.form(info, formed.append)
    assert (formed, loop.posted) == ([], [])
    asked.set()
    wait_for(lambda: loop.posted)
    loop.turn()
    assert formed[0].round.master_port == info.master_port
    assert is_held(info.master_port) is own


def test_without_a_thread_for_the_name_the_round_is_made_all_the_same(chosen, monkeypatch):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(round_maker, "is_this_host", lambda host, look_up=True: None)
    monkeypatch.setattr(threading.Thread, "start", none_left)
    side, _, info = chosen("node0.example")
    formed = []
    side.form(info, formed.append)
    assert formed[0].round.master_addr == "node0.example"


def test_what_a_call_raises_is_a_line_with_whose_it_is_which_call_it_was_where_and_what_to_do(served):
    fault = served.side.raised("renew", KeyError("seat"), "; the run goes on")
    assert fault.text == "renew of backend 'mine' (acme 1.0) raised KeyError: 'seat'; the run goes on. Try: look"
    assert not fault.again
    assert served.side.raised("renew", KeyError("seat")).again
