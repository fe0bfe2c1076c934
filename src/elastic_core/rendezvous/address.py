"""The addresses of this host: loopback or not, and the addresses at which other hosts can reach it.

A node publishes the source address of its connection to the store. If that is a loopback address, the node also
publishes a second address. That is the source of its route to members on other hosts, else of its route outside, else
its full name. `roster` uses the second address unless all nodes are on one host. Source: DESIGN section 4.
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
    """Return whether `host` is an IPv6 address without brackets; a zone may follow (`fe80::1%eth0`)."""
    address, percent, zone = host.partition("%")
    return (not percent or bool(_ZONE.fullmatch(zone))) and _is_address(socket.AF_INET6, address)


def is_ip(host: str) -> bool:
    """Return whether `host` is an IP address, not a name that must be resolved."""
    return is_ipv6(host) or _is_address(socket.AF_INET, host)


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):  # ValueError: a null byte or a surrogate
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether an address (not a name) is loopback or unspecified, so that no other host can reach it."""
    plain = address.partition("%")[0].lower()
    if is_ipv6(plain):
        packed = socket.inet_pton(socket.AF_INET6, plain)
        if packed[:12] == bytes(10) + b"\xff\xff":  # IPv4 inside
            return packed[12] in (0, 127)
        return packed in (bytes(16), bytes(15) + b"\1")
    return is_ip(plain) and socket.inet_pton(socket.AF_INET, plain)[0] in (0, 127)


def host_identity() -> str:
    """Return the boot id and the network namespace of this host, equal for members on one host; empty if unknown.

    Two containers share the boot id, but each has its own loopback: so the network namespace is part of the identity.
    """
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_NETWORK_NAMESPACE.stat().st_ino}"
    except OSError:  # no /proc: then no member is known to be on this host
        return ""


def route_source(address: str) -> str:
    """Return the source address of packets to `address`; empty if there is no route or `address` is a name.

    Nothing is sent: connecting a datagram socket only makes the kernel choose the route.
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
    """Return the host's full name, or its short name if name servers do not answer within 5 seconds.

    Raises:
        WaitCancelledError: the agent cancelled the call.

    Threading: any; blocks.
    """
    try:
        return wait.call(socket.getfqdn, timeout_s=_FULL_NAME_LIMIT_S)
    except (WaitExpiredError, OSError, UnicodeError):
        return os.uname().nodename
