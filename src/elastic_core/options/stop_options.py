"""The options about signals and the end of workers."""

from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.options.values import seconds, signal_names

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
    draft.notice(*lines)
    variable = draft.environ.get(_SHUTDOWN_VARIABLE)
    if choices.chosen("shutdown_timeout"):
        draft.take("shutdown_timeout", seconds(choices, "shutdown_timeout"))
    elif variable:
        draft.set("stops.shutdown_timeout_s", _seconds_of(variable), f"env {_SHUTDOWN_VARIABLE}")
    else:
        draft.set("stops.shutdown_timeout_s", 30.0, "default")
    limit_s, held = seconds(choices, "exit_timeout"), choices.text("debug_rank") is not None
    draft.take("exit_timeout", 0.0 if held else limit_s)
    if held and limit_s and choices.chosen("exit_timeout"):
        draft.notice(f"{choices.label('exit_timeout')} has no effect: --debug-rank turns time limits off")


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
