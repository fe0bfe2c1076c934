"""A call, and the orders of a fresh interpreter, as bytes for processes that do not share the caller's memory."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import context, process, reduction, resource_tracker, util
from pathlib import Path
from typing import Any

from elastic_core.api.workers import WorkerError
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.functions.child import Inherited

_PROGRAM = str(Path(__file__).absolute().with_name("bootstrap.py"))


class MemoryFile:
    """A file in memory with one pickled value."""

    def __init__(self) -> None:
        """Open an empty one."""
        self.fd = os.memfd_create("elastic-function", os.MFD_CLOEXEC)

    def write(self, value: object) -> None:
        """Fill it, as multiprocessing pickles."""
        with open(self.fd, "wb", closefd=False) as file:
            reduction.ForkingPickler(file).dump(value)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def close(self) -> None:
        """Release it."""
        os.close(self.fd)


def pickle_call(call: FunctionCall, local_rank: int) -> tuple[MemoryFile, list[int]]:
    """Return the function with this worker's arguments, and the descriptors that the worker needs, in this order.

    The arguments may contain multiprocessing's queues, locks and connections, and tensors in shared memory. They are
    pickled as multiprocessing does for its own processes.

    Raises:
        WorkerError: an object can't be pickled.
    """
    file, fds = MemoryFile(), list[int]()
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning(fds))  # type: ignore[arg-type]  # what pickling asks of a Popen
    try:
        file.write((call.fn, call.args_of(local_rank)))
    except Exception as error:  # noqa: BLE001  # pickling runs foreign code; raised as WorkerError
        file.close()
        raise _unpicklable(call, local_rank, error) from None
    finally:
        context.set_spawning_popen(before)
    return file, fds


class _Spawning:
    """Replaces multiprocessing's Popen: collects the descriptors of pickled objects."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def duplicate_for_child(self, fd: int) -> int:
        """Let the worker inherit `fd`; return its place."""
        self._fds.append(fd)
        return len(self._fds) - 1

    DupFd = Inherited


def _unpicklable(call: FunctionCall, local_rank: int, error: Exception) -> WorkerError:
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if not _picklable(call.fn):
        return WorkerError(
            f"function {call.name!r} can't be sent to its workers ({call.start_method}): {reason}",
            hint="define it at the top level of a module, or start_method='fork'",
        )
    args = call.args_of(local_rank)
    at = next((index for index, arg in enumerate(args) if not _picklable(arg)), None)
    which = "the arguments" if at is None else f"argument {at + 1} ({type(args[at]).__name__})"
    return WorkerError(
        f"{which} of function {call.name!r} can't be sent to its workers ({call.start_method}): {reason}",
        hint="pass what can be pickled, such as paths and numbers, or start_method='fork'",
    )


def _picklable(value: object) -> bool:
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning([]))  # type: ignore[arg-type]  # as in `pickle_call`
    try:
        reduction.ForkingPickler.dumps(value)
    except Exception:  # noqa: BLE001  # any error was reported already
        return False
    finally:
        context.set_spawning_popen(before)
    return True


def fresh_command(python: str, orders_fd: int, name: str) -> list[str]:
    """Return the command line of an interpreter that carries out the orders in the file `orders_fd`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    return [python, *flags, "-u", _PROGRAM, str(orders_fd), name]


def write_orders(call: FunctionCall, **more: object) -> tuple[MemoryFile, list[int]]:
    """Return the orders for `child.begin`, and the descriptors that they name in addition to those in `more`."""
    file, tracker = MemoryFile(), _tracker_fd()
    main = _main() if call.with_main else {}
    file.write({"interpreter": _preparation(), "main": main, "tracker_fd": tracker, **more})
    return file, [] if tracker is None else [tracker]


def _preparation() -> dict[str, Any]:
    """Return the data for `multiprocessing.spawn.prepare` that make a fresh interpreter like this one."""
    folder = process.ORIGINAL_DIR  # type: ignore[attr-defined]  # undocumented, as old as spawn
    data: dict[str, Any] = {
        "log_to_stderr": util._log_to_stderr,  # type: ignore[attr-defined]  # as above
        "authkey": bytes(process.current_process().authkey),
        "sys_path": [folder if entry == "" and folder is not None else entry for entry in sys.path],
        "sys_argv": sys.argv,
        "orig_dir": folder,
        "dir": os.getcwd(),  # noqa: PTH109  # text, for multiprocessing
    }
    method = multiprocessing.get_start_method(allow_none=True)
    if method is not None:
        data["start_method"] = method
    return data


def _main() -> dict[str, str]:
    """Return how the worker finds the caller's main module; empty if that has no file, as at a prompt."""
    folder = process.ORIGINAL_DIR  # type: ignore[attr-defined]  # as in `_preparation`
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    if path is None:
        return {}
    whole = Path(os.path.normpath(os.path.join(folder or "", path)))  # noqa: PTH118  # as multiprocessing does
    return {"init_main_from_path": str(whole)} if whole.exists() else {}


def _tracker_fd() -> int | None:
    """Return the pipe to multiprocessing's resource tracker. `None` if this process has started none."""
    fd: int | None = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]  # asking would start one
    return fd
