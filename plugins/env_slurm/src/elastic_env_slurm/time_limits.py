"""Slurm's time limits, compared with those of a run. Pure."""

import math
from collections.abc import Mapping
from typing import Final

from elastic_env_slurm.fate import NEVER, has_limit, is_running, seconds_of

_MARGIN_S: Final = 5.0
"""How much earlier than Slurm's limit a proposed time ends."""
_NO_PREEMPTION: Final = ("", "preempt/none", "(null)")


def line_about_times(
    job: Mapping[str, str],
    partition: Mapping[str, str],
    config: Mapping[str, str],
    *,
    shutdown_s: float,
    save_s: float | None,
    notice: bool,
) -> str:
    """Return a line if workers may take longer to save and stop than Slurm allows, else an empty text.

    Args:
        job: Slurm's fields of the job.
        partition: Slurm's fields of its partition.
        config: The configuration of the cluster.
        shutdown_s: `--shutdown-timeout`.
        save_s: `--save-timeout`. `None` means that no worker is known to save before a planned stop.
        notice: Whether `--preemption-signal` is given, so that the run saves before the time limit.
    """
    kill_wait_s = seconds_of(config.get("KillWait", ""))
    if kill_wait_s is None:
        return ""
    if shutdown_s > kill_wait_s:
        return (
            f"Slurm kills what is left {kill_wait_s:g} s after it has stopped a job (KillWait), and "
            f"--shutdown-timeout is {shutdown_s:g} s. Try: --shutdown-timeout {max(kill_wait_s - _MARGIN_S, 1):g}"
        )
    if save_s is None:
        return ""
    needed_s = save_s + shutdown_s
    needed = f"workers may take {needed_s:g} s to save and stop (--save-timeout {save_s:g} s, --shutdown-timeout "
    needed += f"{shutdown_s:g} s)"
    if has_limit(job) and not notice and needed_s > kill_wait_s:
        warning_s = math.ceil((needed_s + kill_wait_s) / 60) * 60
        return (
            f"Slurm kills what is left {kill_wait_s:g} s after the time limit (KillWait), and {needed}. Try: elastic "
            f"slurm submit --warning {warning_s // 60}m, or sbatch --signal=USR1@{warning_s} with --preemption-signal "
            "USR1"
        )
    grace_s = seconds_of(partition.get("GraceTime", "")) or 0.0
    mode = partition.get("PreemptMode") or config.get("PreemptMode", "")
    preempted = config.get("PreemptType", "") not in _NO_PREEMPTION and mode not in ("", "OFF")
    if preempted and needed_s > grace_s + kill_wait_s:
        left_s = grace_s + kill_wait_s - _MARGIN_S
        stop_s = min(shutdown_s, max(math.floor(left_s / 3), 1))
        return (
            f"Slurm kills what is left {grace_s + kill_wait_s:g} s after it has preempted a job (GraceTime {grace_s:g} "
            f"s, KillWait {kill_wait_s:g} s), and {needed}. Try: --save-timeout {max(left_s - stop_s, 1):g} "
            f"--shutdown-timeout {stop_s:g}, or a partition with a longer GraceTime"
        )
    return ""


def line_about_stop(
    job: Mapping[str, str], partition: Mapping[str, str], config: Mapping[str, str], *, needed_s: float
) -> str:
    """Return a line if Slurm, which stops this job now, kills workers before their time is over, else an empty text.

    Args:
        job: Slurm's fields of the job.
        partition: Slurm's fields of its partition.
        config: The configuration of the cluster.
        needed_s: How long workers may take to save and stop.
    """
    left_s, names = seconds_of(config.get("KillWait", "")), "KillWait"
    if is_running(job):
        if job.get("PreemptTime", "") in NEVER:
            return ""  # a signal of the user's own
        names = "GraceTime, KillWait"
        left_s = None if left_s is None else left_s + (seconds_of(partition.get("GraceTime", "")) or 0.0)
    if left_s is None or needed_s <= left_s:
        return ""
    return f"Slurm kills what is left {left_s:g} s after its signal ({names}): before the {needed_s:g} s are over"
