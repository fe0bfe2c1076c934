"""Tries of other nodes' ports and clocks: a datagram with a response, and a connection.

Each datagram has a proof that its sender knows a secret from the store, which is not sent. The proof covers the sender,
the receiver, and a random text of the request.
"""

import hmac
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from elastic_core.api import SYSTEM_CLOCK, Record, decode_json, encode_json
from elastic_core.api.stores import is_loopback

_LARGEST: Final = 512
_QUESTION, _ANSWER = b"elastic doctor question", b"elastic doctor answer"
"""The purposes of keys."""
_AGAIN_S: Final = 0.3
"""The pause after which a datagram is sent again, since it may be lost."""


class Station(Record, frozen=True, kw_only=True):
    """A node's addresses. `alternative`: its address for other hosts, if it published a loopback one."""

    incarnation: str
    node: str
    boot: str
    address: str
    alternative: str = ""
    udp_port: int = 0
    tcp_port: int = 0


class Trial(Record, frozen=True, kw_only=True):
    """The result of trying one node. `skew_s`: how much its clock is ahead, with the uncertainty `doubt_s`."""

    node: str
    udp: bool = False
    tcp: bool = False
    skew_s: float | None = None
    doubt_s: float = 0.0


class _Question(Record, frozen=True, kw_only=True):
    """`asker`: the sender's incarnation; `proof`: over it, the receiver's incarnation, and `nonce`."""

    asker: str
    nonce: str
    proof: str


class _Answer(Record, frozen=True, kw_only=True):
    """`proof`: over the same values as the request's, and the time."""

    wall_ns: int
    proof: str


class Answering:
    """Responds by UDP, with this node's clock, to senders that know the secret, and accepts TCP connections.

    Args:
        udp_port: The planned agent's; 0 means any free port.
        tcp_port: The planned rank 0's; 0 means any free port.

    Raises:
        OSError: a port can't be opened.
    """

    def __init__(self, udp_port: int, tcp_port: int) -> None:
        """Bind, and begin to respond."""
        self.secret = ""
        """The secret by which nodes authenticate each other; if it is empty, no request gets a response."""
        self.incarnation = ""
        """This node's, as the others know it."""
        self._udp = _bound(socket.SOCK_DGRAM, udp_port)
        try:
            self._tcp = _bound(socket.SOCK_STREAM, tcp_port)
        except OSError:
            self._udp.close()
            raise
        self._tcp.listen(64)  # the kernel takes connections by itself
        self.udp_port: int = self._udp.getsockname()[1]
        self.tcp_port: int = self._tcp.getsockname()[1]
        threading.Thread(target=self._serve, name="doctor answers", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                raw, sender = self._udp.recvfrom(_LARGEST)
            except OSError:
                return
            try:
                question = decode_json(raw, _Question)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            parts = (question.asker, self.incarnation, question.nonce)
            if _is_proof(question.proof, self.secret, _QUESTION, *parts):
                now_ns = SYSTEM_CLOCK.wall_ns()
                code = _proof(self.secret, _ANSWER, *parts, str(now_ns))
                with suppress(OSError):
                    self._udp.sendto(encode_json(_Answer(wall_ns=now_ns, proof=code)), sender)

    def close(self) -> None:
        """Stop responding; idempotent."""
        with suppress(OSError):
            self._udp.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._udp.close()
        self._tcp.close()


def _bound(kind: int, port: int) -> socket.socket:
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # others come here
        try:
            sock = socket.socket(family, kind)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
        except OSError:
            sock.close()
            if family == socket.AF_INET:
                raise
            continue
        return sock
    raise OSError("no network")


def probe(
    others: Sequence[Station], own: Station, secret: str, *, limit_s: float, renew: Callable[[], None] = lambda: None
) -> list[Trial]:
    """Try these nodes, all at the same time. Blocks until all have responded, for `limit_s` at most.

    `renew` is called at intervals.
    """
    trials = [_Try(station, own, secret) for station in others]
    end_s = SYSTEM_CLOCK.monotonic_s() + limit_s
    try:
        while (open_ := [trial for trial in trials if not trial.done]) and (
            left_s := end_s - SYSTEM_CLOCK.monotonic_s()
        ) > 0:
            renew()
            for trial in open_:
                trial.send()
            poll = select.poll()
            by_fd = {fd: trial for trial in open_ for fd in trial.register(poll)}
            again_s = SYSTEM_CLOCK.monotonic_s() + min(_AGAIN_S, left_s)
            while by_fd and (wait_s := again_s - SYSTEM_CLOCK.monotonic_s()) > 0:
                for fd, _ in poll.poll(wait_s * 1000):
                    if by_fd[fd].take(fd):
                        poll.unregister(fd)
                        del by_fd[fd]
        return [trial.result() for trial in trials]
    finally:
        for trial in trials:
            trial.close()


class _Try:
    """The try of one node."""

    def __init__(self, station: Station, own: Station, secret: str) -> None:
        self._station, self._secret = station, secret
        self._parts = (own.incarnation, station.incarnation, os.urandom(16).hex())
        elsewhere = is_loopback(station.address) and station.boot != own.boot
        address = station.alternative if elsewhere and station.alternative else station.address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._udp, self._tcp = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_STREAM)
        self._sent_ns = 0
        self._sent_s = 0.0
        self._found = Trial(node=station.node)
        self._tcp_over = False
        for sock, port in ((self._udp, station.udp_port), (self._tcp, station.tcp_port)):
            sock.setblocking(False)
            with suppress(OSError):  # in progress, or there is no way: what is polled says which
                sock.connect((address, port))

    @property
    def done(self) -> bool:
        return self._found.udp and self._tcp_over

    def send(self) -> None:
        if not self._found.udp:
            self._sent_ns, self._sent_s = SYSTEM_CLOCK.wall_ns(), SYSTEM_CLOCK.monotonic_s()
            asker, _, nonce = self._parts
            code = _proof(self._secret, _QUESTION, *self._parts)
            with suppress(OSError):
                self._udp.send(encode_json(_Question(asker=asker, nonce=nonce, proof=code)))

    def register(self, poll: select.poll) -> list[int]:
        fds = []
        for sock, events, over in (
            (self._udp, select.POLLIN, self._found.udp),
            (self._tcp, select.POLLOUT, self._tcp_over),
        ):
            if not over:
                poll.register(sock, events)
                fds.append(sock.fileno())
        return fds

    def take(self, fd: int) -> bool:
        """Read from a descriptor. Return whether the try is complete."""
        if fd == self._tcp.fileno():
            error = self._tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._tcp_over = True
            self._found = msgspec.structs.replace(self._found, tcp=not error)
            return True
        try:
            answer = decode_json(self._udp.recv(_LARGEST), _Answer)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return False  # refused: the node may not listen yet
        if not _is_proof(answer.proof, self._secret, _ANSWER, *self._parts, str(answer.wall_ns)):
            return False
        took_s = SYSTEM_CLOCK.monotonic_s() - self._sent_s
        skew_s = (answer.wall_ns - self._sent_ns) / 1e9 - took_s / 2
        # An answer to a question that was sent before is older than it seems by one pause at most.
        self._found = msgspec.structs.replace(self._found, udp=True, skew_s=skew_s, doubt_s=took_s / 2 + _AGAIN_S)
        return True

    def result(self) -> Trial:
        return self._found

    def close(self) -> None:
        self._udp.close()
        self._tcp.close()


def _proof(secret: str, purpose: bytes, *covered: str) -> str:
    """Return a keyed code over texts without line ends, in hexadecimal; each purpose has its own key."""
    key = hmac.digest(secret.encode(), purpose, "sha256")
    return hmac.digest(key, "\n".join(covered).encode(), "sha256").hex()


def _is_proof(code: str, secret: str, purpose: bytes, *covered: str) -> bool:
    """Return whether a code is the proof over these texts; false with an empty secret."""
    return bool(secret) and hmac.compare_digest(code.encode(), _proof(secret, purpose, *covered).encode())
