"""Whether this node is the one that an endpoint names, and where its server would listen."""

import errno
import os
import socket
from pathlib import Path
from typing import Final

from elastic_core.api import Address, BackendRefusedError, WaitBudget, is_ip, resolve, route_source

EVERYWHERE: Final = ("*", "-::*")
"""What makes the server listen on all addresses, also where there is no IPv6."""
UNSPECIFIED: Final = ("0.0.0.0", "::")

_ELSEWHERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENODEV})


def own_addresses(host: str, *, wait: WaitBudget) -> tuple[str, ...]:
    """Return on which addresses of this node the server of an endpoint's host would listen; empty: on another node.

    A name that leads to loopback addresses alone here (many systems map their own name so) leads elsewhere on other
    nodes: then it is all addresses. So it is for this host's own name where it leads to none of ours.

    Raises:
        BackendUnavailableError: the host can't be resolved.
    """
    if host in UNSPECIFIED:
        return EVERYWHERE
    own = tuple(address.ip for address in resolve(host, 0, wait=wait) if _is_own(address))
    if is_ip(host) or host.rstrip(".").lower() == "localhost":
        return own
    if not own:
        return EVERYWHERE if host.lower() == socket.gethostname().lower() else ()
    return EVERYWHERE if all(_is_loopback(ip) for ip in own) else own


def _is_own(address: Address) -> bool:
    try:
        _bind(address.family, address.sockaddr)
    except OSError as error:
        if error.errno in _ELSEWHERE:
            return False
        raise
    return not _binds_anything(address) or _is_loopback(address.ip) or route_source(address.ip) == address.ip


def _binds_anything(address: Address) -> bool:
    """Return whether addresses of other hosts can be bound here, too, as on hosts that balance load."""
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
        BackendRefusedError: this node can never bind the port: the user may not, say.
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
    """Return a port that nobody uses right now on the first of these addresses."""
    ip = UNSPECIFIED[0] if bind == EVERYWHERE else bind[0]
    return _bind(socket.AF_INET6 if ":" in ip else socket.AF_INET, (ip, 0))


def _bind(family: int, sockaddr: tuple[str, int] | tuple[str, int, int, int]) -> int:
    """Bind as the server will, for a moment; return the port."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        port: int = sock.getsockname()[1]
        return port
