"""What the kernel knows of a process."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Activity:
    """What all threads of a process have done so far."""

    cpu_ms: float
    switches: int
    """Times that a thread was put on a core again: each is a wake-up, or a time slice that others wanted."""


def activity(pid: int) -> Activity:
    """Return it; a thread that has ended is not in it."""
    cpu_ns, switches = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        switches += context_switches((task / "status").read_text())
    return Activity(cpu_ms=cpu_ns / 1e6, switches=switches)


def context_switches(status: str) -> int:
    """Return the context switches, voluntary or not, that a `status` file tells."""
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches:" in line)


def pss_mib(pid: int) -> float:
    """Return the process's share of memory, where pages in common are divided by those who have them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss in /proc/{pid}/smaps_rollup")


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]
