"""The identity of an agent's process: its number alone may belong to another process by now."""

import os
from typing import Annotated

import msgspec

from elastic_core.processes.procfs import read_file, read_stat
from elastic_core.types import Record

EpochNs = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Nanoseconds since the Unix epoch."""


class AgentIdentity(Record, frozen=True, kw_only=True):
    """Which process an agent is."""

    pid: int
    """Its number."""
    start_ticks: int = 0
    """When it started, in clock ticks since the boot of its host."""
    boot_id: str = ""
    """Which boot of the host that was."""
    pid_namespace: str = ""
    """Which world of process numbers it is in."""
    host: str = ""
    """The host's name."""
    started_ns: EpochNs = 0
    """When the agent began, nanoseconds since the Unix epoch."""

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
        """Whether that process was started in this boot of this host."""
        return self.boot_id == _boot_id()

    @property
    def running(self) -> bool | None:
        """Whether that very process runs; None: it can't be seen from here (another host, boot or container)."""
        if not self.same_boot or self.pid_namespace != _pid_namespace():
            return None
        stat = read_stat(self.pid)
        return stat is not None and stat.alive and stat.start_ticks == self.start_ticks


def _boot_id() -> str:
    """Return which boot of this host it is, empty if the kernel does not say."""
    return (read_file("/proc/sys/kernel/random/boot_id") or b"").decode(errors="replace").strip()


def _pid_namespace() -> str:
    """Return in which world of process numbers this process is, empty if the kernel does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # no path: a name in brackets
    except OSError:
        return ""
