"""The decision about a job whose run is stopped, from Slurm's data. Pure."""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_env_slurm.options import AUTO, OFF

_PAIR: Final = re.compile(r"(?:^|\s)([A-Za-z]\w*)[ \t]*=[ \t]*(\S*)")
_TIME: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", re.ASCII)
NEVER: Final = ("", "None", "Unknown", "N/A")
"""Slurm's value for a time that is not set."""
_YEAR_MINUTES: Final = 365 * 24 * 60
_ENDLESS: Final = ("", "UNLIMITED", "Partition_Limit", "NOT_SET", "N/A")
_RUNNING: Final = ("RUNNING", "SIGNALING")
KILL_WAIT_S: Final = 30
"""Slurm's default, if the value is not known."""


class End(enum.Enum):
    """How the agent's process ends."""

    AS_IT_IS = "as it is"
    STAY = "stay until Slurm ends it"
    """Otherwise the job would be over, with the run's code, before Slurm begins it again."""
    ASK_NOW = "ask at once"
    """Slurm is already ending its processes, so a request would change nothing."""
    ASK_LAST = "ask when the run is over"
    """Slurm then ends the rest of the job."""


class Fate(Record, frozen=True, kw_only=True):
    """The decision about a job."""

    end: End = End.AS_IT_IS
    line: str = ""
    """A line for people; empty means no line."""
    stay_s: float = 0.0
    """How long Slurm may take to end it."""
    if_stuck: str = ""
    """The line in place of `line` if no worker made progress, so that no requeue is requested.

    Empty means: request it.
    """
    within_s: float | None = None
    """How long the agent may run after the stop before Slurm kills it. `None` means until it ends by itself."""


def read_fields(text: str) -> dict[str, str]:
    """Return the fields in `scontrol show`'s output, by name. For a repeated name, the first counts."""
    found: dict[str, str] = {}
    for name, value in _PAIR.findall(text):
        found.setdefault(name, value)
    return found


def seconds_of(text: str) -> float | None:
    """Return a number of seconds in `scontrol`'s form, or `None` if it has another form."""
    return float(text) if text.isascii() and text.isdecimal() else None


def minutes_of(text: str) -> float | None:
    """Return a time in `scontrol`'s form, `2-03:04:05` or `03:04:05`, in minutes, or `None` if it has another form."""
    found = _TIME.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def has_limit(job: Mapping[str, str]) -> bool:
    """Return whether a job has a time limit. For a job without one, Slurm's backfill scheduler writes a year."""
    text = job.get("TimeLimit", "")
    return text not in _ENDLESS and (minutes_of(text) or 0) < _YEAR_MINUTES


def is_running(job: Mapping[str, str]) -> bool:
    """Return whether Slurm shows a job as running."""
    return job.get("JobState") in _RUNNING


def fate_of(
    job: Mapping[str, str],
    partition: Mapping[str, str],
    config: Mapping[str, str],
    *,
    requeue: str,
    attempt: int,
    warned: bool,
    limit: int | None = None,
    lost: Sequence[str] = (),
) -> Fate:
    """Return the decision about a job that is stopped, or that has lost agents.

    Args:
        job: Slurm's fields of it.
        partition: Slurm's fields of its partition.
        config: Slurm's configuration of the cluster.
        requeue: `--requeue`.
        attempt: The number of times it has begun again.
        warned: Whether the signal was `--preemption-signal`'s.
        limit: `--requeue-limit`. `None` means no limit.
        lost: Nodes without whose agents the run can't continue.
    """
    name = f"job {job.get('JobId', '?')}"
    if job.get("BatchFlag") != "1" or requeue == OFF:  # an interactive job can't begin again
        return Fate()
    restarts = job.get("Restarts", "0")
    if restarts.isdecimal() and int(restarts) > attempt:
        return Fate(line=f"Slurm begins {name} again")
    kill_wait_s = seconds_of(config.get("KillWait", "")) or KILL_WAIT_S
    running = is_running(job)
    asked = _Asked(job, requeue=requeue, attempt=attempt, limit=limit)
    if running and job.get("PreemptTime", "") not in NEVER:
        grace_s = seconds_of(partition.get("GraceTime", "")) or 0.0
        what, stay_s = f"{name} was preempted", grace_s + kill_wait_s + 60
        if asked.may and "REQUEUE" in (partition.get("PreemptMode") or config.get("PreemptMode", "")):
            line = f"{what}: this agent stays until Slurm ends it and begins it again"
            return Fate(end=End.STAY, stay_s=stay_s, line=line)
        return asked.fate(what, End.ASK_LAST, stay_s)
    if not running and job.get("Reason") == "TimeLimit":
        return asked.fate(f"{name} is out of time", End.ASK_NOW, kill_wait_s + 60, stuck=True, within_s=kill_wait_s)
    if running and lost:
        what = f"{name} has lost the agent of {' and '.join(lost)}"
        return asked.fate(what, End.ASK_LAST, kill_wait_s + 60, stuck=True)
    if running and warned and has_limit(job):
        # A notice in the first half of a job's time is a user's own signal: it is no limit of the attempt.
        ran, time = minutes_of(job.get("RunTime", "")), minutes_of(job.get("TimeLimit", ""))
        stuck = ran is None or time is None or ran >= time / 2
        return asked.fate(f"{name} is soon out of time", End.ASK_LAST, kill_wait_s + 60, stuck=stuck)
    if running and warned:
        why = "got the notice of --preemption-signal, but Slurm neither preempts it nor limits its time"
        return Fate(line=f"{name} {why}: it is not begun again. Try: scontrol requeue {job.get('JobId', name)}")
    if not running:
        return Fate(line=f"{name} was cancelled")
    return Fate()  # the step alone was stopped, or this agent by hand


class _Asked:
    """Whether a requeue is requested."""

    def __init__(self, job: Mapping[str, str], *, requeue: str, attempt: int, limit: int | None) -> None:
        self.may = job.get("Requeue") == "1"
        self._requeue, self._attempt, self._limit = requeue, attempt, limit

    def fate(self, what: str, end: End, stay_s: float, *, stuck: bool = False, within_s: float | None = None) -> Fate:
        """Return the decision. `stuck`: an attempt in which no worker made progress ends the job."""
        if not self.may:
            return Fate(line=f"{what}, and Slurm may not begin it again. Try: sbatch --requeue")
        if self._requeue != AUTO:
            return Fate(line=f"{what}, and is not begun again. Try: --requeue auto")
        if self._limit is not None and self._attempt >= self._limit:
            begun = "once" if self._attempt == 1 else f"{self._attempt} times"
            past = f"it has begun again {begun} already" if self._attempt else "it may not"
            return Fate(line=f"{what}, and is not begun again: {past}. Try: a greater --requeue-limit")
        if_stuck = ""
        if stuck:
            known = "no worker made a step or saved in this attempt, as far as its agent can observe"
            tried = "should_stop(step=n) or heartbeat(step=n) in the script"
            tried += "" if self._limit is not None else ", or --requeue-limit N for one that calls neither"
            if_stuck = f"{what}, and is not begun again: {known}. Try: {tried}"
        line = f"{what}: Slurm is asked to begin it again"
        return Fate(end=end, stay_s=stay_s, line=line, if_stuck=if_stuck, within_s=within_s)
