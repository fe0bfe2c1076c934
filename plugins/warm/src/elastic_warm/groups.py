"""The process groups of one round: which descriptors they have, how blocked calls are freed, and how all of it ends."""

import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from elastic_warm import torch_state, transfers

_C10D: Final = "torch.distributed.distributed_c10d"
_EVENTPOLL: Final = "anon_inode:[eventpoll]"
_SOCKET: Final = "socket:["
_MAPPED: Final = "::ffff:"
_ADDRESS_AND_PORT: Final = 2
_KNOWN_S: Final = 0.01
"""A connection to a store is shut down so many seconds after it was found."""
_TRANSFERS_S: Final = 2.0
"""How long the threads that send copies may take to end, in seconds."""


class Generation:
    """The sockets, groups and stores that a training function opens in one round.

    Those that were there before belong to others. Of the later ones, these count:

    - sockets of gloo: it has an epoll instance for each group that an exec would inherit, as no other library has, and
      that watches a listening socket;
    - connections to the port of the round's store, or of a store of a group.

    Created: in the main thread, just before the function is called.
    """

    def __init__(self) -> None:
        found = _descriptors()
        self._before = frozenset(link for link in found.values() if link.startswith(_SOCKET))
        self._stores = _environment_store()
        self._connections: dict[str, float] = {}
        """When `shut` has first found each connection to a store."""
        self._aborting: threading.Thread | None = None

    # --- freeing a blocked call. Threading: any

    def shut(self) -> int:
        """Shut down the connections of gloo and of the stores, so that calls that wait for them return.

        Return the number of connections. A connection of the store's server is left alone: it ends with the server. A
        connection to a store is shut down by a later call than the first that finds it: a store that is still being
        made would connect again, after a pause of seconds.
        """
        self._note_stores()
        found = _descriptors()
        gloos = self._gloo_sockets(found)
        count = 0
        for fd, link in found.items():
            if not link.startswith(_SOCKET) or link in self._before:
                continue
            with _pinned(fd, link) as connection:
                if connection is None or _is_listening(connection):
                    continue
                if link in gloos or (self._leads_to_store(connection) and self._is_known(link)):
                    with suppress(OSError):  # it is not connected any more
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count

    def _is_known(self, link: str) -> bool:
        now_s = time.monotonic()
        return now_s - self._connections.setdefault(link, now_s) >= _KNOWN_S

    def abort_devices(self) -> None:
        """Begin to abort the groups of devices, in a thread: it takes half a second. Does nothing if there are none."""
        if self._aborting is None and torch_state.has_device_group():
            self._aborting = threading.Thread(target=torch_state.abort, name="elastic-warm-abort", daemon=True)
            self._aborting.start()

    def _gloo_sockets(self, found: dict[int, str]) -> frozenset[str]:
        return frozenset(link for targets in self._loops(found).values() for link in targets)

    def _loops(self, found: dict[int, str]) -> dict[int, list[str]]:
        """Return the epoll instances of gloo that are open, with the sockets that they watch."""
        loops = {}
        for fd, link in found.items():
            if link == _EVENTPOLL:
                targets = _watched(fd)
                if any(target not in self._before and _listens(found, target) for target in targets):
                    loops[fd] = targets
        return loops

    def _note_stores(self) -> None:
        c10d: Any = sys.modules.get(_C10D)
        if c10d is None:
            return
        with suppress(AttributeError, RuntimeError, ValueError):  # another thread is changing them
            for _, store in list(c10d._world.pg_map.values()):
                while hasattr(store, "underlying_store"):
                    store = store.underlying_store
                if hasattr(store, "host") and hasattr(store, "port"):
                    self._stores[int(store.port)] = str(store.host)

    def _leads_to_store(self, connection: socket.socket) -> bool:
        try:
            address, port, *_ = connection.getpeername()
        except (OSError, ValueError):  # not connected, or of another family
            return False
        host = self._stores.get(port)
        if host is None:
            return False
        address = address.removeprefix(_MAPPED)
        # A name can't be resolved here without the risk of waiting for a server.
        return not _is_numeric(host) or host == address

    # --- the end. Threading: the main thread, after the function was left

    def destroy(self, within_s: float) -> str:
        """Destroy all process groups, and forget what an interrupted call has left.

        Args:
            within_s: How long to wait for the abort of groups of devices.

        Returns:
            Why that was not possible; empty if it was.
        """
        self.shut()
        self._end_transfers(within_s)
        self.abort_devices()
        if self._aborting is not None:
            self._aborting.join(max(0.0, within_s))
            if self._aborting.is_alive():
                return "the abort of a device's group does not return"
        torch_state.destroy_groups()
        return ""

    def _end_transfers(self, within_s: float) -> None:
        """Wait until no thread sends a copy any more: gloo may never free one whose group is destroyed meanwhile."""
        until_s = time.monotonic() + min(within_s, _TRANSFERS_S)
        while not transfers.wait(_KNOWN_S) and time.monotonic() < until_s:
            self.shut()

    def remains(self) -> list[str]:
        """Return what of the groups and stores is still there; one line for each kind."""
        found = _descriptors()
        lines = []
        if self._loops(found):
            lines.append("a process group is still referenced")
        ports = sorted(
            {
                port
                for fd, link in found.items()
                if link.startswith(_SOCKET) and link not in self._before and (port := _listening_port(fd, link))
            }
            & self._stores.keys()
        )
        lines += [f"a store still has the port {port}" for port in ports]
        return lines


# --- descriptors


def _descriptors() -> dict[int, str]:
    """Return what each open descriptor refers to, for sockets and epoll instances; other files are left out."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # many calls, in a hurry
        try:
            link = _link(int(name))
        except OSError:  # the descriptor of the listing, or one that was closed meanwhile
            continue
        if link.startswith((_SOCKET, _EVENTPOLL)):
            found[int(name)] = link
    return found


def _link(fd: int) -> str:
    """Return the target of a descriptor's link in /proc; for a file with a name, nothing. Most need no look at /proc.

    Raises:
        OSError: it is closed.
    """
    found = os.fstat(fd)
    if stat.S_ISSOCK(found.st_mode):
        return f"{_SOCKET}{found.st_ino}]"
    if stat.S_IFMT(found.st_mode):
        return ""
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  # as above; an epoll instance has no type


def _watched(poll: int) -> list[str]:
    """Return the sockets that an epoll instance watches. None if an exec would close it: it is not gloo's."""
    try:
        with open(f"/proc/self/fdinfo/{poll}", "rb", buffering=0) as file:  # noqa: PTH123  # as above
            lines = (file.readall() or b"").decode().splitlines()
    except OSError:
        return []
    targets = []
    for line in lines:
        key, _, rest = line.partition(":")
        if key == "flags" and int(rest, 8) & os.O_CLOEXEC:
            return []
        if key == "tfd" and "ino:" in rest:
            targets.append(f"{_SOCKET}{int(rest.partition('ino:')[2].split()[0], 16)}]")
    return targets


@contextmanager
def _pinned(fd: int, link: str) -> Iterator[socket.socket | None]:
    """Provide a socket under a descriptor of our own. `None` if it was closed, and the number used again."""
    try:
        own = os.dup(fd)
    except OSError:
        yield None
        return
    try:
        if _link(own) != link:
            raise OSError("another thread has closed it")
        connection = socket.socket(fileno=own)  # Python asks for the family, on which the length of addresses depends
    except OSError:
        os.close(own)
        yield None
        return
    with connection:
        yield connection


def _is_listening(connection: socket.socket) -> bool:
    with suppress(OSError):
        return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _listens(found: dict[int, str], link: str) -> bool:
    return any(_listening_port(fd, link) for fd, other in found.items() if other == link)


def _listening_port(fd: int, link: str) -> int:
    """Return the TCP port at which a socket listens. 0 if it does not."""
    with _pinned(fd, link) as connection:
        if connection is None or not _is_listening(connection):
            return 0
        with suppress(OSError):
            name = connection.getsockname()
            return int(name[1]) if isinstance(name, tuple) and len(name) >= _ADDRESS_AND_PORT else 0
    return 0


# --- stores and devices


def _environment_store() -> dict[int, str]:
    """Return the address of the round's store by its port, from this process's variables."""
    try:
        return {int(os.environ["MASTER_PORT"]): os.environ.get("MASTER_ADDR", "")}
    except (KeyError, ValueError):
        return {}


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False
