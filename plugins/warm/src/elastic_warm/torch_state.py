"""What torch itself keeps of a process group, in its tables, caches and default arguments, and in its loops."""

import functools
import gc
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from types import FunctionType
from typing import Any, Final

_C10D: Final = "torch.distributed.distributed_c10d"
_DEVICE_BACKENDS: Final = ("nccl", "xccl")
"""Parts of the names of backends whose operations only an abort ends."""
_GREETING: Final = struct.Struct("=BIBI")
"""What a client of torch's store sends first: two requests, each with a number."""
_NUMBER: Final = struct.Struct("=I")
_VALIDATE: Final = 0
_MAGIC: Final = 0x3C85F7CE
_PING: Final = 13
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
_NCCL_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LAUNCHERS_HANDLING: Final = "1"
"""What every launcher sets: after an error, the process ends."""
_NCCL_DUMP: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_NCCL_DUMP_TIME: Final = "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
_NCCL_VARIABLES: Final = {
    # Operations that the watchdog aborts by itself seem to succeed: the function would go on with wrong numbers.
    _NCCL_HANDLING: "0",
    _NCCL_DUMP: "0",  # the file would be waited for, and then the process ended
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # it ends processes whose abort takes long
    # After an error the watchdog sleeps for four times as long (a minute), and the end of the group waits for it.
    _NCCL_DUMP_TIME: "1",
    "NCCL_SET_THREAD_NAME": "1",  # one of its threads lives as long as the process, and is known by its name
}
_MESHES: Final = "torch.distributed.device_mesh"
_TENSORS: Final = "torch.distributed.tensor"
_CACHES: Final = (
    ("_api", "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding"),
    ("_sharding_prop", "ShardingPropagator._propagate_tensor_meta_cached"),
    ("_redistribute", "_gen_transform_infos"),
    ("_collective_utils", "MeshTopoInfo.build_from_mesh"),
    ("_ops.single_dim_strategy", "_cached_create_expanded_strategy"),
)
"""Functions of distributed tensors with a cache, whose entries hold the mesh and so its groups."""


_servers_respond = False
"""Whether a server has responded to the greeting in this process."""


# --- the end of a round


def destroy_groups() -> None:
    """Destroy all process groups, and forget what an interrupted call has left. Nothing waits for a peer any more."""
    c10d: Any = sys.modules.get(_C10D)
    if c10d is None:
        return
    if c10d.is_initialized():
        with suppress(Exception):  # a peer is gone; what remains is found later
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
    _clear_tensor_caches()


def collect() -> None:
    """Find what still refers to a group: reference cycles, meshes, and default arguments of modules of the script."""
    gc.collect()
    functions = []
    mesh = getattr(sys.modules.get(_MESHES), "DeviceMesh", None)
    for each in gc.get_objects():
        if type(each) is FunctionType:
            functions.append(each)
        elif mesh is not None and type(each) is mesh:
            getattr(each, "_pg_registry", {}).clear()
    _forget_defaults(functions)


def exception_hook() -> Callable[..., object]:
    """Return `sys.excepthook`, for `restore_exception_hook`."""
    return sys.excepthook


def restore_exception_hook(before: Callable[..., object]) -> None:
    """Remove the hook of `init_process_group`, which puts the rank in front of each line. Each group adds one."""
    if getattr(sys.excepthook, "__module__", "") == _C10D:
        sys.excepthook = before


def grad_mode() -> bool:
    """Return whether torch computes gradients in this thread."""
    torch: Any = sys.modules.get("torch")
    return bool(getattr(torch, "is_grad_enabled", lambda: True)())


def restore_grad_mode(before: bool) -> None:
    """Restore the mode: an interrupt just before or after the block of `torch.no_grad()` leaves gradients off."""
    if grad_mode() != before:
        sys.modules["torch"].set_grad_enabled(before)


def free_from_cycles() -> None:
    """Exempt what exists now from garbage collections, so that the next ones take milliseconds.

    Called: a few times, just after a collection, when no group is there. What exists then, and is part of a cycle
    later, is not collected.
    """
    gc.freeze()


def device_fault() -> str:
    """Return the error that a device reports for every call from now on; empty if there is none."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # torch has several classes for it
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def _clear_tensor_caches() -> None:
    """Clear the caches of distributed tensors, if they are imported."""
    tensors: Any = sys.modules.get(_TENSORS)
    if tensors is None:
        return
    for module, function in _CACHES:
        with suppress(AttributeError):  # it is not imported, or another release has none
            attrgetter(f"{function}.cache_clear")(sys.modules.get(f"{_TENSORS}.{module}"))()
    with suppress(AttributeError):
        sys.modules[_TENSORS + "._redistribute"].clear_redistribute_planner_cache()
    with suppress(AttributeError):
        sys.modules["torch"]._C._clear_DTensor_sharding_propagator_cache()
    random: Any = sys.modules.get(f"{_TENSORS}._random")
    if random is not None:
        random._rng_tracker = None  # made again when it is needed


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
                (function.__kwdefaults__ or {})[name] = None


# --- devices


def arm_devices() -> None:
    """Have NCCL's watchdog do nothing after an error, as far as the user has set nothing: the agent ends the round.

    Called: before the first group of the process is made.
    """
    dumps = os.environ.get(_NCCL_DUMP, "0") not in ("", "0")  # the user's: NCCL needs time for it
    for name, value in _NCCL_VARIABLES.items():
        if dumps and name == _NCCL_DUMP_TIME:
            continue
        if os.environ.get(name, "") in ("", _LAUNCHERS_HANDLING if name == _NCCL_HANDLING else ""):
            os.environ[name] = value


def groups() -> list[object]:
    """Return the process groups that exist."""
    c10d: Any = sys.modules.get(_C10D)
    with suppress(AttributeError, RuntimeError):  # another thread is changing them
        return list(c10d._world.pg_map)
    return []


def has_groups() -> bool:
    """Return whether there is a default process group."""
    c10d: Any = sys.modules.get(_C10D)
    return c10d is not None and bool(c10d.is_initialized())


def has_device_group() -> bool:
    """Return whether there is a group whose operations only an abort ends."""
    c10d: Any = sys.modules.get(_C10D)
    with suppress(AttributeError, RuntimeError):
        names = [str(name) for name, _ in list(c10d._world.pg_map.values())]
        return any(part in name for name in names for part in _DEVICE_BACKENDS)
    return False


def abort() -> None:
    """Abort all groups of devices. It takes half a second, and frees a thread that waits for a device."""
    c10d: Any = sys.modules.get(_C10D)
    with suppress(Exception):  # it is gone already
        c10d._abort_process_group()


# --- stores that are not there yet


def wait_for_stores_in_python() -> None:
    """Have `init_process_group` wait in Python until the store's server is there: an interrupt ends that wait.

    Torch's own loop ends only with the group's time limit, and pauses for seconds: a server that comes a moment later
    is found within milliseconds here. Rank 0 does not wait for all clients of its server, which torch does by looks at
    intervals of 10 ms: the group waits for all ranks itself, as with a store that the agent hosts.
    Does nothing if `torch.distributed` is not imported.
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

    make = rendezvous.TCPStore

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # torch's
        if kwargs.get("is_master") is True:  # a client must count itself, for a server that waits: it may have no patch
            kwargs["wait_for_workers"] = False
        return make(*args, **kwargs)

    rendezvous._create_c10d_store, rendezvous.TCPStore = create_when_there, made


def _wait_for_server(host: str, port: int, within_s: float) -> None:
    """Wait until the server responds, or the time is over: then torch raises its own error."""
    pause, pause_s = threading.Event(), _FIRST_PAUSE_S
    until_s = time.monotonic() + within_s
    # The tables by which a text is encoded are slow to load.
    address: Any = host.encode() if host.isascii() else host
    while time.monotonic() < until_s:
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
                if _responds(connection):
                    return
        except OSError:
            pass
        pause.wait(pause_s)  # also after an empty response: a proxy may accept and close
        pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)


def _responds(connection: socket.socket) -> bool:
    """Return whether a server responds as torch's do when a client connects; also if none has ever done that here.

    A server may be stopped, so that the kernel alone accepts the connection. Torch's client would wait for it in a
    loop that nothing ends.
    """
    global _servers_respond
    connection.sendall(_GREETING.pack(_VALIDATE, _MAGIC, _PING, os.getpid()))
    try:
        response = connection.recv(_NUMBER.size)
    except TimeoutError:
        return not _servers_respond
    _servers_respond = _servers_respond or response == _NUMBER.pack(os.getpid())
    return bool(response) or not _servers_respond


def _seconds(limit: object) -> float:
    return limit.total_seconds() if isinstance(limit, timedelta) else _LONGEST_WAIT_S
