"""What the machine was told, and when: enough to replay a run step by step."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from elastic_core import messages
from elastic_core.agent.machine import EVENTS, advance
from elastic_core.agent.states import AgentState, Created
from elastic_core.agent.steps import Step
from elastic_core.encoding import encode_json
from elastic_core.types import Record

_BY_NAME: dict[str, type] = {event.__name__: event for event in EVENTS}


class Entry(Record, frozen=True, kw_only=True):
    """One event: its class's name, its fields as JSON, and the monotonic time of its delivery."""

    now_s: float
    event: str
    fields: msgspec.Raw


class Journal:
    """Collects events in memory; a run has tens of them."""

    def __init__(self) -> None:
        """Start empty."""
        self._events: list[tuple[float, messages.AgentEvent]] = []

    def add(self, event: messages.AgentEvent, now_s: float) -> None:
        """Note one event."""
        self._events.append((now_s, event))

    @property
    def events(self) -> tuple[tuple[float, messages.AgentEvent], ...]:
        """All events so far, each with its time."""
        return tuple(self._events)

    def write(self, path: Path) -> None:
        """Write one JSON object a line.

        Raises:
            OSError: it can't be written; then there is no file.
        """
        lines = (
            encode_json(Entry(now_s=now_s, event=type(event).__name__, fields=msgspec.Raw(encode_json(event))))
            for now_s, event in self._events
        )
        try:
            path.write_bytes(b"\n".join(lines) + b"\n")
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise


def read(path: Path) -> Iterator[tuple[float, messages.AgentEvent]]:
    """Yield the events of a journal file in order."""
    for line in path.read_bytes().splitlines():
        entry = msgspec.json.decode(line, type=Entry)
        yield entry.now_s, msgspec.json.decode(entry.fields, type=_BY_NAME[entry.event])


def replay(events: Iterable[tuple[float, messages.AgentEvent]], state: AgentState | None = None) -> Iterator[Step]:
    """Yield the steps that the machine takes over `events`, from the beginning or from `state`."""
    current: AgentState = Created() if state is None else state
    for now_s, event in events:
        step = advance(current, event, now_s=now_s)
        current = step.state
        yield step
