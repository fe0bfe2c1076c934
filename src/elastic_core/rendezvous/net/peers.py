"""What agents ask each other: whether they reach the store. One datagram there, one back.

An agent that can't reach the store must know whether it is the store that is away, or the agent itself that is cut off;
the others of its round can tell. Who asks must know the run's secret, which only those know who could read the store.
"""

import errno
import hmac
import os
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Protocol

import msgspec

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.encoding import decode_json
from elastic_core.errors import ConfigError
from elastic_core.rendezvous.net.endpoint import is_ip
from elastic_core.types import Record

_LARGEST_BYTES: Final = 512
_IP_PKTINFO: Final = 8
"""Of Linux; Python's `socket` does not name it."""
_CLOSE_S: Final = 1.0
MOST_NAMES: Final = 1_024
"""Hosts whose addresses are remembered: a run of weeks may see ever new ones."""
REPEAT_S: Final = 0.05
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

    It is there at every address of this host, whichever of them the roster gives, and answers from the one that was
    asked: whoever asks takes no other's answer.

    Args:
        port: The UDP port; 0: a free one.
        secret: Gives the run's secret; empty: not known yet, nobody gets an answer.
        reached_s: Gives when the store last answered, in monotonic seconds; None: never.
        away: Gives whether the last try of the store failed.
        asked: Called on each question: the agent should try the store now.

    Raises:
        ConfigError: the port can't be bound.
    """

    def __init__(
        self,
        port: int = 0,
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
        self._socket = _bound(port) if port else _bound_anywhere()
        self.port: int = self._socket.getsockname()[1]
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="elastic-peers", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        room = socket.CMSG_SPACE(20)  # the larger of the two kinds
        while not self._closed:
            try:
                raw, ancillary, _, sender = self._socket.recvmsg(_LARGEST_BYTES, room)
            except OSError:
                return
            answer = self._answer(raw)
            if answer is not None and not self._closed:
                with suppress(OSError):  # who asked is gone, or there is no way back
                    self._socket.sendmsg([answer], _from_asked(ancillary), 0, sender)

    def _answer(self, raw: bytes) -> bytes | None:
        secret = self._secret()
        try:
            question = decode_json(raw, _Question)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not secret or not hmac.compare_digest(question.secret.encode(), secret.encode()):
            return None
        self._asked()
        reached_s = self._reached_s()
        age_s = None if reached_s is None else self._clock.monotonic_s() - reached_s
        return msgspec.json.encode(_Answer(serial=question.serial, age_s=age_s, away=self._away()))

    def close(self) -> None:
        """Answer no more, and give the port back; idempotent."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, whose call holds the port
        self._thread.join(_CLOSE_S)
        self._socket.close()


def _bound_anywhere() -> socket.socket:
    """Return one at a port that a TCP server can have, too: Linux gives connections the other half of its ports."""
    with suppress(ConfigError, OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("", 0))
        return _bound(server.getsockname()[1])
    return _bound(0)


def _bound(port: int) -> socket.socket:
    """Return a socket at every address, of both families where the host has both, that learns which one was asked."""
    problem = OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        with ExitStack() as undo:
            try:
                sock = undo.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
                else:
                    sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
                sock.bind((host, port))
                undo.pop_all()
                return sock
            except OSError as err:
                problem = err
                if err.errno == errno.EADDRINUSE:
                    break
    if problem.errno == errno.EADDRINUSE:
        raise ConfigError(
            f"--agent-port {port} is in use on this host",
            hint=f"end what uses it (ss -lunp 'sport = :{port}'), or choose another: each agent of a host has its own",
        ) from problem
    raise ConfigError(
        f"--agent-port {port}: the UDP port can't be bound on this host ({problem.strerror})",
        hint="choose an --agent-port from 1024 to 65535, or leave it out",
    ) from problem


def _from_asked(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return what has the kernel send from the address at which a datagram came in; the way out is its own choice."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):  # the address, the interface
            return [(level, kind, data[:16] + bytes(4))]
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):  # the interface, our address, the one in the header
            return [(level, kind, bytes(4) + data[4:8] + bytes(4))]
    return []


# --- asking


class Peer(Protocol):
    """Another agent: its host, and the port that its `PeerEndpoint` has."""

    @property
    def host(self) -> str:
        """Its address or name."""
        ...

    @property
    def agent_port(self) -> int:
        """The UDP port."""
        ...


class PeerNames:
    """Looks up names of hosts, each on a thread of its own: name servers may be away together with the store.

    Threading: one thread at a time.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._found: dict[str, tuple[str, ...]] = {}
        self._pending: set[str] = set()

    def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host; none: not known yet, ask again."""
        if is_ip(host):
            return (host,)
        if host and host not in self._found and host not in self._pending:
            self._pending.add(host)
            if len(self._found) >= MOST_NAMES:
                self._found.clear()
            threading.Thread(target=self._look_up, args=(host,), name="elastic-names", daemon=True).start()
        return self._found.get(host, ())

    def _look_up(self, host: str) -> None:
        with suppress(OSError, UnicodeError):  # the next question asks again
            found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
            self._found[host] = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        self._pending.discard(host)


def ask_peers(
    peers: Sequence[Peer],
    secret: str,
    *,
    until_s: float,
    names: PeerNames | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[int, int]:
    """Return how many of the peers could tell, and how many of those have reached the store since they were asked.

    The others of those who could tell have tried, and failed. Blocks until all could tell, or `until_s` of the clock.
    """
    with _Inquiry(peers, secret, names or PeerNames(), clock) as inquiry:
        while len(inquiry.answered) < len(peers) and (left_s := until_s - clock.monotonic_s()) > 0:
            inquiry.send()
            inquiry.collect(min(left_s, REPEAT_S))
        return len(inquiry.answered), len(inquiry.reaching)


class _Inquiry:
    """One question to some peers, at each address that they have."""

    def __init__(self, peers: Sequence[Peer], secret: str, names: PeerNames, clock: Clock) -> None:
        self.answered: set[int] = set()
        self.reaching: set[int] = set()
        self._peers = peers
        self._names = names
        self._clock = clock
        self._asked_s = clock.monotonic_s()
        self._serial = os.urandom(8).hex()
        self._question = msgspec.json.encode(_Question(secret=secret, serial=self._serial))
        self._sockets: dict[int, list[socket.socket]] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Inquiry":
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for sock in (each for sockets in self._sockets.values() for each in sockets):
            sock.close()

    def send(self) -> None:
        """Ask whoever could not tell so far."""
        for index, peer in enumerate(self._peers):
            if index in self.answered:
                continue
            if not self._sockets.get(index):
                self._sockets[index] = self._opened(index, peer)
            for sock in self._sockets[index]:
                with suppress(OSError):  # nobody there, or no way there
                    sock.send(self._question)

    def _opened(self, index: int, peer: Peer) -> list[socket.socket]:
        """Return sockets that take answers of a peer's addresses alone."""
        sockets: list[socket.socket] = []
        for address in self._names.addresses(peer.host):
            try:
                sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
            except OSError:
                continue
            sock.setblocking(False)
            try:
                sock.connect((address, peer.agent_port))
            except OSError:  # no route: cut off, or the peer is
                sock.close()
                continue
            self._selector.register(sock, selectors.EVENT_READ, index)
            sockets.append(sock)
        return sockets

    def collect(self, timeout_s: float) -> None:
        """Take answers for so long, or until all could tell."""
        end_s = self._clock.monotonic_s() + timeout_s
        while len(self.answered) < len(self._peers) and (left_s := end_s - self._clock.monotonic_s()) > 0:
            for key, _ in self._selector.select(left_s):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    answer = decode_json(sock.recv(_LARGEST_BYTES), _Answer)
                except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                    continue  # refused, or not an answer of ours: the same as none
                if answer.serial == self._serial:
                    self._take(key.data, answer)

    def _take(self, index: int, answer: _Answer) -> None:
        reached = answer.age_s is not None and answer.age_s < self._clock.monotonic_s() - self._asked_s
        if reached:
            self.reaching.add(index)
        if reached or answer.away:
            self.answered.add(index)
