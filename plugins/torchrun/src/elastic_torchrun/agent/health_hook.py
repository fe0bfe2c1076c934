"""The hook behind `TORCHELASTIC_HEALTH_CHECK_PORT`."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NoReturn

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    Clock,
    ConfigError,
    HookSettings,
    OptionSpec,
    Power,
)
from elastic_torchrun.agent import health_check_server
from elastic_torchrun.options import HEALTH_CHECK_PORT

VARIABLE: Final = HEALTH_CHECK_PORT.variable
TIMEOUT_S: Final = 60
"""Torch's limit: without progress for this long the agent is reported as dead."""


class Pulse:
    """The time of the agent loop's last progress. An idle loop is alive, too.

    Each call requests a sign from the loop. Until the loop responds, the time of the first open request counts.

    Args:
        ask: Has a callback called on the loop's next turn. Threading: any.
        clock: The host's clock.

    Threading: any.
    """

    def __init__(self, ask: Callable[[Callable[[], None]], None], *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Treat the loop as alive."""
        self._ask = ask
        self._clock = clock
        self._asked_s = clock.monotonic_s()
        self._answered = True

    def __call__(self) -> int:
        """Return the time of the last progress, in whole seconds since the epoch."""
        now_s = self._clock.monotonic_s()
        if self._answered:
            self._asked_s, self._answered = now_s, False
            self._ask(self._answer)
        return int(self._clock.wall_ns() / 1e9 - (now_s - self._asked_s))

    def _answer(self) -> None:
        self._answered = True


class HealthChecks(AgentHook):
    """Serves health checks from before the run begins until its end."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (HEALTH_CHECK_PORT,)

    def __init__(self, settings: HookSettings) -> None:
        """Listen.

        If the port is in use, the run goes on without health checks, since other nodes wait for this one.

        Raises:
            ConfigError: the port is malformed.
        """
        super().__init__(settings)
        self._fault = ""
        port = _port(str(settings.options["health_check_port"]))
        self._began = False
        # Looked up now: users put their own function into its place.
        self._server = health_check_server.create_healthcheck_server(Pulse(self._ask), port, TIMEOUT_S)
        self._is_any = port == 0
        if not settings.dry_run:
            self._listen(port)

    def _listen(self, port: int) -> None:
        try:
            self._server.start()
        except OSError as error:
            self._fault = (
                f"{VARIABLE}={port}: can't listen there ({error.strerror or error}); this agent answers no health "
                f"checks. Try: another port, or unset {VARIABLE}"
            )

    def on_agent_started(self, event: AgentStarted) -> None:
        """Begin to request signs from the loop. Log the chosen port, or why there is none."""
        self._began = True
        if self._fault:
            self.run.notice(self._fault, named=False)
        elif self._is_any:
            port = getattr(self._server, "port", 0)
            self.run.notice(f"health checks are answered on port {port}", named=False)

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()

    def _ask(self, answer: Callable[[], None]) -> None:
        if self._began:
            self.run.call_later(0.0, answer)
        else:
            answer()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        _reject(text)
    return int(text)


def _reject(text: str) -> NoReturn:
    needed = "a TCP port, 0 for any free one"
    raise ConfigError(f"{VARIABLE}: {text!r}; expected {needed}", hint=f"{VARIABLE}=8080, or unset it")
