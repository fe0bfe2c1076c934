"""`status.json` in the run directory: what an agent is doing, for `elastic status` and other tools."""

import _thread
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from elastic_core.encoding import decode_json, encode_json
from elastic_core.private_file import read_file as read_whole
from elastic_core.private_file import replace_file
from elastic_core.processes.procfs import read_file, read_stat
from elastic_core.types import Record

SCHEMA_VERSION: Final = 1
STATUS_FILE: Final = "status.json"
MOST_BYTES: Final = 4 << 20
"""The longest that is read: anybody may have put a file of that name there. One of a thousand workers has 100 kB."""


class AgentIdentity(Record, frozen=True, kw_only=True):
    """Which process it is, so that another one with its number is not taken for it.

    `start_ticks` count from the boot of the host, `boot_id` says which boot, `pid_namespace` which world of numbers.
    """

    pid: int
    start_ticks: int = 0
    boot_id: str = ""
    pid_namespace: str = ""
    host: str = ""
    started_ns: int = 0


class WorkerStatus(Record, frozen=True, kw_only=True):
    """One worker of this node. `state`: `alive`, `done` (it ended well by itself), or `ended`."""

    local_rank: int
    global_rank: int
    pid: int
    state: str


class RoundStatus(Record, frozen=True, kw_only=True):
    """This node's place in the round that it is or was last in."""

    index: int
    token: int = 0
    node_rank: int = 0
    node_count: int = 1
    base_rank: int = 0
    local_world_size: int = 1
    world_size: int = 1
    role: str = "default"
    master_addr: str = ""
    master_port: int = 0


class EndStatus(Record, frozen=True, kw_only=True):
    """How the agent ended. `outcome`: `succeeded`, `failed` or `stopped`."""

    outcome: str
    exit_code: int
    reason: str


class AgentStatus(Record, frozen=True, kw_only=True):
    """The file. Times `_ns` are nanoseconds since the Unix epoch, by this node's clock.

    `state` is a word of the agent's state machine in lower case; `since_ns` when it came into it; `reason` why. What
    has a limit has it in `max_…`, None where there is none. `trouble`: what keeps the rendezvous, empty if nothing.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    node_id: str
    agent: AgentIdentity
    backend: str
    where: str = ""
    """The store as people know it, without secrets; empty where there is none."""
    state: str
    since_ns: int = 0
    reason: str = ""
    round: RoundStatus | None = None
    workers: tuple[WorkerStatus, ...] = ()
    restart_count: int = 0
    max_restarts: int | None = None
    membership_changes: int = 0
    max_membership_changes: int | None = None
    control: str = ""
    """The path of the agent's socket; empty: it listens to nobody."""
    last_incident: str = ""
    """The path of its file; empty: there was none."""
    trouble: str = ""
    trouble_since_ns: int = 0
    hooks: Mapping[str, Mapping[str, object]] = {}
    """What hooks say of themselves, by their names."""
    end: EndStatus | None = None
    written_ns: int = 0


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
