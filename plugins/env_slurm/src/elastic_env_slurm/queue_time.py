"""Since when a job was in Slurm's queue, from Slurm's data. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from elastic_env_slurm.fate import NEVER

TOPIC: Final = "requeue-queued"
"""The number on which the nodes of a job agree: the time since which it was queued, as only one node requests it."""
SOON_S: Final = 600.0
"""If the agent started later after the job's start, the job did other work before: the queue did not delay this run."""


def queued_since_s(job: Mapping[str, str], started: str) -> int:
    """Return the time since which a job waited for its nodes, in seconds since the Unix epoch. 0 means not known.

    Args:
        job: Slurm's fields of the job.
        started: `SLURM_JOB_START_TIME`, in seconds since the Unix epoch.
    """
    since = next((job[name] for name in ("EligibleTime", "SubmitTime") if job.get(name, "") not in NEVER), "")
    start_s = start_time_s(started)
    try:
        # Slurm shows both times in the cluster's time zone, which need not be this host's.
        waited = datetime.fromisoformat(job.get("StartTime", "")) - datetime.fromisoformat(since)
    except (ValueError, TypeError):
        return 0
    return max(0, start_s - max(0, round(waited.total_seconds()))) if start_s else 0


def start_time_s(started: str) -> int:
    """Return `SLURM_JOB_START_TIME` as a number; 0 if it is none, as with Slurm before 22.05."""
    return int(started) if started.isascii() and started.isdecimal() else 0
