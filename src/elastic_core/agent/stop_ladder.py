"""The stop of this node's workers: hooks may hold it first, then the worker group sends SIGTERM, later SIGKILL."""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import Feed
from elastic_core.agent.parts import ENDING_SIGNALS
from elastic_core.logger import Logger
from elastic_core.processes.group import WorkerGroup
from elastic_core.system.reactor import Timer

MOST_HOLD_S: Final = 3600.0
"""The longest hold of a stop by hooks, in seconds, unless the grace period or a hook's option is longer."""
NOTICE_S: Final = 1.0
"""Exit handlers that take longer are reported, in seconds; most take less."""
ANSWER_S: Final = 10.0
"""How long a stop waits for its hooks' replies, in seconds: twice the limit of one call of one hook."""


class StopLadder:
    """Runs the stop sequence of workers: immediately, or for healthy workers when no hook holds the stop any more.

    A stop that ends the run waits for workers that are ending by themselves: see `_left_for_handlers_s`.

    Args:
        workers: This node's workers.
        log: Receives lines for people.
        feed: Receives the moments of a stop.
        longest_grace_s: The user's grace period, in seconds.
        longest_option_s: The longest time in the user's hook options, in seconds; 0 means none.
        ask_holds: Calls back, perhaps later, with the hooks that hold a planned stop and their longest holds.
        call_later: Calls back after a number of seconds.
        now_s: Returns the time on the reactor's clock.
    """

    def __init__(
        self,
        *,
        workers: WorkerGroup,
        log: Logger,
        feed: Feed,
        longest_grace_s: float,
        longest_option_s: float = 0.0,
        ask_holds: Callable[[Callable[[Mapping[str, float]], None]], None],
        call_later: Callable[[float, Callable[[], None]], Timer],
        now_s: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._log = log
        self._feed = feed
        self._longest_grace_s = longest_grace_s
        self._most_hold_s = max(MOST_HOLD_S, longest_grace_s, longest_option_s)
        self._ask_holds = ask_holds
        self._call_later = call_later
        self._now_s = now_s
        self._ends_s = self._hold_ends_s = now_s()
        self._held: tuple[m.StopWorkers, int] | None = None
        self._asked = False
        """Whether replies of hooks about their holds are still due."""
        self._bounded = self._may_leave = False
        self._handlers = False
        """Whether exit handlers of the workers hold the stop."""
        self._holding: set[str] = set()
        self._timer: Timer | None = None

    def stop(self, command: m.StopWorkers, round_index: int) -> None:
        """Begin the stop sequence, or hold a planned stop until the hooks that requested it release it."""
        grace_s, now_s = self._grace_s(command.grace_s), self._now_s()
        self._held, self._asked, self._bounded = (command, round_index), True, command.grace_s is not None
        self._may_leave = command.may_leave
        self._ends_s = self._hold_ends_s = now_s + grace_s
        # The run ends here, and every worker has failed and runs its exit handlers: a signal would only interrupt what
        # they save.
        if command.ends_run and (left_s := self._left_for_handlers_s()) > 0:
            self._asked, self._bounded, self._handlers, self._ends_s = False, True, True, now_s + left_s
            self._hold_until(self._ends_s)
            self._call_later(NOTICE_S, self._report_handlers)
            return
        # Peers of a failed worker hang in a collective and can't save, so no hook holds their stop.
        if not command.planned or not self._workers.alive:
            self._take_holds({})
            return
        held = self._held
        # A late reply may be about an earlier stop, or about one that a second signal has shortened since.
        self._ask_holds(lambda holds: self._take_holds(holds) if self._asked and self._held is held else None)
        # A hook that hangs never replies, and must not keep the node beyond a deadline.
        if self._asked:
            self._hold_until(now_s + (min(ANSWER_S, grace_s) if self._bounded else ANSWER_S))

    def _left_for_handlers_s(self) -> float:
        """Return how long exit handlers may still run if all live workers have raised an exception; otherwise 0.

        SIGTERM ends an interpreter immediately, even while its threads or exit handlers save or upload. So they get the
        grace period without a signal, counted from the last exception.
        """
        raised_s = self._workers.raised_s
        # A worker without an exception may wait for a failed one in a collective without end.
        if not raised_s or not self._workers.alive <= raised_s.keys():
            return 0.0
        return max(raised_s.values()) + self._longest_grace_s - self._now_s()

    def _report_handlers(self) -> None:
        if self._handlers and self._workers.alive:
            self._log.notice(
                f"waiting for threads and exit handlers of {self._count()}, at most {round(self._left_s(), 1):g} s "
                "(--shutdown-timeout)"
            )

    def _take_holds(self, holds: Mapping[str, float]) -> None:
        """Hold the stop, or begin it, after the hooks have replied."""
        assert self._held is not None
        command, round_index = self._held
        most_s = self._most_hold_s
        for hook in sorted(hook for hook, hold_s in holds.items() if hold_s > most_s):
            self._log.notice(f"hook {hook!r}: hold_s is {holds[hook]:g}; it holds this stop for {most_s:g} s at most")
        hold_s = min(max(holds.values(), default=0.0), most_s)
        if self._bounded:  # this is all the time that the workers have
            hold_s = min(hold_s, self._left_s())
        else:
            # However late the hooks reply, workers have their whole grace period after the hold.
            self._ends_s = self._now_s() + hold_s + self._longest_grace_s
        self._asked = False
        if command.drain:
            self._announce(
                command.signum, self._left_s(), held_by=sorted(holds) if hold_s > self._longest_grace_s else ()
            )
        if hold_s <= 0:
            self._begin(self._grace_s(round(self._left_s(), 3) if self._bounded else None))
            return
        self._holding = set(holds)
        self._hold_until(self._now_s() + hold_s)
        self._feed.publish(moments.StopPlanned(round_index=round_index, reason=command.reason, hold_s=hold_s))

    def release(self, hook: str) -> None:
        """Begin the stop sequence unless another hook holds it."""
        if hook in self._holding:
            self._holding.discard(hook)
            if not self._holding:
                self._begin()

    def worker_ended(self) -> None:
        """Begin the stop sequence if no worker is left that could save anything."""
        if self._held is not None and not self._workers.alive:
            self._begin()

    def shorten(self, bound_s: float, *, at_once: bool) -> None:
        """Limit the workers' remaining time; `at_once` begins the stop sequence now, even if hooks hold it."""
        self._ends_s = min(self._ends_s, self._now_s() + max(0.0, bound_s))
        self._bounded = True
        # The workers have had their signal: only the time until SIGKILL can change.
        if self._held is None:
            self._workers.stop(signal.SIGTERM, grace_s=self._grace_s(bound_s))
        elif at_once:
            self._begin()
        else:
            self._hold_until(min(self._hold_ends_s, self._ends_s))

    def forbid_leaving(self) -> None:
        """Stop workers that might leave for a next round: none follows."""
        self._may_leave = False
        self._workers.forbid_leaving()

    def kill(self) -> None:
        """Kill the workers immediately, at the user's request."""
        # Some hooks act on the drain itself, for example to have Slurm requeue the job: they are notified before the
        # workers are killed.
        self._answer_for_hooks()
        self._log.notice("second signal: killing the workers")
        self._forget()
        self._workers.kill()

    def announce_drain(self, signum: int) -> None:
        """Announce a drain of workers that are already being stopped, or of a node without workers."""
        self._announce(signum, self._left_s() if self._workers.alive else 0.0)

    def _answer_for_hooks(self) -> None:
        """Announce a stop without replies of its hooks in time, as if no hook held it."""
        if not self._asked or self._held is None:
            return
        self._asked = False
        if not self._bounded:
            self._ends_s = self._now_s() + self._longest_grace_s
        if self._held[0].drain:
            self._announce(self._held[0].signum, self._left_s())

    def _hold_until(self, end_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hold_ends_s = end_s
        self._timer = self._call_later(max(0.0, end_s - self._now_s()), self._begin)

    def _begin(self, grace_s: float | None = None) -> None:
        self._answer_for_hooks()
        cut = self._handlers and self._workers.alive
        held = self._forget()
        if held is None:
            return
        if cut:
            self._log.notice(f"threads and exit handlers of {self._count()} are cut short: the time is over")
        command, round_index = held
        grace_s = self._grace_s(self._left_s()) if grace_s is None else grace_s
        self._feed.publish(moments.WorkersStopping(round_index=round_index, reason=command.reason, grace_s=grace_s))
        # A scheduler's notice (`--preemption-signal SIGUSR1`) is for the agent: a worker would ignore it, or die
        # immediately.
        signum = command.signum if command.signum in ENDING_SIGNALS else signal.SIGTERM
        self._workers.stop(signum, grace_s=grace_s, may_leave=self._may_leave, planned=command.planned)

    def _forget(self) -> tuple[m.StopWorkers, int] | None:
        held, self._held = self._held, None
        self._holding, self._handlers = set(), False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def _count(self) -> str:
        count = len(self._workers.alive)
        return "1 worker" if count == 1 else f"{count} workers"

    def _left_s(self) -> float:
        return max(0.0, self._ends_s - self._now_s())

    def _grace_s(self, bound_s: float | None) -> float:
        return self._longest_grace_s if bound_s is None else min(self._longest_grace_s, max(0.0, bound_s))

    def _announce(self, signum: int, within_s: float, *, held_by: Sequence[str] = ()) -> None:
        self._feed.publish(moments.Draining(signum=signum, deadline_s=within_s))
        if self._workers.alive:
            name, workers = signal.Signals(signum).name, self._count()
            held = f" (held by hook {', '.join(map(repr, held_by))})" if held_by else ""
            self._log.notice(
                f"{name}: stopping {workers}, at most {round(within_s, 1):g} s{held}; a second signal kills"
            )
