"""Responses with the progress, as JSON. The agent's last one is made while a run ends, so this imports little."""

from collections.abc import Mapping
from typing import Final

from elastic_core.api import ConfigError, Record, encode_json
from elastic_core.api.feed import Answer
from elastic_watch import beat_layout as layout
from elastic_watch.beat_file import WorkerProgress

_MOST: Final = (1 << 63) - 1


class Progress(Record, frozen=True, kw_only=True):
    """The progress of this node's workers that have sent heartbeats, by local rank."""

    workers: Mapping[int, WorkerProgress]


def progress_answer(progress: Mapping[int, WorkerProgress]) -> Answer:
    """Return the response with the progress."""
    return as_json(Progress(workers=progress))


def step_above(parameters: Mapping[str, str]) -> int | None:
    """Return the step in the parameter `above`; -1 means none. `None` if it is not given.

    Raises:
        ConfigError: it is not a whole number of at least -1.
    """
    text = parameters.get("above")
    if text is None:
        return None
    try:
        step = int(text)
    except ValueError:
        step = _MOST + 1
    if not layout.NONE <= step <= _MOST:
        raise ConfigError(f"above: {text!r}; expected a step, or -1 for none")
    return step


def round_asked(parameters: Mapping[str, str]) -> int | None:
    """Return the number in the parameter `round`. `None` if it is not given.

    Raises:
        ConfigError: it is not a whole number.
    """
    text = parameters.get("round")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"round: {text!r}; expected the number of a round")
    return int(text)


def as_json(record: Record) -> Answer:
    """Return a record as a response."""
    return Answer(content=encode_json(record).decode() + "\n", content_type="application/json")
