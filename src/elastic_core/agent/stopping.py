"""How the agent stops its workers: the stop ladder, its grace period, and what is told of it."""

import signal

from elastic_core import messages as m
from elastic_core.agent.parts import Reporter, Workers
from elastic_core.clock import Clock
from elastic_core.hooks.runner import HookRunner


class Stopping:
    """Carries out the machine's orders to stop. Threading: the supervisor's thread only."""

    def __init__(
        self, *, workers: Workers, reporter: Reporter, hooks: HookRunner, longest_grace_s: float, clock: Clock
    ) -> None:
        """Stop nothing yet."""
        self._workers = workers
        self._reporter = reporter
        self._hooks = hooks
        self._longest_grace_s = longest_grace_s
        self._clock = clock
        self._began_s = self._ends_s = clock.monotonic_s()
        self.took_s: float | None = None
        """How long the workers of this round took to stop; None: they have not."""

    def begin_round(self) -> None:
        """Forget how long the last round's workers took."""
        self.took_s = None

    def stop(self, command: m.StopWorkers, round_index: int) -> None:
        """Begin the stop ladder."""
        grace_s = self._grace_s(command.grace_s)
        self._began_s = self._clock.monotonic_s()
        self._ends_s = self._began_s + grace_s
        if command.drain:
            self._announce(command.signum, grace_s)
        self._hooks.tell(m.WorkersStopping(round_index=round_index, reason=command.reason, grace_s=grace_s))
        self._workers.stop(command.signum, grace_s=grace_s)

    def shorten(self, bound_s: float) -> None:
        """Give the workers no longer than this from now on."""
        grace_s = self._grace_s(bound_s)
        self._ends_s = min(self._ends_s, self._clock.monotonic_s() + grace_s)
        self._workers.stop(signal.SIGTERM, grace_s=grace_s)

    def kill(self) -> None:
        """Cut the ladder short, as the user asked."""
        self._reporter.notice("second signal: killing the workers")
        self._workers.kill()

    def announce_drain(self, signum: int) -> None:
        """Tell that the user wants an end of what is being stopped already."""
        self._announce(signum, max(0.0, self._ends_s - self._clock.monotonic_s()))

    def ended(self) -> None:
        """Take note of the end of the ladder."""
        self.took_s = self._clock.monotonic_s() - self._began_s

    def _grace_s(self, bound_s: float | None) -> float:
        return self._longest_grace_s if bound_s is None else min(self._longest_grace_s, max(0.0, bound_s))

    def _announce(self, signum: int, grace_s: float) -> None:
        self._hooks.tell(m.Draining(signum=signum, deadline_s=grace_s))
        if self._workers.alive:
            name, count = signal.Signals(signum).name, len(self._workers.alive)
            workers = "1 worker" if count == 1 else f"{count} workers"
            self._reporter.notice(f"{name}: stopping {workers}, at most {round(grace_s, 1):g} s; a second signal kills")
