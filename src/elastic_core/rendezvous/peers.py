"""What agents ask each other: whether they reach the store. One datagram there, one back.

An agent that can't reach the store must know whether it is the store that is away, or the agent itself that is cut off;
the others of its round can tell. Who asks must know the run's secret, which only those know who could read the store.
"""

import hmac
import os
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.rendezvous.documents import RosterEntry
from elastic_core.types import Record

_LARGEST_BYTES = 512
REPEAT_S = 0.05
"""A datagram may be lost, and a peer may need a moment to try the store: the question is asked again after so long."""


class _Question(Record, frozen=True, kw_only=True):
    v: int = 1
    secret: str
    serial: str


class _Answer(Record, frozen=True, kw_only=True):
    """`age_s`: seconds since the store last answered, None: it never did; `away`: since then it was tried in vain."""

    v: int = 1
    serial: str
    age_s: float | None
    away: bool


class PeerEndpoint:
    """Answers the questions of others, on a thread of its own that sleeps in the kernel.

    Args:
        address: Of this host, to be bound; empty or not bindable: every address.
        secret: Gives the run's secret; empty: not known yet, nobody gets an answer.
        reached_s: Gives when the store last answered, in monotonic seconds; None: never.
        away: Gives whether the last try of the store failed.
        asked: Called on each question: the agent should try the store now.
    """

    def __init__(
        self,
        address: str,
        *,
        secret: Callable[[], str],
        reached_s: Callable[[], float | None],
        away: Callable[[], bool],
        asked: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Bind a port and begin to answer."""
        self._secret = secret
        self._reached_s = reached_s
        self._away = away
        self._asked = asked
        self._clock = clock
        self._socket = _bound(address)
        self.port: int = self._socket.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._serve, name="elastic-peers", daemon=True).start()

    def _serve(self) -> None:
        while not self._closed:
            try:
                raw, sender = self._socket.recvfrom(_LARGEST_BYTES)
            except OSError:
                return
            answer = self._answer(raw)
            if answer is not None and not self._closed:
                with suppress(OSError):  # who asked is gone, or there is no way back
                    self._socket.sendto(answer, sender)

    def _answer(self, raw: bytes) -> bytes | None:
        secret = self._secret()
        try:
            question = msgspec.json.decode(raw, type=_Question)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not secret or not hmac.compare_digest(question.secret.encode(), secret.encode()):
            return None
        self._asked()
        reached_s = self._reached_s()
        age_s = None if reached_s is None else self._clock.monotonic_s() - reached_s
        return msgspec.json.encode(_Answer(serial=question.serial, age_s=age_s, away=self._away()))

    def close(self) -> None:
        """Answer no more; idempotent."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()


def _bound(address: str) -> socket.socket:
    for family, host in ((_family(address), address), (socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        if not host:
            continue
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM)
        except OSError:
            continue
        try:
            sock.bind((host, 0))
        except OSError:
            sock.close()
            continue
        return sock
    raise OSError("no address of this host can be bound")


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def ask_peers(
    peers: Sequence[RosterEntry], secret: str, *, until_s: float, clock: Clock = SYSTEM_CLOCK
) -> tuple[int, int]:
    """Return how many of the peers could tell, and how many of those have reached the store since they were asked.

    The others of those who could tell have tried, and failed. Blocks until all could tell, at most until `until_s` of
    the clock.
    """
    asked_s = clock.monotonic_s()
    serial = os.urandom(8).hex()
    question = msgspec.json.encode(_Question(secret=secret, serial=serial))
    answered: set[int] = set()
    reaching: set[int] = set()
    with selectors.DefaultSelector() as selector:
        sockets = _open(peers, selector)
        try:
            while len(answered) < len(sockets) and (left_s := until_s - clock.monotonic_s()) > 0:
                for index, sock in sockets.items():
                    if index not in answered:
                        with suppress(OSError):  # nobody there, or no way there
                            sock.send(question)
                _collect(selector, min(left_s, REPEAT_S), serial, asked_s, clock, answered, reaching)
        finally:
            for sock in sockets.values():
                sock.close()
    return len(answered), len(reaching)


def _open(peers: Sequence[RosterEntry], selector: selectors.BaseSelector) -> dict[int, socket.socket]:
    sockets: dict[int, socket.socket] = {}
    for index, peer in enumerate(peers):
        try:
            sock = socket.socket(_family(peer.host), socket.SOCK_DGRAM)
        except OSError:
            continue
        sock.setblocking(False)
        try:
            sock.connect((peer.host, peer.agent_port))
        except OSError:  # no route: cut off, or the peer is
            sock.close()
            continue
        selector.register(sock, selectors.EVENT_READ, index)
        sockets[index] = sock
    return sockets


def _collect(
    selector: selectors.BaseSelector,
    timeout_s: float,
    serial: str,
    asked_s: float,
    clock: Clock,
    answered: set[int],
    reaching: set[int],
) -> None:
    end_s = clock.monotonic_s() + timeout_s
    while (left_s := end_s - clock.monotonic_s()) > 0:
        ready = selector.select(left_s)
        for key, _ in ready:
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                answer = msgspec.json.decode(sock.recv(_LARGEST_BYTES), type=_Answer)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue  # refused, or not an answer of ours: the same as none
            if answer.serial != serial:
                continue
            reached = answer.age_s is not None and answer.age_s < clock.monotonic_s() - asked_s
            if reached:
                reaching.add(key.data)
            if reached or answer.away:
                answered.add(key.data)
        if len(answered) == len(selector.get_map()):
            return
