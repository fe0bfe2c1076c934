"""The kit for servers at MASTER_PORT: tests that a `MasterServer` listens for each round, and leaves nothing behind."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import ClassVar, Final

import pytest

from elastic_core.api import ElasticError
from elastic_core.api.starters import AgentLoop, MasterServer
from elastic_core.api.stores import BackendUnavailableError
from elastic_plugin_kit.conformance.kit import Kit
from elastic_plugin_kit.conformance.starter import QUICK_S, is_alive
from elastic_plugin_kit.real_loop import RealLoop

MakeServer = Callable[[AgentLoop], MasterServer]
"""What the fixture `make_server` gives: called with a loop, it returns a new server."""

CONNECT_S: Final = 5.0
END_S: Final = 10.0


class Node:
    """As much of an agent as a server sees: its loop, and the port that it holds for a round.

    Args:
        server: Asked as a round would.
        loop: Its own.
        ready_s: How long an answer may take.
    """

    def __init__(self, server: MasterServer, loop: RealLoop, ready_s: float) -> None:
        self.server = server
        self.loop = loop
        self.took_s: list[float] = []
        self._ready_s = ready_s
        self._held = socket.socket()

    def hold(self, port: int = 0) -> int:
        """Hold a port as the agent does, in place of the last one, and return it."""
        self._held.close()
        self._held = socket.socket()
        if port:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("0.0.0.0", port))
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._held.setsockopt(socket.SOL_SOCKET, option, 1)
        held: int = self._held.getsockname()[1]
        return held

    def open(self, port: int) -> ElasticError | None:
        """Have the server listen, and return its answer."""
        return self._answer("open", lambda done: self.server.open(port, done))

    def shut(self) -> ElasticError | None:
        """Have nothing listen, and return the answer."""
        return self._answer("shut", self.server.shut)

    def _answer(self, what: str, ask: Callable[[Callable[[ElasticError | None], None]], None]) -> ElasticError | None:
        answers: list[ElasticError | None] = []
        began_s = time.monotonic()
        ask(answers.append)
        self.took_s.append(time.monotonic() - began_s)
        answered = self.loop.turn_until(lambda: bool(answers), within_s=self._ready_s)
        assert answered, (
            f"`{what}` has not called `done` within {self._ready_s:g} s; expected the call: {self.loop.notices}"
        )
        return answers[0]

    def close(self) -> None:
        """End whatever listens."""
        self.server.close()
        self._held.close()


def listens(port: int) -> bool:
    """Return whether the port accepts connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), CONNECT_S):
        return True
    return False


class MasterServerConformance(Kit):
    """Subclass it and give the fixture `make_server`: a function from a loop to a new server."""

    page: ClassVar[str] = "master_server.md"

    ready_s = 60.0
    """How long the server may take to listen."""

    @pytest.fixture
    def make_server(self) -> MakeServer:
        """Return a function that makes a server: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_server`: a function from a loop")

    @pytest.fixture
    def node(self, make_server: MakeServer) -> Iterator[Node]:
        """Return an agent with a server of this test's own."""
        loop = RealLoop()
        node = Node(make_server(loop), loop, self.ready_s)
        yield node
        node.close()

    def test_it_listens_when_it_has_answered(self, node: Node) -> None:
        """At the port that the agent holds; workers start then, and connect."""
        node.server.prepare()
        port = node.hold()
        assert node.open(port) is None, "`open` failed for a port that the agent holds; expected `done(None)`"
        assert listens(port), "no server listens after `open` called `done`; expected one at the port"

    def test_each_round_has_a_port_of_its_own(self, node: Node) -> None:
        """Nothing listens where the last round met: its workers are gone, and what they have left must be."""
        first = node.hold()
        node.open(first)
        assert node.shut() is None, "`shut` failed; expected `done(None)`"
        assert not listens(first), "the port accepts connections after `shut`; expected none"
        second = node.hold()
        assert node.open(second) is None, "`open` failed for a second round; expected `done(None)`"
        assert listens(second), "no server listens in the second round; expected one at the new port"

    def test_a_chosen_port_serves_round_after_round(self, node: Node) -> None:
        """`--master-port` is held again after `shut`."""
        port = node.hold()
        for _ in range(2):
            assert node.open(port) is None, "`open` failed for the same port in the next round; expected `done(None)`"
            assert node.shut() is None, "`shut` failed; expected `done(None)`"
            node.hold(port)

    def test_shutting_what_is_not_open_is_answered(self, node: Node) -> None:
        """As it is asked before the first round, and on nodes that never have rank 0."""
        assert node.shut() is None, "`shut` failed before any `open`; expected `done(None)`"

    def test_a_port_that_is_taken_is_an_error_with_its_reason(self, node: Node) -> None:
        """For people: it ends the run."""
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            error = node.open(taken.getsockname()[1])
        assert isinstance(error, BackendUnavailableError), (
            f"`open` with a port in use returned {error!r}; expected BackendUnavailableError"
        )
        assert str(error).strip(), "the error of `open` has no text; expected the reason"

    def test_every_call_is_quick(self, node: Node) -> None:
        """All that the agent does waits for it."""
        node.open(node.hold())
        node.shut()
        assert max(node.took_s) < QUICK_S, f"a call took {max(node.took_s):.1f} s; expected less than {QUICK_S:g} s"

    def test_the_end_leaves_nothing(self, make_server: MakeServer) -> None:
        """No listener, no process, no reader and no timer; a second `close` does nothing."""
        loop = RealLoop()
        node = Node(make_server(loop), loop, self.ready_s)
        port = node.hold()
        node.open(port)
        pids = frozenset(node.server.pids())
        node.close()
        node.close()
        gone = loop.turn_until(lambda: not listens(port) and not any(map(is_alive, pids)), within_s=END_S)
        assert gone, (
            f"after `close` the port accepts connections, or some of the processes {sorted(pids)} run; expected neither"
        )
        assert not loop.readers, "after `close` it still has readers on the loop; expected none"
        assert all(timer.cancelled for timer in loop.timers), (
            "after `close` it still has timers on the loop; expected none"
        )
