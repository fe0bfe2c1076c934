"""The identity of an agent's process: its pid alone may be another process's by now."""

import os
from typing import Annotated

import msgspec

from elastic_core.processes.procfs import read_file, read_stat
from elastic_core.types import Record

EpochNs = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Nanoseconds since the Unix epoch."""


class AgentIdentity(Record, frozen=True, kw_only=True):
    """The identity of an agent's process."""

    pid: int
    """The process id."""
    start_ticks: int = 0
    """When the process started, in clock ticks since its host's boot."""
    boot_id: str = ""
    """The id of that boot."""
    pid_namespace: str = ""
    """The namespace of its process id."""
    host: str = ""
    """The host's name."""
    started_ns: EpochNs = 0
    """When the agent began, in nanoseconds since the Unix epoch."""

    @classmethod
    def own(cls, *, host: str, started_ns: int) -> "AgentIdentity":
        """Return the identity of this process."""
        stat = read_stat(os.getpid())
        return cls(
            pid=os.getpid(),
            start_ticks=0 if stat is None else stat.start_ticks,
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            host=host,
            started_ns=started_ns,
        )

    @property
    def same_boot(self) -> bool:
        """Whether the process was started in this boot of this host."""
        return self.boot_id == _boot_id()

    @property
    def running(self) -> bool | None:
        """Whether that process runs. `None` if it cannot be seen from here (another host, boot or container)."""
        if not self.same_boot or self.pid_namespace != _pid_namespace():
            return None
        stat = read_stat(self.pid)
        return stat is not None and stat.alive and stat.start_ticks == self.start_ticks


def _boot_id() -> str:
    # Empty if the kernel does not report it.
    return (read_file("/proc/sys/kernel/random/boot_id") or b"").decode(errors="replace").strip()


def _pid_namespace() -> str:
    # Empty if the kernel does not report it.
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # not a path
    except OSError:
        return ""
