"""Whether an endpoint names this node, and the addresses on which its server would listen."""

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from elastic_backend_net.endpoint import Address, resolve
from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, is_ip, route_source

EVERYWHERE: Final = ("*", "-::*")
"""Makes the server listen on all addresses, also without IPv6."""
UNSPECIFIED: Final = ("0.0.0.0", "::")

_LOOK_UP_S: Final = 60.0
_OWN_LOOK_UP_S: Final = 10.0
_ELSEWHERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENODEV})


class Own(NamedTuple):
    """The addresses of this node on which the server of an endpoint's host would listen; empty on another node.

    `unresolved` is why the endpoint's name, which is this host's, resolves to no address here.
    """

    addresses: tuple[str, ...] = ()
    unresolved: str = ""


def is_own_name(host: str) -> bool:
    """Return whether this host has that name by its own settings, without a name server."""
    return host.rstrip(".").lower() in ("localhost", socket.gethostname().lower())


def find_own(host: str, *, is_host: bool = False, wait: WaitBudget) -> Own:
    """Return whether an endpoint's host is this node, and where its server would listen.

    Many systems map their own name to loopback addresses only, and the name has other addresses on other nodes. The
    server then listens on all addresses. The same holds for this host's own name if it resolves to no address here, or
    not at all. With `is_host`, any host counts as this one.

    Raises:
        BackendUnavailableError: the host can't be resolved, and is not known to be this one.
    """
    if host in UNSPECIFIED:
        return Own(EVERYWHERE)
    ours = is_host or is_own_name(host)
    # A server that begins without a name server must not wait for one until no time is left to begin.
    limit_s = wait.remaining_s(_OWN_LOOK_UP_S) / 2 if ours else _LOOK_UP_S
    try:
        found = resolve(host, 0, wait=wait, timeout_s=limit_s)
    except BackendUnavailableError as error:
        if ours:
            return Own(EVERYWHERE, error.what)
        raise
    own = tuple(address.ip for address in found if _is_own(address))
    if not own:
        return Own(EVERYWHERE if ours or _is_full_name(host, found, wait) else ())
    if is_ip(host) or host.rstrip(".").lower() == "localhost":
        return Own(own)
    return Own(EVERYWHERE if all(_is_loopback(ip) for ip in own) else own)


def _is_full_name(host: str, found: Sequence[Address], wait: WaitBudget) -> bool:
    """Return whether a name is this host's name with a domain: both then resolve to the same addresses."""
    own = socket.gethostname()
    if is_ip(host) or host.partition(".")[0].lower() != own.partition(".")[0].lower():
        return False
    try:
        return set(resolve(own, 0, wait=wait, timeout_s=_LOOK_UP_S)) == set(found)
    except BackendUnavailableError:
        return False


def _is_own(address: Address) -> bool:
    if address.ip.startswith("::ffff:"):  # an IPv4 address in another form, which can't be bound as one of IPv6
        return False
    try:
        _bind(address.family, address.sockaddr)
    except OSError as error:
        if error.errno in _ELSEWHERE:
            return False
        raise
    return not _binds_anything(address) or _is_loopback(address.ip) or route_source(address.ip) == address.ip


def _binds_anything(address: Address) -> bool:
    """Return whether addresses of other hosts can be bound here, as on hosts that balance load."""
    version = "ipv6" if address.family == socket.AF_INET6 else "ipv4"
    try:
        return Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").read_text().strip() == "1"
    except OSError:
        return False


def _is_loopback(ip: str) -> bool:
    return ip == "::1" or ip.startswith("127.")


def is_free(bind: tuple[str, ...], port: int) -> bool:
    """Return whether a server could listen on all of these addresses now.

    Raises:
        BackendRefusedError: this node can never bind the port, for example because the user may not.
    """
    for ip in UNSPECIFIED if bind == EVERYWHERE else bind:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            _bind(family, (ip, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if error.errno in _ELSEWHERE and ip in UNSPECIFIED:
                continue  # no IPv6 here
            raise BackendRefusedError(
                f"port {port} of the embedded store can't be bound on {ip} ({os.strerror(error.errno or 0)})",
                hint="another port, from 1024 to 65535, in --rdzv-endpoint",
            ) from error
    return True


def free_port(bind: tuple[str, ...]) -> int:
    """Return a port that is free now on the first of these addresses."""
    ip = UNSPECIFIED[0] if bind == EVERYWHERE else bind[0]
    return _bind(socket.AF_INET6 if ":" in ip else socket.AF_INET, (ip, 0))


def _bind(family: int, sockaddr: tuple[str, int] | tuple[str, int, int, int]) -> int:
    """Bind briefly as the server will; return the port."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        port: int = sock.getsockname()[1]
        return port
