"""The events of the machine, each with its time: enough to replay a run step by step."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from elastic_core import messages
from elastic_core.agent.machine.states import AgentState, Created, Step
from elastic_core.agent.machine.table import EVENTS, advance
from elastic_core.encoding import encode_json
from elastic_core.private_file import replace_file
from elastic_core.types import Failure, Record

FIRST_EVENTS = 300
LAST_EVENTS = 300
"""How many events are kept from a run's begin and from its end: some 30 restarts each. A run may fail for weeks."""


class Gap(Record, frozen=True, kw_only=True):
    """The events between the first and the last ones, which were not kept."""

    event_count: int


JournalEvent = messages.AgentEvent | Gap

_BY_NAME: dict[str, type] = {kind.__name__: kind for kind in (*EVENTS, Gap)}


class Entry(Record, frozen=True, kw_only=True):
    """One event: its class's name, its fields as JSON, and the monotonic time of its delivery."""

    now_s: float
    event: str
    fields: msgspec.Raw


class Journal:
    """The first and the last events of a run, in memory."""

    def __init__(self) -> None:
        self._first: list[tuple[float, messages.AgentEvent]] = []
        self._last: deque[tuple[float, messages.AgentEvent]] = deque(maxlen=LAST_EVENTS)
        self._left_out = 0
        self._history: tuple[Failure, ...] = ()

    def add(self, event: messages.AgentEvent, now_s: float) -> None:
        """Note one event."""
        if isinstance(event, messages.RoundFormed):
            event = self._with_shared_history(event)
        if len(self._first) < FIRST_EVENTS:
            self._first.append((now_s, event))
            return
        self._left_out += len(self._last) == LAST_EVENTS
        self._last.append((now_s, event))

    def _with_shared_history(self, event: messages.RoundFormed) -> messages.RoundFormed:
        """Return the event with the failures that the round before had, too: each round comes with a copy of them."""
        counts = event.round.counts
        if counts is None or not counts.history:
            return event
        known = {failure: failure for failure in self._history}
        self._history = tuple(known.get(failure, failure) for failure in counts.history)
        return replace(event, round=replace(event.round, counts=replace(counts, history=self._history)))

    @property
    def events(self) -> tuple[tuple[float, JournalEvent], ...]:
        """The events so far, each with its time."""
        gap = [(self._last[0][0], Gap(event_count=self._left_out))] if self._left_out else []
        return (*self._first, *gap, *self._last)

    def write(self, path: Path) -> None:
        """Write one JSON object a line, readable by its owner only.

        Raises:
            OSError: it can't be written; then there is no file.
        """
        lines = (
            encode_json(Entry(now_s=now_s, event=type(event).__name__, fields=msgspec.Raw(encode_json(event))))
            for now_s, event in self.events
        )
        replace_file(path, b"\n".join(lines) + b"\n")


def read(path: Path) -> Iterator[tuple[float, JournalEvent]]:
    """Yield the events of a journal file in order."""
    for line in path.read_bytes().splitlines():
        entry = msgspec.json.decode(line, type=Entry)
        yield entry.now_s, msgspec.json.decode(entry.fields, type=_BY_NAME[entry.event])


def replay(events: Iterable[tuple[float, JournalEvent]], state: AgentState | None = None) -> Iterator[Step]:
    """Yield the steps that the machine takes over `events`, from the beginning or from `state`, up to a gap."""
    current: AgentState = Created() if state is None else state
    for now_s, event in events:
        if isinstance(event, Gap):
            return
        step = advance(current, event, now_s=now_s)
        current = step.state
        yield step
