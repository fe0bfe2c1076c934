"""The options about signals and the end of workers."""

import signal
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.options.draft import Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.options.values import seconds, signal_names
from elastic_core.types import Record

DEFAULT_SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_FORWARDED: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class StopSettings(Record, frozen=True, kw_only=True):
    """What ends the run, and how long workers have to end."""

    signals_to_handle: tuple[str, ...] = DEFAULT_SIGNALS
    shutdown_timeout_s: float = 30.0
    exit_timeout_s: float = 5.0
    """How long a worker whose uncaught exception is on record may take to end; 0: for ever."""

    @property
    def ending(self) -> tuple[int, ...]:
        """The signals that end the run, of those that are handled."""
        return tuple(sorted(self._listed() & _ENDING))

    @property
    def forwarded(self) -> tuple[int, ...]:
        """The signals that are for the workers, and never end the run."""
        return tuple(sorted((self._listed() | _FORWARDED) - _ENDING))

    def _listed(self) -> set[int]:
        return {signal.Signals[name] for name in self.signals_to_handle}


SIGNALS: Final[tuple[OptionRow, ...]] = (
    row(
        Section.SIGNALS,
        "signals-to-handle",
        "NAMES",
        "Signals that are passed on to the workers; SIGTERM, SIGINT, SIGHUP and SIGQUIT also end the run.",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        torch=True,
        field="stops.signals_to_handle",
    ),
    row(
        Section.SIGNALS,
        "shutdown-timeout",
        "SECONDS",
        "Grace period of a worker that is told to stop, whatever the reason; then SIGKILL.",
        default_note="TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
        torch=True,
        field="stops.shutdown_timeout_s",
    ),
)

EXIT: Final[tuple[OptionRow, ...]] = (
    row(
        Section.RESTARTS,
        "exit-timeout",
        "SECONDS",
        "How long a worker may take to end after an uncaught exception; then it is stopped, and has failed with that "
        "exception. Exit handlers and threads may need the time. 0: any time.",
        default="5",
        field="stops.exit_timeout_s",
    ),
)

_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def take_stops(draft: Draft) -> None:
    """Settle which signals are handled, and how long workers have to end."""
    choices = draft.choices
    names, lines = signal_names(choices)
    draft.take("signals_to_handle", names)
    draft.tell(*lines)
    variable = draft.environ.get(_SHUTDOWN_VARIABLE)
    if choices.chosen("shutdown_timeout"):
        draft.take("shutdown_timeout", seconds(choices, "shutdown_timeout"))
    elif variable:
        draft.set("stops.shutdown_timeout_s", _seconds_of(variable), f"env {_SHUTDOWN_VARIABLE}")
    else:
        draft.set("stops.shutdown_timeout_s", 30.0, "default")


def _seconds_of(variable: str) -> float:
    try:
        value = float(variable)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(
            f"{_SHUTDOWN_VARIABLE}={variable!r}: needed seconds, 0 or more", hint=f"{_SHUTDOWN_VARIABLE}=30"
        )
    return value
