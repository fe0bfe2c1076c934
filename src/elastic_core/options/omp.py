"""How many OpenMP threads each worker gets."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from elastic_core.options.choices import Choices
from elastic_core.options.values import integer


def omp_threads(choices: Choices, nproc: int, environ: Mapping[str, str]) -> tuple[int | None, str, str | None]:
    """Return what to export as OMP_NUM_THREADS (None: leave it), where that is from, and a line for the user.

    Raises:
        ConfigError: `--omp-threads` is neither `auto` nor a number from 1 up.
    """
    text = choices.text("omp_threads")
    if text == "auto":
        cores = usable_cores()
        return max(1, cores // nproc), f"derived: {cores} usable cores for {nproc} workers", None
    if text is not None:
        return integer(choices, "omp_threads", at_least=1), choices.origin("omp_threads"), None
    if "OMP_NUM_THREADS" in environ:
        return None, "env OMP_NUM_THREADS", None
    if nproc == 1:
        return None, "default", None
    line = f"OMP_NUM_THREADS is unset: each of the {nproc} workers gets 1 thread. Try: --omp-threads auto"
    return 1, "derived: unset, several workers", line


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the cores this process may keep busy: its CPU affinity, and the CPU quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup_root, membership)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup_root: Path, membership: Path) -> float | None:
    """Return the tightest CPU quota from our control group up to the root, in cores; None where there is none."""
    own = next((line[3:] for line in _read(membership).splitlines() if line.startswith("0::")), "/")
    folder = cgroup_root / own.strip().lstrip("/")
    quotas = []
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroup_root):
            break
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and all(field.isdecimal() for field in fields) and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # no such control group or controller: it limits nothing
