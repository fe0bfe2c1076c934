"""`torch.distributed.elastic.utils.process_state`, by ours."""

from elastic_core.multiprocessing.procfs import read_stat

__all__ = ["is_uninterruptible_state", "read_proc_state"]


def read_proc_state(pid: int) -> str | None:
    """Return the letter of a process's state (`R`, `S`, `D`, `Z` …); None: there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def is_uninterruptible_state(state: str | None) -> bool:
    """Return whether a state is the uninterruptible sleep."""
    return (state or "").startswith("D")
