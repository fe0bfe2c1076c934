"""Endpoints of rendezvous backends: their forms, and connections to them.

`parse_endpoint` is pure. `resolve` and `dial` do the I/O for backends with a client library that can't be interrupted.
Both end within 100 ms of `wait.cancel()`, and report on one line what failed, and at which step.
"""

import errno
import math
import os
import re
import select
import socket
import struct
import threading
from typing import Final, Self

from elastic_core.api import SYSTEM_CLOCK, ConfigError, Record, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, WaitCancelledError, WaitExpiredError, is_ip

_NAME: Final = re.compile(r"[\w.-]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_HIGHEST_PORT: Final = 65535
_SHOWN_ADDRESSES: Final = 4
_DROP_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""`SO_LINGER` with no time: `close` drops what was not sent."""

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""The argument of a socket's `connect`, for IPv4 or IPv6."""


class Endpoint(Record, frozen=True, kw_only=True):
    """A host, without brackets, and a port."""

    host: str
    """A name or an address."""
    port: int
    """Its port."""

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(Record, frozen=True, kw_only=True):
    """One address of a host: the family of its socket, and the argument of `connect` or `bind`."""

    family: int
    """A number of `socket`: `AF_INET` or `AF_INET6`."""
    sockaddr: SocketAddress
    """The argument of `socket.connect`."""

    @property
    def ip(self) -> str:
        """The address alone."""
        return self.sockaddr[0]


# --- parsing


def parse_endpoint(
    text: str, *, default_port: int, default_host: str = "localhost", lowest_port: int = 1, option: str = ""
) -> Endpoint:
    """Return host and port of `HOST`, `HOST:PORT`, `IPV6`, `[IPV6]` or `[IPV6]:PORT`.

    Texts that torch accepts are accepted with the same meaning, with one exception: an IPv6 address without brackets is
    read as an address, not as an address and a port, whenever possible.

    Args:
        text: The user's text; empty means both defaults.
        default_port: The port if none is written.
        default_host: The host of an empty endpoint.
        lowest_port: 0 if a free port may be requested.
        option: Name of the option in messages; default `--rdzv-endpoint`.

    Raises:
        ConfigError: it can't be read; the text shows no possible password.
    """
    stripped = text.strip()
    if not stripped:
        return Endpoint(host=default_host, port=default_port)
    host, port_text = _split(stripped)
    problem = _problem(host, port_text, lowest_port)
    if problem:
        shown = stripped if "@" not in stripped else f"…@{stripped.rpartition('@')[2]}"
        raise ConfigError(
            f"{option or '--rdzv-endpoint'}: {shown!r} {problem}", hint=f"HOST:{default_port}, or [IPV6]:{default_port}"
        )
    return Endpoint(host=host, port=default_port if port_text is None else int(port_text))


def _split(text: str) -> tuple[str, str | None]:
    """Return host and port as written. `None` means no port."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if bracket and not rest:
            return host, None
        if bracket and rest.startswith(":"):
            return host, rest[1:]
        return text, None  # a stray bracket: the text is rejected as it is
    if ":" not in text or is_ip(text):
        return text, None
    host, _, port = text.rpartition(":")
    return host, port


def _problem(host: str, port: str | None, lowest_port: int) -> str:
    """Return what is wrong with an endpoint, or an empty text."""
    if "://" in host:
        return "is a URL; expected a host and a port"
    if not host:
        return "has no host; expected HOST or HOST:PORT"
    if ":" in host and not is_ip(host):
        return (
            f"has the host {host!r}; expected an IPv6 address"
            if "@" not in host
            else "has no valid host; expected HOST:PORT"
        )
    if ":" not in host and not _NAME.fullmatch(host):
        return "has characters that no host name has; expected HOST or HOST:PORT"
    if port is None:
        return ""
    if not _PORT.fullmatch(port) or not lowest_port <= int(port) <= _HIGHEST_PORT:
        return f"has the port {port!r}; expected a number from {lowest_port} to {_HIGHEST_PORT}"
    return ""


# --- names


def resolve(host: str, port: int, *, wait: WaitBudget, timeout_s: float = 60.0) -> list[Address]:
    """Return the addresses of a host without repetition, in the order in which to try them.

    Raises:
        BackendUnavailableError: it can't be resolved within `timeout_s` or the budget.
        WaitCancelledError: the agent cancelled the call.

    Threading: any; blocks.
    """
    began_s = SYSTEM_CLOCK.monotonic_s()

    def look_up() -> list[Address]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = [Address(family=family, sockaddr=sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[arg-type]  # a stream socket's
        return list(dict.fromkeys(made))

    try:
        return look_up() if is_ip(host) else wait.call(look_up, timeout_s=timeout_s)
    except WaitExpiredError as error:
        raise _unresolved(host, "no answer", began_s) from error
    except OSError as error:
        raise _unresolved(host, error.strerror or str(error), began_s) from error
    except UnicodeError as error:  # an empty or overlong part of a name
        raise _unresolved(host, "not a valid host name", began_s) from error


def _unresolved(host: str, reason: str, began_s: float) -> BackendUnavailableError:
    return BackendUnavailableError(f"cannot resolve {host!r} ({reason}) after {_since(began_s)}")


# --- connections


def dial(host: str, port: int, *, timeout_s: float, wait: WaitBudget) -> socket.socket:
    """Return a blocking socket connected to the first address of a host that accepts the connection.

    Each address gets an equal share of the rest of `timeout_s`, so that one that drops packets does not use up the time
    of the next.

    Raises:
        BackendUnavailableError: none accepted within `timeout_s` or the budget. The text has the step, the host, the
            addresses, the reasons, and the seconds.
        WaitCancelledError: the agent cancelled the call.

    Threading: any; blocks.
    """
    began_s = SYSTEM_CLOCK.monotonic_s()
    end_s = began_s + wait.remaining_s(timeout_s)
    addresses = resolve(host, port, wait=wait, timeout_s=timeout_s)
    reasons: dict[str, list[str]] = {}
    for at, address in enumerate(addresses):
        share_s = max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()) / (len(addresses) - at)
        try:
            return connect(address, timeout_s=share_s, wait=wait)
        except OSError as error:
            reasons.setdefault(error.strerror or str(error), []).append(address.ip)
    tried = "; ".join(f"{_few(ips)}: {reason}" for reason, ips in reasons.items())
    where = Endpoint(host=host, port=port)
    raise BackendUnavailableError(f"cannot connect to {str(where)!r} ({tried}) after {_since(began_s)}")


def connect(address: Address, *, timeout_s: float, wait: WaitBudget) -> socket.socket:
    """Return a blocking socket connected to one address.

    What it has not sent when it is closed is dropped. Else the kernel would send it as soon as an interrupted network
    is back, some ten seconds later: an older write of a member would then replace a newer one.

    Raises:
        OSError: the connection failed; `strerror` has the reason. `TimeoutError` without a response in time.
        WaitCancelledError: the agent cancelled the call.
    """
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(address.sockaddr)
        if code == errno.EINPROGRESS:
            _until_writable(sock, timeout_s, wait)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_AT_CLOSE)
    except BaseException:
        sock.close()
        raise
    return sock


def _until_writable(sock: socket.socket, timeout_s: float, wait: WaitBudget) -> None:
    """Block until a connection is made or rejected.

    Raises:
        TimeoutError: neither happened in time.
        WaitCancelledError: the agent cancelled the call.
    """
    if wait.cancelled:
        raise WaitCancelledError
    ours, theirs = socket.socketpair()
    with ours, theirs, _Waker(theirs) as waker:
        wait.on_cancel(waker.wake)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        poll.register(ours, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(math.ceil(timeout_s * 1000))}
    if wait.cancelled:
        raise WaitCancelledError
    if sock.fileno() not in ready:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s:.1f} s")


class _Waker:
    """Shuts down one end of a socket pair when its wait is cancelled, and never after the block.

    Budgets keep their listeners, and another file may soon have the number of a closed descriptor.
    """

    def __init__(self, end: socket.socket) -> None:
        self._lock = threading.Lock()
        self._end: socket.socket | None = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._end = None

    def wake(self) -> None:
        with self._lock:
            if self._end is not None:
                self._end.shutdown(socket.SHUT_RDWR)


def _few(ips: list[str]) -> str:
    more = len(ips) - _SHOWN_ADDRESSES
    return ", ".join(ips[:_SHOWN_ADDRESSES]) + (f" and {more} more" if more > 0 else "")


def _since(began_s: float) -> str:
    return f"{SYSTEM_CLOCK.monotonic_s() - began_s:.1f} s"
