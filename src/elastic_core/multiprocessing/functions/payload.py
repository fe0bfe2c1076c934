"""A call as bytes, for processes that do not share the caller's memory."""

import os
from multiprocessing import context, reduction

from elastic_core.errors import WorkerError
from elastic_core.multiprocessing.functions.call import FunctionCall
from elastic_core.multiprocessing.functions.inherited import Inherited


class MemoryFile:
    """A file in memory that holds one pickled value."""

    def __init__(self) -> None:
        """Open an empty one."""
        self.fd = os.memfd_create("elastic-function", os.MFD_CLOEXEC)

    def write(self, value: object) -> None:
        """Fill it, as multiprocessing pickles."""
        with open(self.fd, "wb", closefd=False) as file:
            reduction.ForkingPickler(file).dump(value)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)


def pickle_call(call: FunctionCall, local_rank: int) -> tuple[MemoryFile, list[int]]:
    """Return the function and what this worker's call gets, and the descriptors that must reach it, in this order.

    multiprocessing's queues, locks and connections may be among the arguments, and tensors in shared memory: they are
    pickled as multiprocessing does for a process of its own.

    Raises:
        WorkerError: something can't be pickled.
    """
    file, fds = MemoryFile(), list[int]()
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning(fds))  # type: ignore[arg-type]  # what pickling asks of a Popen
    try:
        file.write((call.fn, call.args_of(local_rank)))
    except Exception as error:  # noqa: BLE001  # pickling runs anybody's code; told as ours
        file.close()
        raise _unpicklable(call, local_rank, error) from None
    finally:
        context.set_spawning_popen(before)
    return file, fds


class _Spawning:
    """Stands in for multiprocessing's Popen: collects the descriptors of what is pickled."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def duplicate_for_child(self, fd: int) -> int:
        """Have the worker inherit `fd`; return its place."""
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
    except Exception:  # noqa: BLE001  # whatever it is, it was told already
        return False
    finally:
        context.set_spawning_popen(before)
    return True
