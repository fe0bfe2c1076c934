"""What becomes of a job whose run was told to stop: pure, from what Slurm says of it."""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_env_slurm.options import AUTO, OFF

_PAIR: Final = re.compile(r"(?:^|\s)([A-Za-z]\w*)[ \t]*=[ \t]*(\S*)")
_TIME: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", re.ASCII)
NEVER: Final = ("", "None", "Unknown", "N/A")
"""A time of Slurm's that was not and will not be."""
_YEAR_MINUTES: Final = 365 * 24 * 60
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
    if_stuck: str = ""
    """The line in place of `line`, if no worker got anywhere: Slurm is then not asked. Empty: it is asked anyway."""
    within_s: float | None = None
    """How long the agent exists after it was told to stop, as Slurm kills it then; `None`: until it ends by itself."""


def read_fields(text: str) -> dict[str, str]:
    """Return what `scontrol show` has written, by name; of several of one name the first."""
    found: dict[str, str] = {}
    for name, value in _PAIR.findall(text):
        found.setdefault(name, value)
    return found


def seconds_of(text: str) -> float | None:
    """Return a number of seconds as `scontrol` writes it, None where it is none."""
    return float(text) if text.isascii() and text.isdecimal() else None


def minutes_of(text: str) -> float | None:
    """Return a time as `scontrol` writes it, `2-03:04:05` or `03:04:05`, in minutes; `None`: it is none."""
    found = _TIME.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def has_limit(job: Mapping[str, str]) -> bool:
    """Return whether a job's time is limited: Slurm's backfill scheduler writes a year for a job without a limit."""
    text = job.get("TimeLimit", "")
    return text not in _ENDLESS and (minutes_of(text) or 0) < _YEAR_MINUTES


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
    limit: int | None = None,
    lost: Sequence[str] = (),
) -> Fate:
    """Return what becomes of a job that was told to stop, or that has lost agents.

    Args:
        job: What Slurm says of it.
        partition: And of its partition.
        config: And of the cluster.
        requeue: `--requeue`.
        attempt: How often it has begun again.
        warned: The signal was the notice of `--preemption-signal`.
        limit: `--requeue-limit`; `None`: there is none.
        lost: Nodes without whose agents the run can't go on.
    """
    name = f"job {job.get('JobId', '?')}"
    if job.get("BatchFlag") != "1" or requeue == OFF:  # nobody can begin an interactive job again
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
        # A notice in the first half of a job's time is somebody's: it ends no attempt that should be further.
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
    """Whether Slurm is asked to begin a job again."""

    def __init__(self, job: Mapping[str, str], *, requeue: str, attempt: int, limit: int | None) -> None:
        self.may = job.get("Requeue") == "1"
        self._requeue, self._attempt, self._limit = requeue, attempt, limit

    def fate(self, what: str, end: End, stay_s: float, *, stuck: bool = False, within_s: float | None = None) -> Fate:
        """Return what becomes of the job; `stuck`: an attempt in which no worker got anywhere ends it."""
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
