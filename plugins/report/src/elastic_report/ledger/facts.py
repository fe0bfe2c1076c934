"""Facts about this node and its software that may differ between runs, from files: no module is imported for them."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_NAMES: Final = ("torch-", "elastic_")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")


def versions() -> Mapping[str, str]:
    """Return the versions of Python, the kernel, torch and this project's distributions, by name."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "kernel": os.uname().release}
    for folder in sys.path:
        with suppress(OSError):
            for name in _distributions(folder):
                project, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(project.replace("_", "-"), version)
    return dict(sorted(found.items()))


def _distributions(folder: str) -> Iterator[str]:
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.endswith(".dist-info") and entry.name.startswith(_NAMES):
                yield entry.name


def machine() -> Mapping[str, str]:
    """Return the processors, memory and GPUs of this node, by name."""
    found = {"processors": str(len(os.sched_getaffinity(0)))}
    with suppress(OSError, ValueError):
        found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB"
    with suppress(OSError):
        gpus = sorted(_GPUS.iterdir())
        found["gpus"] = str(len(gpus))
        text = (gpus[0] / "information").read_text(errors="replace") if gpus else ""
        for line in text.splitlines():
            if line.startswith("Model:"):
                found["gpu model"] = line.partition(":")[2].strip()
    return found


def process_age_s() -> float:
    """Return how long ago this process was started, or up to a clock tick less. 0 if not known."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        # The kernel rounds the start down to a clock tick. An agent must not begin before an earlier one has ended.
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK"))
    return 0.0
