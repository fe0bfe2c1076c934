"""The hook behind `--uninterruptible-timeout`."""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    Clock,
    FailureClass,
    FailureReport,
    FailureSeen,
    HookSettings,
    OptionSpec,
    Power,
    RunningWorker,
    RunTimer,
    WorkerFault,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.tools import rank_ranges
from elastic_watch.options import UNINTERRUPTIBLE_TIMEOUT
from elastic_watch.sleep import Sleep, look, sleep_place, sleep_serial

LOOKS_A_LIMIT: Final = 4
SHORTEST_LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 5.0
MAX_RANKS: Final = 16
"""The limit of ranks in the incident, which passes through the store."""


class Sleeper(NamedTuple):
    """A worker that has slept for too long. `wait`: the kernel function, empty if not known."""

    local_rank: int
    global_rank: int
    slept_s: float
    wait: str


class SleepWatch(AgentHook):
    """Checks this node's workers while they run.

    Workers that have slept for too long are reported once a round, the longest first. While another failure is being
    decided, they are reported again at each check.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (UNINTERRUPTIBLE_TIMEOUT,)
    clock: Clock = SYSTEM_CLOCK
    proc: str = "/proc"
    """The directory in which the kernel shows processes."""

    def __init__(self, settings: HookSettings) -> None:
        """Watch nothing yet."""
        super().__init__(settings)
        self._limit_s = settings.option("uninterruptible_timeout", float)
        self._sleeps: dict[int, Sleep] = {}
        self._timer: RunTimer | None = None

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check."""
        self._end()
        self._sleeps = {}
        if self._limit_s > 0:
            self._look_later()

    def on_failure(self, event: FailureSeen) -> None:
        """Stop checking if the failure was reported by this hook."""
        if event.failure.failure_class is FailureClass.HANG and event.failure.local_rank in self._sleeps:
            self._end()

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Stop checking."""
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        pause_s = min(max(self._limit_s / LOOKS_A_LIMIT, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        self._timer = self.run.call_later(pause_s, self._look)

    def _look(self) -> None:
        workers = {worker.local_rank: worker for worker in self.run.workers()}
        now_s = self.clock.monotonic_s()
        serials = {rank: sleep_serial(worker.pid, proc=self.proc) for rank, worker in workers.items()}
        self._sleeps = look(self._sleeps, serials, now_s=now_s)
        stuck = [
            self._sleeper(workers[rank], now_s - sleep.since_s)
            for rank, sleep in self._sleeps.items()
            if now_s - sleep.since_s >= self._limit_s
        ]
        self._look_later()
        if stuck:
            self.run.report(report(sorted(stuck, key=lambda each: (-each.slept_s, each.local_rank))))

    def _sleeper(self, worker: RunningWorker, slept_s: float) -> Sleeper:
        wait = sleep_place(worker.pid, proc=self.proc)
        return Sleeper(worker.local_rank, worker.global_rank, slept_s, wait)


def report(sleepers: Sequence[Sleeper]) -> FailureReport:
    """Return the failure of sleeping workers, the longest first."""
    who = f"rank{'s' if len(sleepers) > 1 else ''} {rank_ranges(each.global_rank for each in sleepers)}"
    where = ", ".join(sorted({each.wait for each in sleepers if each.wait}))
    ranks = [
        {"global_rank": each.global_rank, "blamed": True, "quiet_s": each.slept_s, "state": "D", "wait": each.wait}
        for each in sleepers[:MAX_RANKS]
    ]
    return FailureReport(
        summary=f"{who}: in uninterruptible sleep for {sleepers[0].slept_s:.3g} s" + (f" ({where})" if where else ""),
        failure_class=FailureClass.HANG,
        workers=tuple(WorkerFault(local_rank=each.local_rank, quiet_s=each.slept_s) for each in sleepers),
        retryable=False,  # another try on this node would meet what holds them
        fields={"hang": {"ranks": ranks}},
    )
