"""What is known of this host's addresses: which say something to other hosts, and how others may reach this one.

DESIGN section 4: a node tells the source address of its connection to the store; where that is a loopback address, also
the source of a route outside, or else its full name; who reads the members and finds some elsewhere, that of a route to
them. `roster` takes the second unless all nodes are on one host.
"""

import os
import re
import socket
from pathlib import Path
from typing import Final

from elastic_core.errors import WaitExpiredError
from elastic_core.system.clock import WaitBudget

LOOPBACK: Final = "127.0.0.1"

_ZONE: Final = re.compile(r"[\w.-]+")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")
_DISCARD_PORT = 9
_FULL_NAME_LIMIT_S = 5.0


def is_ipv6(host: str) -> bool:
    """Return whether this is an IPv6 address, without brackets; a zone (`fe80::1%eth0`) may follow."""
    address, percent, zone = host.partition("%")
    return (not percent or bool(_ZONE.fullmatch(zone))) and _is_address(socket.AF_INET6, address)


def is_ip(host: str) -> bool:
    """Return whether this is an address, not a name: then nothing need be asked to resolve it."""
    return is_ipv6(host) or _is_address(socket.AF_INET, host)


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):  # ValueError: a null byte or a surrogate
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether an address (not a name) is of this host only; an unspecified one is, for others."""
    plain = address.partition("%")[0].lower()
    if is_ipv6(plain):
        packed = socket.inet_pton(socket.AF_INET6, plain)
        if packed[:12] == bytes(10) + b"\xff\xff":  # IPv4 inside
            return packed[12] in (0, 127)
        return packed in (bytes(16), bytes(15) + b"\1")
    return is_ip(plain) and socket.inet_pton(socket.AF_INET, plain)[0] in (0, 127)


def host_identity() -> str:
    """Return what members on one host have in common: its boot, and its network; empty: unknown.

    Two containers share the boot id and have a loopback each, so the network namespace counts too.
    """
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_NETWORK_NAMESPACE.stat().st_ino}"
    except OSError:  # no /proc: then nobody can be known to be on our host
        return ""


def route_source(address: str) -> str:
    """Return the address from which packets to another would leave; empty: there is no route, or it is no address.

    Nothing is sent: connecting a datagram socket only asks the kernel for the route.
    """
    if not is_ip(address):
        return ""
    family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, _DISCARD_PORT))
            source: str = sock.getsockname()[0]
            return source
    except OSError:
        return ""


def full_name(*, wait: WaitBudget) -> str:
    """Return the host's full name, or its short one where name servers don't say within seconds.

    Raises:
        WaitCancelledError: the agent asked the call to end.

    Threading: any; blocks.
    """
    try:
        return wait.call(socket.getfqdn, timeout_s=_FULL_NAME_LIMIT_S)
    except (WaitExpiredError, OSError, UnicodeError):
        return os.uname().nodename
