"""Torch's TCPStore for library users, and free ports.

torch is named in strings, for the type checker's sake, which would need torch and minutes; it is imported when a store
is made.
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
    """No socket can be had: the system's reason; a `RuntimeError`, as torch raises."""


def get_socket_with_port() -> socket.socket:
    """Return a socket that keeps a port free on all addresses until it is closed; it does not listen.

    As from torch 2.15 on: a port that is free on loopback alone may be taken where a store would listen.

    Raises:
        NoSocketError: no socket can be had; the last reason.
    """
    return _bound([(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")])  # it accepts nobody


def find_free_port() -> socket.socket:
    """Return a socket that listens on a free port of localhost, as torch's function for its etcd does.

    Raises:
        NoSocketError: no socket can be had; the last reason.
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
    """Return a port that is free now on all addresses; another process may take it at any time."""
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
    """Return a TCPStore of torch's, when all of its members have come.

    Args:
        is_server: Whether this process hosts it.
        server_addr: Where it is.
        server_port: Its port; -1: a free one, which the kernel chooses for the store itself.
        world_size: How many members there are.
        timeout: Seconds for coming together, and for each operation.
        wait_for_workers: Whether to wait for all members.
        retries: Kept for torch's callers: a port that the kernel chooses is never in use.
        use_libuv: Likewise; `USE_LIBUV=0` in the environment has the store do without libuv.

    Raises:
        ValueError: no port was given, and there are others to find it.
        torch.distributed.DistStoreError: not all members came; a `TimeoutError`, too.
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
    """Return a class for members that are late: torch raises one of its own or a `TimeoutError`, as the wait ended."""
    torchs: type[Exception] = torch_distributed("create_c10d_store").DistStoreError
    known = {"__module__": __name__, "__reduce__": lambda self: (torchs, self.args)}  # elsewhere it is torch's alone
    return type("MembersLateError", (torchs, TimeoutError), known)
