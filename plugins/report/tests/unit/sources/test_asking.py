"""Ledgers that running agents send, over TCP and over their sockets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.api import encode_json
from elastic_core.api.feed import AgentChannel, Answer
from elastic_ops.control_plane.handlers import Offer, Request, Response
from elastic_ops.control_plane.listeners import OwnerServer
from elastic_ops.logs.serving import LogServer
from elastic_report.ledger.document import Ledger
from elastic_report.ledger.states import LedgerState as S
from elastic_report.sources.asking import Place, ask
from run_kit import Node

SECRET = "of this run"  # no password


def sent() -> str:
    ledger = Node("n1").spend(S.RENDEZVOUS, 10).join(0, 0, ("n1",)).spend(S.PRODUCTIVE, 50).ledger()
    lines = [encode_json(ledger.begin), *map(encode_json, ledger.lines)]
    return json.dumps({"state": "productive", "lines": "".join(line.decode() + "\n" for line in lines)})


@pytest.fixture
def server() -> Iterator[LogServer]:
    channel = AgentChannel(secret=SECRET, incarnation="i1", port=0)
    serving = LogServer(
        0, channel=lambda: channel, run_dir=str, offers=lambda: {"ledger": lambda params: Answer(content=sent())}
    )
    yield serving
    serving.shutdown()


def place(server: LogServer, incarnation: str = "i1") -> Place:
    return Place(node_id="n1", address="127.0.0.1", port=server.port, incarnation=incarnation)


def test_an_agent_of_another_host_sends_its_ledger(server: LogServer) -> None:
    (answer,) = ask([place(server)], SECRET)
    assert isinstance(answer, Ledger)
    assert answer.begin.node_id == "n1"
    assert len(answer.lines) == 3


@pytest.mark.parametrize(("secret", "incarnation"), [("another", "i1"), ("", "i1"), (SECRET, "i2")])
def test_only_agents_and_readers_of_the_run_exchange_it(server: LogServer, secret: str, incarnation: str) -> None:
    (answer,) = ask([place(server, incarnation)], secret)
    assert answer == "it does not know the run's secret, or is not the agent that is meant"


def test_an_agent_that_does_not_listen_or_has_no_ledger() -> None:
    channel = AgentChannel(secret=SECRET, incarnation="i1", port=0)
    without = LogServer(0, channel=lambda: channel, run_dir=str)
    try:
        (answer,) = ask([place(without)], SECRET)
        assert isinstance(answer, str)
    finally:
        without.shutdown()
    closed, none = ask([place(without), Place(node_id="n2")], SECRET)
    assert closed == "Connection refused"
    assert none == "its agent has no port for requests"


def test_an_agent_of_this_host_is_asked_at_its_socket(tmp_path: Path) -> None:
    class Agent(Offer):
        def find(self, name: str) -> object:  # type: ignore[override]  # of a handler
            def handle(request: Request, response: Response) -> None:
                response.set_content(sent(), "application/json")

            return handle if name == "ledger" else None

    tmp_path.chmod(0o700)
    serving = OwnerServer(str(tmp_path / "agent.sock"), Agent)
    try:
        (answer,) = ask([Place(node_id="n1", control=serving.path)])
        assert isinstance(answer, Ledger)
    finally:
        serving.shutdown()
    (gone,) = ask([Place(node_id="n1", control=str(tmp_path / "none.sock"))])
    assert gone == "No such file or directory"
