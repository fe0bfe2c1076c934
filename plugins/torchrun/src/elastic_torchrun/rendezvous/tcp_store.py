"""Torch's TCPStore for library users, and free ports.

Torch is named in strings so that the type checker needs no torch; it is imported when a store is made.
"""

import errno
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from functools import cache
from typing import Any

from elastic_torchrun.rendezvous.store_helpers import barrier
from elastic_torchrun.torch_import import torch_distributed

_log = logging.getLogger(__name__)

_MEMBERS_KEY = "_tcp_store/num_members"


class NoSocketError(OSError, RuntimeError):
    """No socket is available, with the system's reason. A `RuntimeError`, as in torch."""


def get_socket_with_port() -> socket.socket:
    """Return a socket that keeps a port free on all addresses until it is closed; it does not listen.

    This is torch's behaviour from 2.15 on: a port that is free on loopback only may be in use where a store would
    listen.

    Raises:
        NoSocketError: no socket is available; with the last reason.
    """
    return _bound([(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")])  # it accepts no connection


def find_free_port() -> socket.socket:
    """Return a socket that listens on a free port of localhost, as torch's function for its etcd does.

    Raises:
        NoSocketError: no socket is available; with the last reason.
    """
    found = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    sock = _bound([(family, str(address[0])) for family, _, _, _, address in found])
    sock.listen(0)
    return sock


def _bound(places: Sequence[tuple[int, str]]) -> socket.socket:
    trouble = OSError(errno.EADDRNOTAVAIL, "this host has no address")
    for family, host in places:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            trouble = error
            continue
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            sock.bind((host, 0))
        except OSError as error:
            sock.close()
            trouble = error
            continue
        return sock
    raise NoSocketError(*trouble.args) from trouble


def get_free_port() -> int:
    """Return a port that is free now on all addresses. Another process may use it at any time."""
    with closing(get_socket_with_port()) as sock:
        return int(sock.getsockname()[1])


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
) -> Any:  # noqa: ANN401  # torch's TCPStore
    """Return a TCPStore of torch's after all of its members have joined.

    Args:
        is_server: Whether this process hosts it.
        server_addr: Its address.
        server_port: Its port; -1 means a free one, which the kernel chooses for the store itself.
        world_size: The number of members.
        timeout: Seconds for all members to join, and for each operation.
        wait_for_workers: Whether to wait for all members.
        retries: For compatibility with torch; a port chosen by the kernel is never in use.
        use_libuv: For compatibility with torch; `USE_LIBUV=0` in the environment disables libuv.

    Raises:
        ValueError: no port is given, although other members must find it.
        torch.distributed.DistStoreError: not all members joined; also a `TimeoutError`.
    """
    if server_port == -1 and world_size > 1:
        raise ValueError(f"server_port=-1 with world_size={world_size}; expected the port that the others know")
    if server_port == -1 and not is_server:
        raise ValueError("server_port=-1; expected the port where the store is")
    try:
        store = torch_distributed("create_c10d_store").TCPStore(
            host_name=server_addr,
            port=max(server_port, 0),
            world_size=world_size,
            is_master=is_server,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=wait_for_workers,
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        )
    except RuntimeError as error:  # of torch's stores
        if "clients joined" not in str(error):
            raise
        raise _missing(world_size, timeout) from error
    if wait_for_workers:
        _wait_for_all(store, world_size, timeout)
    return store


def _wait_for_all(store: Any, world_size: int, timeout_s: float) -> None:  # noqa: ANN401  # torch's
    try:
        barrier(store, world_size, key_prefix=_MEMBERS_KEY, barrier_timeout=timeout_s)
    except RuntimeError as error:  # of torch's stores
        raise _missing(world_size, timeout_s) from error


def _missing(world_size: int, timeout_s: float) -> Exception:
    return _late_error()(f"not all {world_size} members of the store came within {timeout_s:g} s")


@cache
def _late_error() -> type[Exception]:
    """Return an error class for late members: torch raises its own class or a `TimeoutError`, depending on the wait."""
    torchs: type[Exception] = torch_distributed("create_c10d_store").DistStoreError
    known = {"__module__": __name__, "__reduce__": lambda self: (torchs, self.args)}  # elsewhere it is torch's alone
    return type("MembersLateError", (torchs, TimeoutError), known)
