"""How a fresh interpreter is started that is to be like this one."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import process, resource_tracker, util
from pathlib import Path
from typing import Any

from elastic_core.multiprocessing.functions.call import FunctionCall
from elastic_core.multiprocessing.functions.payload import MemoryFile

_PROGRAM = str(Path(__file__).absolute().with_name("bootstrap.py"))


def fresh_command(python: str, orders_fd: int, name: str) -> list[str]:
    """Return the command line of an interpreter that does what is in the file `orders_fd`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    return [python, *flags, "-u", _PROGRAM, str(orders_fd), name]


def write_orders(call: FunctionCall, **more: object) -> tuple[MemoryFile, list[int]]:
    """Return the orders for `fresh.begin`, and the descriptors of ours that they name besides those in `more`."""
    file, tracker = MemoryFile(), _tracker_fd()
    main = _main() if call.with_main else {}
    file.write({"interpreter": _preparation(), "main": main, "tracker_fd": tracker, **more})
    return file, [] if tracker is None else [tracker]


def _preparation() -> dict[str, Any]:
    """Return what makes a fresh interpreter like this one, in the form that `multiprocessing.spawn.prepare` takes."""
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
    """Return how the worker finds the caller's main module; nothing where that has no file, as at a prompt."""
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
    """Return the pipe to multiprocessing's resource tracker, None where this process has started none."""
    fd: int | None = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]  # asking would start one
    return fd
