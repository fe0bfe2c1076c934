"""What the agent answers to other hooks and to people who ask it for heartbeats or stacks, as JSON."""

from collections.abc import Collection, Mapping

from elastic_core.api import SYSTEM_CLOCK, ConfigError, Record, encode_json
from elastic_core.api.feed import Answer
from elastic_watch.beat_file import WorkerBeats
from elastic_watch.stacks import Frame, WorkerStack


class Heartbeat(Record, frozen=True, kw_only=True):
    """What one worker has last said."""

    pid: int
    """The process that beats: the worker, or one that it has started."""
    age_s: float | None
    """Seconds since its last beat; null: it has not beaten yet."""
    step: int | None
    """The last step that it has named; null: none."""
    sections: tuple[str, ...]
    """The names of the sections that it is in, outermost first."""


class Heartbeats(Record, frozen=True, kw_only=True):
    """Those of this node's workers that will beat, by local rank."""

    workers: Mapping[int, Heartbeat]


class Stack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker."""

    text: str
    """The stacks of all its threads."""
    source: str
    """What has written them: `faulthandler` or `py-spy`."""
    place: str
    """The innermost line of the user's own code: `train.py:12`; empty: there is none."""
    frames: tuple[Frame, ...]
    """The main thread's, outermost first: file, line, function, and an empty text."""


class Stacks(Record, frozen=True, kw_only=True):
    """Those of this node's workers that answered, by local rank."""

    workers: Mapping[int, Stack]


def heartbeats_answer(beats: Mapping[int, WorkerBeats]) -> Answer:
    """Return heartbeats as others get them."""
    now_s = SYSTEM_CLOCK.monotonic_s()
    return _as_json(
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
    """Return stacks as others get them."""
    return _as_json(
        Stacks(
            workers={
                rank: Stack(text=own.text, source=own.source, place=own.place, frames=own.frames)
                for rank, own in sorted(stacks.items())
            }
        )
    )


def ranks_asked(parameters: Mapping[str, str]) -> Collection[int] | None:
    """Return the local ranks that the parameter `ranks` names, such as `0,2`; None: it is not given.

    Raises:
        ConfigError: it has something else.
    """
    text = parameters.get("ranks", "")
    try:
        return [int(each) for each in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(f"ranks: {text!r}; expected local ranks, such as 0,2") from None


def _as_json(record: Record) -> Answer:
    return Answer(content=encode_json(record).decode() + "\n", content_type="application/json")
