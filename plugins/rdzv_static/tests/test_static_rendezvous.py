"""The static backend: what it makes of what it is told, and what it refuses."""

import socket
import threading

import pytest

from elastic_backend_net.endpoint import Address
from elastic_core.api import API_VERSION, ConfigError, RendezvousHandler, RendezvousInfo, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, WaitCancelledError
from elastic_rdzv_static import handler as handler_module
from elastic_rdzv_static.handler import DEFAULT_PORT, StaticRendezvous


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """The addresses of names: each is this host's, unless a test says otherwise; None: it does not resolve."""
    found: dict[str, str | None] = {}

    def resolve(host, port, *, wait, timeout_s):
        if (ip := found.get(host, "127.0.0.1")) is None:
            raise BackendUnavailableError(f"cannot resolve {host!r} (Name or service not known) after 0.0 s")
        return [Address(family=socket.AF_INET, sockaddr=(ip, port))]

    monkeypatch.setattr(handler_module, "resolve", resolve)
    return found


def settings(**given: object) -> RendezvousSettings:
    base: dict[str, object] = {
        "backend": "static",
        "run_id": "none",
        "endpoint": "node0.example:1234",
        "min_nodes": 2,
        "max_nodes": 2,
        "local_world_size": 4,
        "node_rank": 1,
    }
    return RendezvousSettings(**(base | given))  # type: ignore[arg-type]  # values vary with the test


def formed(**given: object) -> RendezvousInfo:
    return StaticRendezvous(settings(**given)).next_rendezvous()


def test_it_is_a_handler_that_states_its_version():
    assert issubclass(StaticRendezvous, RendezvousHandler)
    assert StaticRendezvous.api_version == API_VERSION
    assert not StaticRendezvous.capabilities


def test_the_round_is_what_the_node_was_told():
    info = formed()
    assert (info.rank, info.world_size) == (1, 2)
    assert (info.master_addr, info.master_port) == ("node0.example", 1234)
    assert info.store is None
    assert info.members == ()  # every node has as many workers as this one


def test_the_world_has_the_maximum_of_nnodes_as_in_torch():
    assert formed(min_nodes=1, max_nodes=3, node_rank=2).world_size == 3


def test_each_round_is_the_same_with_a_higher_token():
    handler = StaticRendezvous(settings())
    rounds = [handler.next_rendezvous() for _ in range(3)]
    assert [r.round_token for r in rounds] == [1, 2, 3]
    assert {(r.rank, r.world_size, r.master_addr, r.master_port) for r in rounds} == {(1, 2, "node0.example", 1234)}


def test_it_is_never_closed_nobody_waits_and_no_agent_hosts_a_store():
    handler = StaticRendezvous(settings())
    handler.set_closed()
    assert not handler.is_closed()
    assert handler.num_nodes_waiting() == 0
    assert handler.use_agent_store is False
    assert handler.shutdown()
    assert handler.get_backend() == "static"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("host", ("host", DEFAULT_PORT)),
        (" host:80 ", ("host", 80)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("::1", ("::1", DEFAULT_PORT)),
        ("[fe80::1]", ("fe80::1", DEFAULT_PORT)),
        ("[fe80::1]:99", ("fe80::1", 99)),
    ],
)
def test_the_endpoint_says_where_rank_0_is(endpoint, expected):
    info = formed(endpoint=endpoint, master_addr="other", master_port=1)
    assert (info.master_addr, info.master_port) == expected


@pytest.mark.parametrize("endpoint", ["host:", ":80", "host:0", "host:65536", "host:x", "[::1]x", "[::1]:", "[]:3"])
def test_a_malformed_endpoint_is_named(endpoint):
    with pytest.raises(ConfigError, match="endpoint") as caught:
        StaticRendezvous(settings(endpoint=endpoint))
    assert repr(endpoint) in str(caught.value)
    assert "Try: HOST:29500" in str(caught.value)


def test_without_endpoint_master_address_and_port_count():
    info = formed(endpoint="", master_addr="m", master_port=7)
    assert (info.master_addr, info.master_port) == ("m", 7)
    assert formed(endpoint="", master_addr="m").master_port == DEFAULT_PORT


def test_several_nodes_must_be_told_where_node_0_is():
    with pytest.raises(ConfigError, match=r"no address is given for node 0 of 2.*Try: --master-addr"):
        StaticRendezvous(settings(endpoint=""))


def test_one_node_finds_itself():
    assert formed(endpoint="", min_nodes=1, max_nodes=1, node_rank=0).master_addr == "127.0.0.1"


@pytest.mark.parametrize("rank", [-1, 2, 17])
def test_a_rank_outside_of_the_run_is_refused(rank):
    with pytest.raises(ConfigError, match=f"--node-rank: {rank}; expected 0 to 1 in a run of 2 nodes"):
        StaticRendezvous(settings(node_rank=rank))


def test_a_node_without_rank_is_refused():
    with pytest.raises(ConfigError, match=r"no rank is given for this node; expected 0 to 1.*Try: --node-rank"):
        StaticRendezvous(settings(node_rank=None))


def test_the_option_gives_the_rank_where_no_flag_does():
    assert formed(node_rank=None, options={"rank": 0}).rank == 0
    assert formed(node_rank=1, options={"rank": 1}).rank == 1


def test_two_different_ranks_are_refused():
    with pytest.raises(ConfigError, match="--node-rank: 0, and rank=1 in --rdzv-conf; expected one rank"):
        StaticRendezvous(settings(node_rank=0, options={"rank": 1}))


def test_watch_ends_when_the_agent_cancels():
    handler = StaticRendezvous(settings())
    handler.wait = WaitBudget()
    ended = threading.Event()

    def watch() -> None:
        with pytest.raises(WaitCancelledError):
            handler.watch(3600)
        ended.set()

    thread = threading.Thread(target=watch)
    thread.start()
    handler.wait.cancel()
    assert ended.wait(5)
    thread.join()


def test_a_cancelled_wait_forms_no_round():
    handler = StaticRendezvous(settings())
    handler.wait.cancel()
    with pytest.raises(WaitCancelledError):
        handler.next_rendezvous()


class Voice:
    """Keeps the lines for people."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str) -> None:
        self.lines.append(text)


def said(**given: object) -> list[str]:
    handler = StaticRendezvous(settings(**given))
    handler.services = voice = Voice()  # type: ignore[assignment]  # no other service is used here
    for _ in range(2):
        handler.next_rendezvous()
        handler.watch(0.0)
    return voice.lines


@pytest.mark.parametrize(
    ("rank", "count", "others"), [(0, 2, "node 1"), (0, 8, "nodes 1 to 7"), (1, 2, "node 0"), (7, 8, "node 0")]
)
def test_a_node_says_once_where_its_workers_meet_the_others_and_for_whom_they_wait(rank, count, others):
    (line,) = said(node_rank=rank, max_nodes=count)
    assert line == f"static: node {rank} of {count}; workers meet at node0.example:1234 and wait there for {others}"


def test_one_node_waits_for_nobody_and_says_nothing():
    assert said(node_rank=0, min_nodes=1, max_nodes=1) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_an_address_that_no_other_host_reaches_is_told(address):
    (line,) = said(endpoint="", master_addr=address)
    assert "; nodes on other hosts can't reach that address. Try: --master-addr " in line
    assert ("[::1]:29500 and" in line) is (address == "::1")


# --- a name that is for the others


def test_workers_beside_rank_0_need_no_name_that_resolves(names):
    names["node0.example"] = None
    handler = StaticRendezvous(settings(node_rank=0))
    assert {handler.next_rendezvous().master_addr for _ in range(2)} == {"127.0.0.1"}
    assert formed(node_rank=1).master_addr == "node0.example"
    (line,) = said(node_rank=0)
    assert line == (
        "static: node 0 of 2; workers meet at node0.example:1234 and wait there for node 1; this node cannot "
        "resolve 'node0.example' (Name or service not known) after 0.0 s, so its workers connect to 127.0.0.1"
    )


def test_nor_a_name_that_leads_to_an_address_of_this_node(names):
    names["node0.example"] = "198.51.100.7"  # of a range for examples
    assert formed(node_rank=0).master_addr == "127.0.0.1"
    (line,) = said(node_rank=0)
    assert "; 'node0.example' leads to 198.51.100.7, no address of this node, so" in line


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.0.1.1", "0.0.0.0"])
def test_a_name_that_leads_to_this_node_stays(names, ip):
    names["node0.example"] = ip
    assert formed(node_rank=0).master_addr == "node0.example"
    assert "so its workers" not in said(node_rank=0)[0]


def test_one_node_alone_needs_no_name_either(names):
    names["node0.example"] = None
    assert formed(node_rank=0, min_nodes=1, max_nodes=1).master_addr == "127.0.0.1"
