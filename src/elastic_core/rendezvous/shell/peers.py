"""The exchange between members of a round: datagrams, each with a code over sender, addressee and content.

A sender without the run's secret gets no answer, and its answers are discarded. The secret itself is never sent: a
datagram begins with its code, under a key that is derived for questions or for answers. The content is that of
`rendezvous.shell.grants`.
"""

import errno
import hmac
import os
import random
import select
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import lru_cache
from math import ceil
from typing import Final

import msgspec

from elastic_core.errors import ConfigError
from elastic_core.rendezvous.address import is_ip
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import RosterEntry
from elastic_core.rendezvous.shell.grants import PeerAnswer, PeerExchange, PeerQuestion, PeerView
from elastic_core.system.clock import SYSTEM_CLOCK, Clock

_LARGEST_BYTES: Final = 65_536
_CODE_BYTES: Final = 32
_QUESTIONS: Final = b"elastic-core: question of a member by datagram, 2"
_ANSWERS: Final = b"elastic-core: answer of a member by datagram, 2"
_IP_PKTINFO: Final = 8
"""A constant of Linux that Python's `socket` lacks."""
_CLOSE_S: Final = 1.0
MOST_NAMES: Final = 1_024
"""The most hosts with cached addresses: a run of weeks may see ever more hosts."""
_AT_ONCE: Final = 64
"""The most datagrams to read before other work."""
_QUESTION: Final = msgspec.msgpack.Decoder(PeerQuestion)
_ANSWER: Final = msgspec.msgpack.Decoder(PeerAnswer)


@lru_cache(maxsize=8)
def _key(secret: str, purpose: bytes) -> bytes:
    return hmac.digest(secret.encode(), purpose, "sha256")


def sealed(message: PeerQuestion | PeerAnswer, secret: str) -> bytes:
    """Return a message as a datagram with its code."""
    body = msgspec.msgpack.encode(message)
    purpose = _QUESTIONS if isinstance(message, PeerQuestion) else _ANSWERS
    return hmac.digest(_key(secret, purpose), body, "sha256") + body


def opened(raw: bytes, secret: str) -> PeerQuestion | PeerAnswer | None:
    """Return the message of a datagram; `None` if its sender does not know the secret."""
    code, body = raw[:_CODE_BYTES], raw[_CODE_BYTES:]
    if not secret or not body:
        return None
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        if hmac.compare_digest(code, hmac.digest(_key(secret, _QUESTIONS), body, "sha256")):
            return _QUESTION.decode(body)
        if hmac.compare_digest(code, hmac.digest(_key(secret, _ANSWERS), body, "sha256")):
            return _ANSWER.decode(body)
    return None


class PeerEndpoint:
    """Sends questions and answers for one member, on its own thread, which sleeps in the kernel.

    It listens on every address of this host, and replies from the address that received the question: a firewall that
    saw the question lets only such an answer pass.

    Threading: `update` and `close` from any thread; `on_event` is called on the endpoint's own thread.

    `port` is for UDP; 0 means a free port. `view` is the member's first state.

    Raises:
        ConfigError: the port can't be bound.
    """

    def __init__(
        self, port: int = 0, *, view: PeerView, on_event: Callable[[protocol.Event], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Bind a port and start the thread."""
        self._exchange = PeerExchange(view, random.Random())
        self._view = view
        self._on_event = on_event
        self._clock = clock
        self._lock = threading.Lock()
        self._names = PeerNames()
        self._socket = _bound(port) if port else _bound_anywhere()
        self._socket.setblocking(False)
        self._mapped = self._socket.family == socket.AF_INET6
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.port: int = self._socket.getsockname()[1]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="elastic-peers", daemon=True)
        self._thread.start()

    def update(self, view: PeerView) -> None:
        """Set the member's new state. Never blocks for long."""
        with self._lock:
            if view == self._view:
                return
            self._view = view
            before_s = self._exchange.due_s
            self._exchange.update(view, self._clock.monotonic_s())
            sooner = self._exchange.due_s < before_s
        if sooner:
            self._rouse()

    def _rouse(self) -> None:
        with suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._wake, 1)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closed.is_set():
            left_s = self._exchange.due_s - self._clock.monotonic_s()
            with suppress(OSError):
                # `due_s` is infinite while there is no question to send, and poll takes whole milliseconds.
                poll.poll(None if left_s > 3600 else max(0, ceil(left_s * 1000)))
            with suppress(OSError):  # BlockingIOError: a datagram or the timeout ended the poll
                os.eventfd_read(self._wake)
            if self._closed.is_set():
                return
            self._receive()
            self._ask()
            with self._lock:
                events = self._exchange.take_events()
            for event in events:
                self._on_event(event)

    def _ask(self) -> None:
        with self._lock:
            now_s, secret = self._clock.monotonic_s(), self._view.secret
            asked = self._exchange.ask(now_s) if now_s >= self._exchange.due_s else ()
        for entry, question in asked if secret else ():
            self._send_to(entry, sealed(question, secret))

    def _send_to(self, entry: RosterEntry, raw: bytes) -> None:
        for address in self._names.addresses(entry.host):
            if self._mapped or ":" not in address:
                mapped = f"::ffff:{address}" if self._mapped and ":" not in address else address
                with suppress(OSError):  # no route, or no listener: the same as no answer
                    self._socket.sendto(raw, (mapped, entry.agent_port))

    def _receive(self) -> None:
        room = socket.CMSG_SPACE(20)  # the larger of the two kinds
        for _ in range(_AT_ONCE):
            try:
                raw, ancillary, _, sender = self._socket.recvmsg(_LARGEST_BYTES, room)
            except BlockingIOError:
                return
            except OSError:
                continue  # the network's error for an earlier datagram
            secret = self._view.secret
            message = opened(raw, secret)
            with self._lock:
                now_s = self._clock.monotonic_s()
                answer = self._exchange.answer(message, now_s) if isinstance(message, PeerQuestion) else None
                if isinstance(message, PeerAnswer):
                    self._exchange.take(message, now_s)
            if answer is not None:
                with suppress(OSError):  # the sender is gone, or there is no route back
                    self._socket.sendmsg([sealed(answer, secret)], _from_asked(ancillary), 0, sender)

    def close(self) -> None:
        """Stop answering and release the port; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._rouse()
        self._thread.join(_CLOSE_S)
        self._socket.close()
        os.close(self._wake)


def _bound_anywhere() -> socket.socket:
    """Return a socket at a port from the half that Linux uses for TCP listeners, away from those of connections."""
    with suppress(ConfigError, OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("", 0))
        return _bound(server.getsockname()[1])
    return _bound(0)


def _bound(port: int) -> socket.socket:
    """Return a socket on every address, of both families if the host has both, that reports the receiving address."""
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
    """Return the control data that sends from the address that received a datagram; the kernel chooses the route."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):  # the address, the interface
            return [(level, kind, data[:16] + bytes(4))]
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):  # the interface, our address, the one in the header
            return [(level, kind, bytes(4) + data[4:8] + bytes(4))]
    return []


class PeerNames:
    """Resolves host names, each on its own thread: name servers may be unreachable together with the store.

    Threading: one thread at a time.
    """

    def __init__(self) -> None:
        """Start without known addresses."""
        self._found: dict[str, tuple[str, ...]] = {}
        self._pending: set[str] = set()

    def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host; empty if not known yet: call again later."""
        if is_ip(host):
            return (host,)
        if host and host not in self._found and host not in self._pending:
            self._pending.add(host)
            if len(self._found) >= MOST_NAMES:
                self._found.clear()
            threading.Thread(target=self._look_up, args=(host,), name="elastic-names", daemon=True).start()
        return self._found.get(host, ())

    def _look_up(self, host: str) -> None:
        with suppress(OSError, UnicodeError):  # the next question looks the name up again
            found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
            self._found[host] = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        self._pending.discard(host)
