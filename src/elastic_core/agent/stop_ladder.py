"""The stop ladder of this node's workers: what is held before it, its grace period, what hooks and people get of it."""

import signal
from collections.abc import Callable, Mapping

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import Feed
from elastic_core.agent.parts import ENDING_SIGNALS, Reporter, Workers
from elastic_core.clock import Clock
from elastic_core.reactor import Timer


class StopLadder:
    """Stops workers: at once, or (healthy ones) once no hook holds the stop any more.

    Args:
        workers: This node's.
        reporter: The voice of the run.
        feed: Takes the moments of a stop.
        longest_grace_s: The grace period, as the user set it.
        holds: Returns which hooks hold a planned stop, and for how long at the longest.
        call_later: Calls back after so many seconds.
        clock: Measures.
    """

    def __init__(
        self,
        *,
        workers: Workers,
        reporter: Reporter,
        feed: Feed,
        longest_grace_s: float,
        holds: Callable[[], Mapping[str, float]],
        call_later: Callable[[float, Callable[[], None]], Timer],
        clock: Clock,
    ) -> None:
        self._workers = workers
        self._reporter = reporter
        self._feed = feed
        self._longest_grace_s = longest_grace_s
        self._holds = holds
        self._call_later = call_later
        self._clock = clock
        self._ends_s = self._hold_ends_s = clock.monotonic_s()
        self._held: tuple[m.StopWorkers, int] | None = None
        self._holding: set[str] = set()
        self._timer: Timer | None = None

    def stop(self, command: m.StopWorkers, round_index: int) -> None:
        """Begin, or hold a planned stop until the hooks that asked for it let it go on."""
        holds = self._holds() if command.planned and self._workers.alive else {}
        grace_s, hold_s = self._grace_s(command.grace_s), max(holds.values(), default=0.0)
        if command.grace_s is None:
            self._ends_s = self._clock.monotonic_s() + hold_s + grace_s
        else:  # all that the workers have
            hold_s = min(hold_s, grace_s)
            self._ends_s = self._clock.monotonic_s() + grace_s
        if command.drain:
            self._announce(command.signum, self._left_s())
        self._held = (command, round_index)
        if hold_s <= 0:
            self._begin(grace_s)
            return
        self._holding = set(holds)
        self._hold_until(self._clock.monotonic_s() + hold_s)
        self._feed.publish(moments.StopPlanned(round_index=round_index, reason=command.reason, hold_s=hold_s))

    def release(self, hook: str) -> None:
        """Go on, unless another hook holds the stop."""
        if hook in self._holding:
            self._holding.discard(hook)
            if not self._holding:
                self._begin()

    def worker_ended(self) -> None:
        """Go on where nobody is left to save anything."""
        if self._held is not None and not self._workers.alive:
            self._begin()

    def shorten(self, bound_s: float, *, at_once: bool) -> None:
        """Give the workers no longer than this from now on; `at_once`: what is held is held no longer."""
        self._ends_s = min(self._ends_s, self._clock.monotonic_s() + max(0.0, bound_s))
        if self._held is None:
            self._workers.stop(signal.SIGTERM, grace_s=self._grace_s(bound_s))
        elif at_once:
            self._begin()
        else:
            self._hold_until(min(self._hold_ends_s, self._ends_s))

    def kill(self) -> None:
        """Cut the ladder short, as the user asked."""
        self._reporter.notice("second signal: killing the workers")
        self._forget()
        self._workers.kill()

    def announce_drain(self, signum: int) -> None:
        """Announce that the user wants an end of what is being stopped already, or of a node without workers."""
        self._announce(signum, self._left_s() if self._workers.alive else 0.0)

    def _hold_until(self, end_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hold_ends_s = end_s
        self._timer = self._call_later(max(0.0, end_s - self._clock.monotonic_s()), self._begin)

    def _begin(self, grace_s: float | None = None) -> None:
        held = self._forget()
        if held is None:
            return
        command, round_index = held
        grace_s = self._grace_s(self._left_s()) if grace_s is None else grace_s
        self._feed.publish(moments.WorkersStopping(round_index=round_index, reason=command.reason, grace_s=grace_s))
        self._workers.stop(command.signum if command.signum in ENDING_SIGNALS else signal.SIGTERM, grace_s=grace_s)

    def _forget(self) -> tuple[m.StopWorkers, int] | None:
        held, self._held = self._held, None
        self._holding = set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def _left_s(self) -> float:
        return max(0.0, self._ends_s - self._clock.monotonic_s())

    def _grace_s(self, bound_s: float | None) -> float:
        return self._longest_grace_s if bound_s is None else min(self._longest_grace_s, max(0.0, bound_s))

    def _announce(self, signum: int, within_s: float) -> None:
        self._feed.publish(moments.Draining(signum=signum, deadline_s=within_s))
        if self._workers.alive:
            name, count = signal.Signals(signum).name, len(self._workers.alive)
            workers = "1 worker" if count == 1 else f"{count} workers"
            self._reporter.notice(
                f"{name}: stopping {workers}, at most {round(within_s, 1):g} s; a second signal kills"
            )
