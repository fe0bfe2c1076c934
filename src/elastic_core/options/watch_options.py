"""The options about watching workers: signs of life, and torch's variables for sleep, timers and probes."""

from typing import Final, NoReturn

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.options.values import seconds
from elastic_core.types import Record


class WatchSettings(Record, frozen=True, kw_only=True):
    """What workers are watched for."""

    hang_timeout_s: float = 0.0
    """How long workers may give no sign of life; 0: for ever."""
    startup_timeout_s: float = 0.0
    """How long they may take to the first one; 0: for ever."""


HANGS: Final[tuple[OptionRow, ...]] = (
    row(
        Section.RESTARTS,
        "hang-timeout",
        "SECONDS",
        "Workers that give no sign of life for so long hang, which is a failure: no heartbeat "
        "(elastic_core.worker.heartbeat), or, where the script sends none, nothing written or read. Stacks are kept at "
        "half of it. 0: never.",
        default="0",
        field="watch.hang_timeout_s",
    ),
    row(
        Section.RESTARTS,
        "startup-timeout",
        "SECONDS",
        "How long it may take from a worker's start to its first heartbeat, or first output. 0: any time.",
        default="0",
        field="watch.startup_timeout_s",
    ),
)


UNINTERRUPTIBLE_VARIABLE: Final = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"


def take_hangs(draft: Draft) -> None:
    """Settle the limits on signs of life, which are off for a worker that has the terminal."""
    choices = draft.choices
    held = choices.text("debug_rank") is not None
    for dest in ("hang_timeout", "startup_timeout", "exit_timeout"):
        limit_s = seconds(choices, dest)
        draft.take(dest, 0.0 if held else limit_s)
        if held and limit_s and choices.chosen(dest):
            draft.notice(f"{choices.label(dest)} has no effect: --debug-rank turns time limits off")


def uninterruptible_s(text: str) -> float:
    """Return how long a worker may be in uninterruptible sleep; 0: for ever.

    Raises:
        ConfigError: torch's variable has no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value < float("inf"):  # nor is "not a number"
        _reject(UNINTERRUPTIBLE_VARIABLE, text, "seconds, 0 for no limit", "300")
    return max(0.0, value)


def _reject(variable: str, text: str, needed: str, example: str) -> NoReturn:
    raise ConfigError(f"{variable}={text!r}: needed {needed}", hint=f"{variable}={example}, or unset it")
