"""Responses with heartbeats and stacks, as JSON, to other hooks of the agent and to `elastic ctl`."""

from collections.abc import Collection, Mapping

from elastic_core.api import SYSTEM_CLOCK, ConfigError, Record
from elastic_core.api.feed import Answer
from elastic_watch.beat_file import WorkerBeats
from elastic_watch.progress_answers import as_json
from elastic_watch.stacks import Frame, WorkerStack


class Heartbeat(Record, frozen=True, kw_only=True):
    """The last heartbeat of one worker."""

    pid: int
    """The pid of the process with the heartbeats: the worker, or its child."""
    age_s: float | None
    """Seconds since its last heartbeat; null before the first."""
    step: int | None
    """Its last step; null if it has named none."""
    sections: tuple[str, ...]
    """The names of its open sections, outermost first."""


class Heartbeats(Record, frozen=True, kw_only=True):
    """The heartbeats of this node's workers that use `heartbeat`, by local rank."""

    workers: Mapping[int, Heartbeat]


class Stack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker."""

    text: str
    """The stacks of all its threads, or of the main thread if no Python code runs."""
    source: str
    """Their format: `faulthandler`, from its own interpreter, or `py-spy`."""
    place: str
    """The innermost line of the user's own code, such as `train.py:12`; empty if there is none."""
    frames: tuple[Frame, ...]
    """The main thread's frames, outermost first: file, line, function, and an empty text."""


class Stacks(Record, frozen=True, kw_only=True):
    """The stacks of this node's workers that responded, by local rank."""

    workers: Mapping[int, Stack]


def heartbeats_answer(beats: Mapping[int, WorkerBeats]) -> Answer:
    """Return the response with heartbeats."""
    now_s = SYSTEM_CLOCK.monotonic_s()
    return as_json(
        Heartbeats(
            workers={
                rank: Heartbeat(
                    pid=own.owner,
                    age_s=None if own.beat_s is None else max(0.0, now_s - own.beat_s),
                    step=own.step,
                    sections=tuple(section.name for section in own.sections),
                )
                for rank, own in beats.items()
                if own.owner
            }
        )
    )


def stacks_answer(stacks: Mapping[int, WorkerStack]) -> Answer:
    """Return the response with stacks."""
    return as_json(
        Stacks(
            workers={
                rank: Stack(text=own.text, source=own.source, place=own.place, frames=own.frames)
                for rank, own in sorted(stacks.items())
            }
        )
    )


def ranks_asked(parameters: Mapping[str, str]) -> Collection[int] | None:
    """Return the local ranks in the parameter `ranks`, such as `0,2`. `None` if it is not given.

    Raises:
        ConfigError: it has another form.
    """
    text = parameters.get("ranks", "")
    try:
        return [int(each) for each in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(f"ranks: {text!r}; expected local ranks, such as 0,2") from None
