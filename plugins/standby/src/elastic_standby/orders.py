"""What the agent sends to an interpreter that is to become a worker, and how it starts one."""

import marshal
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from elastic_core.api.starters import WorkerStart

_PROGRAM: Final = str(Path(__file__).absolute().with_name("spare.py"))
_MARSHAL: Final = 2
"""The version of the format: the worker's interpreter may be older than the agent's."""


def command_for(argv: Sequence[str], fd: int, imports: Sequence[str], *options: str) -> tuple[str, ...]:
    """Return the command of an interpreter that imports modules, and then has its orders from a socket.

    Args:
        argv: The worker's command. Its arguments are for process lists only; the orders have the actual values.
        fd: The interpreter's end of the socket.
        imports: The modules.
        options: Options of `spare.py`.
    """
    python, unbuffered, *words = argv
    return (python, unbuffered, _PROGRAM, *options, str(fd), ",".join(imports), *words)


def send_orders(to: socket.socket, worker: WorkerStart) -> None:
    """Make the interpreter at the other end the worker.

    Raises:
        OSError: It is gone, or no descriptor is left.
        ValueError: The environment is invalid.
    """
    words = [os.fsencode(word) for word in worker.argv[2:]]
    # In a file, not in the socket: whatever its size, it is sent at once or not at all.
    fd = os.memfd_create("elastic-orders", os.MFD_CLOEXEC)
    try:
        rest = memoryview(marshal.dumps((_encoded(worker.environment), words), _MARSHAL))
        while rest:
            rest = rest[os.write(fd, rest) :]
        out, err = (ours if own is None else own for own, ours in ((worker.stdout, 1), (worker.stderr, 2)))
        socket.send_fds(to, [b"\0"], [fd, out, err])
    finally:
        os.close(fd)


def working_folder() -> tuple[int, int] | None:
    """Return the identity of the working directory. `None` if it cannot be entered."""
    try:
        found = os.stat(".")  # noqa: PTH116  # cheaper, and what is meant
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _encoded(environment: Mapping[str, str]) -> bytes:
    entries = []
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError("illegal environment variable")
        entries.append(os.fsencode(f"{name}={value}\0"))
    return b"".join(entries)
