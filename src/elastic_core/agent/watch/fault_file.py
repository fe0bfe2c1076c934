"""Stacks of workers that are not watched for hangs: their hook writes them where it would write a fatal error."""

import os
import signal
from contextlib import suppress

from elastic_core.agent.watch.beat_file import MAX_STACKS_BYTES
from elastic_core.processes import signals
from elastic_core.processes.beat_layout import STACKS_BELOW_RTMAX
from elastic_core.processes.procfs import read_stat


class FaultFile:
    """One worker's file for fatal errors; the hook makes it when it is armed."""

    def __init__(self, path: str) -> None:
        """Open nothing."""
        self._path = path

    @property
    def stacks_end(self) -> int:
        """Where the next stack will begin."""
        try:
            return os.stat(self._path).st_size  # noqa: PTH116  # as cheap as it can be, for it is asked often
        except OSError:
            return 0

    def stacks(self, begin: int) -> str:
        """Return what was written from `begin` on, a bounded part of it."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(begin)
                return file.read(MAX_STACKS_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Have the worker's interpreter write its stacks; False: it would not, or can't.

        The signal ends a process that does not catch it: it goes to the worker alone, and only while that has our hook
        armed, catches the signal, and is not stopped.
        """
        signum = signal.SIGRTMAX - STACKS_BELOW_RTMAX
        stat = read_stat(worker_pid)
        armed = os.path.exists(self._path)  # noqa: PTH110
        if not armed or stat is None or stat.state in "TtZX" or not signals.catches(worker_pid, signum):
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.kill(worker_pid, signum)
            return True
        return False
