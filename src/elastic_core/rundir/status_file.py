"""`status.json` in the run directory: what an agent is doing, for `elastic status` and other tools."""

import _thread
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from elastic_core.encoding import decode_json, encode_json
from elastic_core.private_file import read_file as read_whole
from elastic_core.private_file import replace_file
from elastic_core.processes.procfs import read_file, read_stat
from elastic_core.status import AgentIdentity, AgentStatus

STATUS_FILE: Final = "status.json"
MOST_BYTES: Final = 4 << 20
"""The longest that is read: anybody may have put a file of that name there. One of a thousand workers has 100 kB."""


def own_identity(*, host: str, started_ns: int) -> AgentIdentity:
    """Return who this process is."""
    stat = read_stat(os.getpid())
    return AgentIdentity(
        pid=os.getpid(),
        start_ticks=0 if stat is None else stat.start_ticks,
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        host=host,
        started_ns=started_ns,
    )


def is_running(agent: AgentIdentity) -> bool | None:
    """Return whether that very process runs; None: it can't be seen from here (another host or container)."""
    if agent.boot_id != boot_id() or agent.pid_namespace != pid_namespace():
        return None
    stat = read_stat(agent.pid)
    return stat is not None and stat.alive and stat.start_ticks == agent.start_ticks


def boot_id() -> str:
    """Return which boot of this host it is, empty if the kernel does not say."""
    return (read_file("/proc/sys/kernel/random/boot_id") or b"").decode(errors="replace").strip()


def pid_namespace() -> str:
    """Return in which world of process numbers this process is, empty if the kernel does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # no path: a name in brackets
    except OSError:
        return ""


def write_status(path: Path, status: AgentStatus) -> None:
    """Replace the file at once, readable by its owner only.

    Raises:
        OSError: it can't be written; what was there before is unchanged.
    """
    replace_file(path, encode_json(status) + b"\n")


def read_status(path: Path) -> AgentStatus:
    """Return what `write_status` wrote, by this version or a later one.

    Raises:
        OSError: it can't be read, or is too long.
        msgspec.DecodeError: it is no status.
    """
    return decode_json(read_whole(path, most_bytes=MOST_BYTES), AgentStatus)


class StatusWriter:
    """Writes the newest status on a thread that lives no longer than there is something to write.

    A disk that hangs holds up nobody but that thread.

    Threading: `put` and `close` on the supervisor's thread; `failed` is called on the writing one, once at most.
    """

    def __init__(self, path: Path, *, failed: Callable[[OSError], None]) -> None:
        """Write nothing yet."""
        self._path = path
        self._failed: Callable[[OSError], None] | None = failed
        self._lock = threading.Condition()
        self._next: AgentStatus | None = None
        self._writing = False

    def put(self, status: AgentStatus) -> None:
        """Have it written; one that is still waiting is left out."""
        with self._lock:
            self._next = status
            if self._writing:
                return
            self._writing = True
        try:
            # Not `threading.Thread`, whose `start` waits until the thread runs: milliseconds on a busy node.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # no thread to be had: the file stays as it is until the next change
            self._writing = False

    def close(self, *, within_s: float) -> None:
        """Wait for what is being written, not for ever."""
        with self._lock:
            self._lock.wait_for(lambda: not self._writing, timeout=within_s)

    def _work(self) -> None:
        while (status := self._take()) is not None:
            try:
                write_status(self._path, status)
            except OSError as err:
                failed, self._failed = self._failed, None
                if failed is not None:
                    failed(err)

    def _take(self) -> AgentStatus | None:
        with self._lock:
            status, self._next = self._next, None
            if status is None:
                self._writing = False
                self._lock.notify_all()
            return status
