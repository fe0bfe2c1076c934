"""Detects that this process is in a Slurm step although its environment lacks the step's variables."""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from elastic_core.processes.procfs import read_file, read_stat

_CGROUP: Final = r"(?am)/job_(\d+)/step_(\d+)(?:/|$)"
_TITLE: Final = r"(?a)slurmstepd: \[(\d+)\.(\d+)\]"


def cleaned_step() -> list[str]:
    """Return a line if this process is in a Slurm step, but has none of its variables.

    Called: if no scheduler is detected. Containers that clean the environment (`apptainer exec --cleanenv`) cause this.
    """
    step = step_of((read_file("/proc/self/cgroup") or b"").decode(errors="replace"), _titles())
    if not step:
        return []
    what = f"this process is in step {step} of Slurm, but has no SLURM_JOB_ID: its environment was cleaned"
    return [f"{what}, and this node trains alone. Try: apptainer exec without --cleanenv, or pass on SLURM_*"]


def step_of(cgroup: str, titles: Iterable[str]) -> str:
    """Return the step of a process, such as `4711.0`, by its cgroup or its parents' command lines. Empty if none."""
    # Few nodes have Slurm: on the others no pattern is compiled.
    found = re.search(_CGROUP, cgroup) if "/step_" in cgroup else None
    found = found or next((hit for each in titles if each[:5] == "slurm" and (hit := re.match(_TITLE, each))), None)
    return f"{found[1]}.{found[2]}" if found else ""


def _titles() -> Iterator[str]:
    # The command lines of this process's parents, the nearest first.
    pid = os.getppid()
    while pid > 1 and (stat := read_stat(pid)) is not None:
        yield (read_file(f"/proc/{pid}/cmdline") or b"").decode(errors="replace")
        pid = stat.parent
