"""`TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT` of one run: nothing at all where it is not set."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.agent.parts import Workers
from elastic_core.launcher.reporter import RunReporter
from elastic_core.options.settings import RunSettings
from elastic_core.reactor import Reactor
from elastic_core.types import Failure, Round

if TYPE_CHECKING:
    from elastic_core.agent.watch.hang_report import HangReport
    from elastic_core.agent.watch.sleep_watch import Sleeper, SleepWatch


class SleepWatching:
    """The watch for workers in uninterruptible sleep, round by round.

    Args:
        settings: The run's.
        reactor: The loop.
        reporter: The voice of the run.
        on_hang: Called with what makes a failure of it, to be called if that is wanted.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        reactor: Reactor,
        reporter: RunReporter,
        on_hang: Callable[[Callable[[], Failure]], None],
    ) -> None:
        """Watch nothing yet."""
        self._reporter = reporter
        self._on_hang = on_hang
        self._reactor = reactor
        self._round: Round | None = None
        self._began_s = 0.0
        self._watch: SleepWatch | None = None
        if settings.watch.uninterruptible_timeout_s:
            from elastic_core.agent.watch import sleep_watch

            limit_s = settings.watch.uninterruptible_timeout_s
            self._watch = sleep_watch.SleepWatch(reactor, limit_s=limit_s, on_stuck=self._stuck)

    def begin_round(self, round_: Round) -> None:
        """Take the round whose workers are about to be started."""
        self._round, self._began_s = round_, self._reactor.now_s()

    def over(self, workers: Workers) -> Workers:
        """Return the workers as the agent is to have them."""
        if self._watch is None:
            return workers
        from elastic_core.agent.watch.watched_workers import WatchedWorkers

        return WatchedWorkers(workers, self._watch)

    def ended(self, local_rank: int) -> None:
        """Take a worker's end."""
        if self._watch is not None:
            self._watch.ended(local_rank)

    def close(self) -> None:
        """Give everything back."""
        if self._watch is not None:
            self._watch.end()

    def _stuck(self, sleepers: "tuple[Sleeper, ...]") -> bool:
        round_, taken = self._round, False

        def examine() -> Failure:
            nonlocal taken
            taken = True
            assert round_ is not None
            report = _report(sleepers, round_, uptime_s=self._reactor.now_s() - self._began_s)
            return self._reporter.hung(round_, report)

        if round_ is not None:
            self._on_hang(examine)
        return taken


def _report(sleepers: "tuple[Sleeper, ...]", round_: Round, *, uptime_s: float) -> "HangReport":
    from elastic_core.agent.watch.hang_detector import Late, Stall
    from elastic_core.agent.watch.hang_report import HangReport, RankReport
    from elastic_core.failure.report import ranges

    longest = sleepers[0]
    who = f"rank{'s' if len(sleepers) > 1 else ''} {ranges(each.global_rank for each in sleepers)}"
    where = ", ".join(sorted({each.wait for each in sleepers if each.wait}))
    return HangReport(
        stall=Stall(
            late=tuple(
                Late(local_rank=each.local_rank, quiet_s=each.slept_s, step=None, begun=True) for each in sleepers
            ),
            by_beats=False,
            hung=True,
        ),
        round_index=round_.index,
        uptime_s=uptime_s,
        ranks=tuple(
            RankReport(
                local_rank=each.local_rank,
                global_rank=each.global_rank,
                pid=each.pid,
                quiet_s=each.slept_s,
                state="D",
                wait=each.wait,
            )
            for each in sleepers
        ),
        blamed=tuple(each.local_rank for each in sleepers),
        folder="",
        told=f"{who}: in uninterruptible sleep for {longest.slept_s:.3g} s" + (f" ({where})" if where else ""),
        for_good=True,
    )
