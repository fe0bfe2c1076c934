"""The process groups of one round: which descriptors they have, how blocked calls are freed, and how all of it ends."""

import functools
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FunctionType
from typing import Any, Final

_C10D: Final = "torch.distributed.distributed_c10d"
_EVENTPOLL: Final = "anon_inode:[eventpoll]"
_SOCKET: Final = "socket:["
_MAPPED: Final = "::ffff:"
_ADDRESS_AND_PORT: Final = 2
_DEVICE_BACKENDS: Final = ("nccl", "xccl")
"""Parts of the names of backends whose operations only an abort ends."""

_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.05
_LONGEST_WAIT_S: Final = 1800.0
"""How long a store's server is waited for if no time limit is given: torch's own."""
_WITH_DEFAULTS: Final = (
    "torch.distributed.nn.functional",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "torch.distributed.fsdp.sharded_grad_scaler",
)
"""Modules of torch whose functions have the default group as a default argument."""


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
        self._polls_before = frozenset(fd for fd, link in found.items() if link == _EVENTPOLL)
        self._stores = _environment_store()
        self._aborting: threading.Thread | None = None

    # --- freeing a blocked call. Threading: any

    def shut(self) -> int:
        """Shut down the connections of gloo and of the stores, so that calls that wait for them return.

        Return the number of connections. A connection of the store's server is left alone: it ends with the server.
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
                if link in gloos or self._leads_to_store(connection):
                    with suppress(OSError):  # it is not connected any more
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count

    def abort_devices(self) -> None:
        """Begin to abort the groups of devices, in a thread: it takes half a second. Does nothing if there are none."""
        if self._aborting is None and _has_device_group():
            self._aborting = threading.Thread(target=_abort, name="elastic-warm-abort", daemon=True)
            self._aborting.start()

    def _gloo_sockets(self, found: dict[int, str]) -> frozenset[str]:
        return frozenset(link for targets in self._loops(found).values() for link in targets)

    def _loops(self, found: dict[int, str]) -> dict[int, list[str]]:
        """Return the epoll instances of gloo that are open, with the sockets that they watch."""
        loops = {}
        for fd, link in found.items():
            if link == _EVENTPOLL and fd not in self._polls_before:
                targets = _watched(fd)
                if targets and any(_listens(found, target) for target in targets):
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

    def destroy(self) -> None:
        """Destroy all process groups, and forget what an interrupted call has left."""
        self.shut()
        if self._aborting is not None:
            self._aborting.join()
        c10d: Any = sys.modules.get(_C10D)
        if c10d is None:
            return
        if c10d.is_initialized():
            with suppress(Exception):  # a peer is gone; what remains is found below
                c10d.destroy_process_group()
        world = c10d._world
        for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"):
            getattr(world, name).clear()
        for name in ("pg_coalesce_state", "comms"):
            getattr(world, name, {}).clear()
        world.default_pg = None
        world.group_count = 0
        c10d._default_pg_init_method = None
        with suppress(AttributeError):
            c10d._update_default_pg(None)
            c10d._unregister_all_process_groups()
        _forget_defaults(_functions_with_groups())

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

    def collect(self) -> None:
        """Find what still refers to a group: reference cycles, and default arguments of modules imported meanwhile."""
        gc.collect()
        _forget_defaults(each for each in gc.get_objects() if type(each) is FunctionType)


def free_from_cycles() -> None:
    """Exempt what exists now from garbage collections, so that later ones take milliseconds.

    Called: once, before the first round. Later calls would keep groups alive.
    """
    gc.freeze()


def has_device_fault() -> str:
    """Return the error that a device reports for every call from now on; empty if there is none."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # torch has several classes for it
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


# --- stores that are not there yet


def wait_for_stores_in_python() -> None:
    """Have `init_process_group` wait in Python until the store's server is there: an interrupt ends that wait.

    Torch's own loop ends only with the group's time limit, and pauses for seconds: a server that comes a moment later
    is found within milliseconds here. Does nothing if `torch.distributed` is not imported.
    """
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_when_there(hostname: str, port: int, rank: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # torch's
        if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _wait_for_server(hostname, port, _seconds(kwargs.get("timeout", args[1] if len(args) > 1 else None)))
        return create(hostname, port, rank, *args, **kwargs)

    rendezvous._create_c10d_store = create_when_there


def _wait_for_server(host: str, port: int, within_s: float) -> None:
    """Wait until a connection succeeds, or the time is over: then torch raises its own error."""
    pause, pause_s = threading.Event(), _FIRST_PAUSE_S
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_S):
                return
        except OSError:
            pause.wait(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)


def _seconds(limit: object) -> float:
    return limit.total_seconds() if isinstance(limit, timedelta) else _LONGEST_WAIT_S


# --- default arguments


def _functions_with_groups() -> Iterator[FunctionType]:
    """Return the functions of torch that have the default group of their import as a default argument.

    If they are imported in the training function, as `DistributedDataParallel` does, that group is the round's.
    """
    for name in _WITH_DEFAULTS:
        for each in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(each, type):
                each = each.__dict__.get("__init__")  # what a class has in place of defaults
            if isinstance(each, FunctionType):
                yield each


def _forget_defaults(functions: Iterable[FunctionType]) -> None:
    """Replace process groups among default arguments by `None`, as an import without a group has it."""
    c10d: Any = sys.modules.get(_C10D)
    kind = getattr(c10d, "ProcessGroup", None)
    if kind is None:
        return
    for function in functions:
        if any(isinstance(value, kind) for value in function.__defaults__ or ()):
            values = function.__defaults__ or ()
            function.__defaults__ = tuple(None if isinstance(value, kind) else value for value in values)
        for name, value in (function.__kwdefaults__ or {}).items():
            if isinstance(value, kind):
                function.__kwdefaults__[name] = None


# --- descriptors


def _descriptors() -> dict[int, str]:
    """Return what each open descriptor refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # many calls, in a hurry
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115  # as above
        except OSError:  # the descriptor of the listing, or one that was closed meanwhile
            continue
    return found


def _watched(poll: int) -> list[str]:
    """Return the sockets that an epoll instance watches. None if an exec would close it: it is not gloo's."""
    try:
        with open(f"/proc/self/fdinfo/{poll}") as file:  # noqa: PTH123  # as above
            lines = file.read().splitlines()
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
        if os.readlink(f"/proc/self/fd/{own}") != link:  # noqa: PTH115  # as above
            yield None
            return
        connection = socket.socket(fileno=own)
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


def _has_device_group() -> bool:
    c10d: Any = sys.modules.get(_C10D)
    with suppress(AttributeError, RuntimeError):
        names = [str(name) for name, _ in list(c10d._world.pg_map.values())]
        return any(part in name for name in names for part in _DEVICE_BACKENDS)
    return False


def _abort() -> None:
    c10d: Any = sys.modules.get(_C10D)
    with suppress(Exception):  # it is gone already
        c10d._abort_process_group()
