"""The handlers of every worker: a sign of life, and stacks from inside and from outside."""

import faulthandler
import os
import shutil
import subprocess
from typing import Final

from elastic_ops.control_plane.handlers import TEXT, Handler, Request, Response

_PY_SPY_S: Final = 60.0
_FLAGS: Final = ("native", "subprocesses", "nonblocking")


def ping(request: Request, response: Response) -> None:
    """Return `pong`: the interpreter runs."""
    response.set_content("pong", TEXT)


def dump_traceback(request: Request, response: Response) -> None:
    """Return the Python stacks of all threads, as faulthandler writes them, without reading source files."""
    with open(os.memfd_create("elastic-stacks", os.MFD_CLOEXEC), "w+b") as memory:  # noqa: PTH123  # no path
        faulthandler.dump_traceback(memory, all_threads=True)
        memory.seek(0)
        response.set_content(memory.read(), TEXT)


def pyspy_dump(request: Request, response: Response) -> None:
    """Return the output of `py-spy dump` for this process.

    The parameters native, subprocesses and nonblocking are passed on if present, with any value.
    """
    program = shutil.which("py-spy")
    if program is None:
        _refuse(response, "py-spy is not installed. Try: pip install py-spy, or the handler dump_traceback")
        return
    flags = [f"--{name}" for name in _FLAGS if name in request.params()]
    command = [program, "dump", "--pid", str(os.getpid()), *flags]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PY_SPY_S, check=False)
    except subprocess.TimeoutExpired:
        _refuse(response, f"py-spy took longer than {_PY_SPY_S:g} s")
        return
    if done.returncode == 0:
        response.set_content(done.stdout, TEXT)
        return
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    hint = "Try: the capability SYS_PTRACE (kernel.yama.ptrace_scope), or the handler dump_traceback"
    _refuse(response, f"py-spy failed (exit code {done.returncode}): {said}. {hint}")


def _refuse(response: Response, text: str) -> None:
    response.set_status(500)
    response.set_content(text, TEXT)


BUILT_IN: Final[dict[str, Handler]] = {"ping": ping, "dump_traceback": dump_traceback, "pyspy_dump": pyspy_dump}
