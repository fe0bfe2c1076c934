"""What becomes of a job whose run was told to stop: pure, from what Slurm says of it."""

import enum
import re
from collections.abc import Mapping
from typing import Final

from elastic_core.api import Record
from elastic_env_slurm.options import AUTO, OFF

_PAIR: Final = re.compile(r"(?:^|\s)([A-Za-z]\w*)[ \t]*=[ \t]*(\S*)")
_NEVER: Final = ("", "None", "Unknown", "N/A")
_ENDLESS: Final = ("", "UNLIMITED", "Partition_Limit", "NOT_SET", "N/A")
_RUNNING: Final = ("RUNNING", "SIGNALING")
KILL_WAIT_S: Final = 30
"""Slurm's default, where it is not known."""


class End(enum.Enum):
    """How the agent's process ends."""

    AS_IT_IS = "as it is"
    STAY = "stay until Slurm ends it"
    """The job would else be over, with the run's code, before Slurm comes to begin it again."""
    ASK_NOW = "ask at once"
    """Its processes are being ended already: nothing that asking could cut short."""
    ASK_LAST = "ask when the run is over"
    """Slurm then ends what is left of the job."""


class Fate(Record, frozen=True, kw_only=True):
    """What becomes of a job."""

    end: End = End.AS_IT_IS
    line: str = ""
    """For people; empty: nothing that they don't know."""
    stay_s: float = 0.0
    """How long Slurm may take to end it."""


def read_fields(text: str) -> dict[str, str]:
    """Return what `scontrol show` has written, by name; of several of one name the first."""
    found: dict[str, str] = {}
    for name, value in _PAIR.findall(text):
        found.setdefault(name, value)
    return found


def seconds_of(text: str) -> float | None:
    """Return a number of seconds as `scontrol` writes it, None where it is none."""
    return float(text) if text.isascii() and text.isdecimal() else None


def is_running(job: Mapping[str, str]) -> bool:
    """Return whether a job runs, as far as Slurm is concerned."""
    return job.get("JobState") in _RUNNING


def fate_of(
    job: Mapping[str, str],
    partition: Mapping[str, str],
    config: Mapping[str, str],
    *,
    requeue: str,
    attempt: int,
    warned: bool,
) -> Fate:
    """Return what becomes of a job that was told to stop.

    Args:
        job: What Slurm says of it.
        partition: And of its partition.
        config: And of the cluster.
        requeue: `--requeue`.
        attempt: How often it has begun again.
        warned: The signal was the notice of `--preemption-signal`.
    """
    name = f"job {job.get('JobId', '?')}"
    if job.get("BatchFlag") != "1" or requeue == OFF:  # nobody can begin an interactive job again
        return Fate()
    restarts = job.get("Restarts", "0")
    if restarts.isdecimal() and int(restarts) > attempt:
        return Fate(line=f"Slurm begins {name} again")
    kill_wait_s = seconds_of(config.get("KillWait", "")) or KILL_WAIT_S
    running = is_running(job)
    may = job.get("Requeue") == "1"
    if running and job.get("PreemptTime", "") not in _NEVER:
        grace_s = seconds_of(partition.get("GraceTime", "")) or 0.0
        by_itself = "REQUEUE" in (partition.get("PreemptMode") or config.get("PreemptMode", ""))
        return _asked(f"{name} was preempted", requeue, may=may, by_itself=by_itself, stay_s=grace_s + kill_wait_s + 60)
    if not running and job.get("Reason") == "TimeLimit":
        return _asked(f"{name} is out of time", requeue, may=may, stay_s=kill_wait_s + 60, now=True)
    if running and warned and job.get("TimeLimit", "") not in _ENDLESS:
        return _asked(f"{name} is soon out of time", requeue, may=may, stay_s=kill_wait_s + 60)
    if not running:
        return Fate(line=f"{name} was cancelled")
    return Fate()  # the step alone was stopped, or this agent by hand


def _asked(what: str, requeue: str, *, may: bool, stay_s: float, by_itself: bool = False, now: bool = False) -> Fate:
    if not may:
        return Fate(line=f"{what}, and Slurm may not begin it again. Try: sbatch --requeue")
    if by_itself:
        return Fate(
            end=End.STAY, stay_s=stay_s, line=f"{what}: this agent stays until Slurm ends it and begins it again"
        )
    if requeue != AUTO:
        return Fate(line=f"{what}, and is not begun again. Try: --requeue auto")
    end = End.ASK_NOW if now else End.ASK_LAST
    return Fate(end=end, stay_s=stay_s, line=f"{what}: Slurm is asked to begin it again")
