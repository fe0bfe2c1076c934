"""The threads and child processes that a training function leaves behind."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

MOST_POOL_THREADS: Final = 256
"""How many threads of native pools may have come since the first round."""
_OF_GROUPS: Final = ("gloo_", "pt_gloo", "pt_tcpstore")
"""The beginnings of the names of threads that end with the groups and stores of a round."""
_POOLS: Final = (
    "NCCL RAS",
    "cuda",
    "iou-wrk",
    "jemalloc",
    "pt_autograd",
    "pt_elastic",
    "pt_inter_op",
    "pt_nccl_",
    "pt_workerserver",
)
"""Those of threads that live as long as the process: of torch, of the device's driver and of the kernel."""
_MODULES: Final = (
    "elastic_torchrun",
    "elastic_warm",
    "elastic_watch",
    "multiprocessing.queues",
    "torch._inductor",
    "tqdm",
)
"""Modules whose threads hold nothing of a round: most live as long as the process, that of elastic-torchrun watches the
first store of a process for half a second longer than it is made, and the one that feeds a queue (of a data loader that
was cut while it ended) waits for that queue alone."""
_COMPILERS: Final = b"torch/_inductor/compile_worker"
_FUTEX_CALLS: Final = {"x86_64": "202", "aarch64": "98"}
_MAX_NAMED: Final = 3


class Before:
    """The threads and children of this process at one moment: just before the function is called."""

    def __init__(self) -> None:
        self._tasks = _tasks()
        self._idents = frozenset(sys._current_frames())
        self._children = frozenset(_children())

    def remains(self) -> list[str]:
        """Return what has come since then and could act in the next round; one line for each, some at most.

        Not among them: threads that wait for work from this process (pools of torch and of OpenMP), pools that are
        known by name, and helpers of `multiprocessing` and of the compiler that serve the whole process.
        """
        lines = [*self._threads(), *self._processes()]
        return lines[:_MAX_NAMED] + [f"and {len(lines) - _MAX_NAMED} more"] * (len(lines) > _MAX_NAMED)

    def _threads(self) -> Iterator[str]:
        of_python = {thread.native_id: thread for thread in threading.enumerate()}
        named = {thread.ident for thread in of_python.values()}
        pool = 0
        for task in _tasks() - self._tasks:
            thread = of_python.get(task)
            if thread is not None and not isinstance(thread, threading._DummyThread):
                if not _is_harmless(thread):
                    yield f"thread {thread.name!r} still runs"
                continue
            name = _read(f"/proc/self/task/{task}/comm").decode("utf-8", "replace").strip()
            if name.startswith(_OF_GROUPS):
                yield f"thread {name!r} of a process group or store still runs"
            elif name and not name.startswith(_POOLS):
                pool += 1
                if not _waits_for_work(task):
                    yield f"native thread {name!r} (id {task}) still runs"
        if pool > MOST_POOL_THREADS:
            yield f"{pool} native threads have come since the first round"
        for ident, frame in sys._current_frames().items():
            if ident not in self._idents and ident not in named:
                module = _module_at_bottom(frame)
                if not module.startswith(_MODULES):
                    yield f"a thread of module {module} still runs"

    def _processes(self) -> Iterator[str]:
        for pid in sorted(_children() - self._children):
            command = _read(f"/proc/{pid}/cmdline")
            if command and pid not in _helpers() and _COMPILERS not in command:
                text = command.replace(b"\0", b" ").decode("utf-8", "replace").strip()
                yield f"child process {pid} still runs ({text[:80]})"


def _tasks() -> frozenset[int]:
    return frozenset(int(name) for name in os.listdir("/proc/self/task"))  # noqa: PTH208  # in a hurry


def _children() -> set[int]:
    """Return the child processes that have not ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none at all
        return set()
    found: set[int] = set()
    for task in _tasks():
        found.update(int(pid) for pid in _read(f"/proc/self/task/{task}/children").split())
    return {pid for pid in found if not _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(b")")[2].split()[:1] in ([], [b"Z"], [b"X"])


def _helpers() -> set[int]:
    """Return the children that serve all users of `multiprocessing`."""
    found = set()
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    server: Any = sys.modules.get("multiprocessing.forkserver")
    with suppress(AttributeError):
        found.add(tracker._resource_tracker._pid)
    with suppress(AttributeError):
        found.add(server._forkserver._forkserver_pid)
    return found


def _is_harmless(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    module = getattr(target, "__module__", None) or type(thread).__module__
    return str(module).startswith(_MODULES)


def _waits_for_work(task: int) -> bool:
    """Return whether a thread waits until another thread of this process wakes it."""
    futex = _FUTEX_CALLS.get(os.uname().machine)
    call = _read(f"/proc/self/task/{task}/syscall").split()
    return not call or futex is None or call[0] == futex.encode()


def _module_at_bottom(frame: Any) -> str:  # noqa: ANN401  # a frame of any kind
    while frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?"))


def _read(path: str) -> bytes:
    """Return the content of a file of the kernel; empty if there is none any more."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # in a hurry
            return file.read()
    except OSError:
        return b""
