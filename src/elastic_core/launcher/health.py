"""Answers probes while a run goes on: `TORCHELASTIC_HEALTH_CHECK_PORT`, or a server that a caller has started."""

from collections.abc import Callable
from typing import Final

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.errors import ConfigError
from elastic_core.launcher.brought import HealthServer
from elastic_core.options.settings import RunSettings
from elastic_core.options.watch_options import HEALTH_PORT_VARIABLE

TIMEOUT_S: Final = 60
"""torch's: without progress for so long the agent counts as dead."""


class LoopPulse:
    """Tells when a loop last made progress, though an idle loop rightly makes none.

    Each question asks the loop to turn. As long as it has not done so, the time of the first unanswered question
    counts.

    Args:
        turned_s: Gives when the loop last turned, in monotonic seconds.
        nudge: Has it turn again.
        clock: The host's.

    Threading: any.
    """

    def __init__(
        self, turned_s: Callable[[], float], nudge: Callable[[], None], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Take the loop for alive."""
        self._turned_s = turned_s
        self._nudge = nudge
        self._clock = clock
        self._asked_s: float | None = None

    def __call__(self) -> int:
        """Return the time of the last progress, in whole seconds since the epoch."""
        now_s, asked_s = self._clock.monotonic_s(), self._asked_s
        if asked_s is None or self._turned_s() >= asked_s:
            asked_s = self._asked_s = now_s
            self._nudge()
        return int(self._clock.wall_ns() / 1e9 - (now_s - asked_s))


class HealthChecking:
    """The server of one run; none where neither the environment nor the caller asks for one.

    Args:
        settings: The run's.
        brought: The caller's own, which runs; it is stopped by `close`.
        notice: Takes one line for people.
    """

    def __init__(self, settings: RunSettings, *, brought: HealthServer | None, notice: Callable[[str], None]) -> None:
        """Listen on nothing yet."""
        self._port = settings.watch.health_check_port if brought is None else None
        self._server = brought
        self._notice = notice

    def serve(self, pulse: Callable[[], int]) -> None:
        """Begin to answer, with what `pulse` gives.

        Raises:
            ConfigError: the port can't be had.
        """
        if self._port is None:
            return
        from elastic_core.agent import health_check_server as module  # few runs have one

        # Looked up now: users put their own function into its place.
        server = module.create_healthcheck_server(pulse, self._port, TIMEOUT_S)
        try:
            server.start()
        except OSError as error:
            what = f"{HEALTH_PORT_VARIABLE}={self._port}: can't listen there ({error.strerror})"
            raise ConfigError(what, hint=f"another port, or unset {HEALTH_PORT_VARIABLE}") from error
        self._server = server
        if self._port == 0:
            self._notice(f"health checks are answered on port {getattr(server, 'port', 0)}")

    def close(self) -> None:
        """Stop answering; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
