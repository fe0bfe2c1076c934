"""The last events of a run with their times: from its views, its journal, and changes between two reads."""

import datetime
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from elastic_core.api import Record
from elastic_core.api.tools import clean, duration_text
from elastic_ops.status.files import JOURNAL_FILE
from elastic_ops.status.page import incident_line
from elastic_ops.status.view import IncidentView, NodeView, RunView

MOST_EVENTS: Final = 64
"""The number of events that are kept of each source."""
MOST_OF_JOURNAL: Final = 256 << 10
"""The bytes of the end of a journal that are read at first. Later only new lines are read."""
GOOD: Final = "good"
BAD: Final = "bad"
_FREQUENT: Final = (b'{"name":"metric"', b'{"name":"store_call"')


class Event(Record, frozen=True, kw_only=True):
    """One event: nanoseconds since the Unix epoch, one clean line, and `good`, `bad`, or an empty kind."""

    at_ns: int
    text: str
    kind: str = ""


class _Line(msgspec.Struct):
    name: str = ""
    at_ns: int = 0
    values: dict[str, object] = {}


_LINES: Final = msgspec.json.Decoder(_Line)


class Journal:
    """The last events in the journal of a run directory on this machine. Threading: one thread."""

    def __init__(self, run_dir: str) -> None:
        """Read nothing yet."""
        self._path = Path(run_dir) / JOURNAL_FILE
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def events(self) -> Sequence[Event]:
        """Return the last events, the oldest first. Only new lines are read; an unreadable file adds none."""
        try:
            # A file of another user may be a pipe: opening it must not block.
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return tuple(self._events)
        try:
            found = os.fstat(fd)
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset:
                self._file = (found.st_dev, found.st_ino)
                self._offset = max(0, found.st_size - MOST_OF_JOURNAL)
                self._rest = b"" if self._offset == 0 else b"?"  # the first line is torn, and thus no JSON
            elif found.st_size - self._offset > MOST_OF_JOURNAL:
                self._offset, self._rest = found.st_size - MOST_OF_JOURNAL, b"?"
            new = os.pread(fd, MOST_OF_JOURNAL, self._offset)
        except OSError:
            return tuple(self._events)
        finally:
            os.close(fd)
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self._events.extend(events_of_journal(lines))
        return tuple(self._events)


def events_of_journal(lines: Iterable[bytes]) -> list[Event]:
    """Return the events that lines of a journal report. Lines that are no events of a run are left out."""
    events = []
    for line in lines:
        if line.startswith(_FREQUENT):
            continue
        try:
            read = _LINES.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        text, kind = _of_event(read.name, read.values)
        if text:
            events.append(Event(at_ns=read.at_ns, text=clean(text), kind=kind))
    return events


def _of_event(name: str, values: Mapping[str, object]) -> tuple[str, str]:
    """Return the text and the kind of an event of the feed; empty if it is not shown."""
    match name, values:
        case "step", {"event": "RoundChanged", "change": {"type": str(type_), **change}}:
            return _of_change(type_, change)
        case "failure_seen", {"failure": {**failure}}:
            return f"{_failed(failure)}, round {failure.get('round_index')}", BAD
        case "decision_taken", {"decision": {**decision}}:
            return f"decision: {_decision(decision)}", ""
        case "store_reachable", {"reachable": bool(reachable), "text": str(text)}:
            return text or ("store reachable again" if reachable else "store unreachable"), GOOD if reachable else BAD
        case "left_out", {"absence": {"by": str(by), "reason": str(reason)}}:
            return f"this node is left out by {by}: {reason}", BAD
        case "left_out", {"absence": None}:
            return "this node is no longer left out", GOOD
        case "draining", {"signum": int(signum)}:
            return f"drain: the agent was ordered to stop (signal {signum})", ""
        case "agent_stopped", {"outcome": str(outcome), "reason": str(reason)}:
            return f"agent ended: {outcome} ({reason})", GOOD if outcome == "succeeded" else BAD
    return "", ""


def _of_change(type_: str, change: Mapping[object, object]) -> tuple[str, str]:
    match type_, change:
        case "round_ended", {"reason": str(reason), **rest}:
            left = _names(rest.get("left"))
            lost = [name for name in _names(rest.get("lost")) if name not in left]
            parts = [f"{_listed(lost)} left or lost"] if lost and "left" not in rest else []
            parts += [f"{_listed(lost)} lost"] if lost and "left" in rest else []
            parts += [f"{_listed(left)} left"] if left else []
            arrived = rest.get("arrived")
            if isinstance(arrived, int) and arrived:
                parts.append(f"{arrived} node{'s' if arrived > 1 else ''} joined")
            named = all(name in reason for name in (*lost, *left))
            text = reason if named and (lost or left) else f"{', '.join(parts)}: {reason}" if parts else reason
            return f"membership change: {text}", BAD if lost else ""
        case "nodes_waiting", {"count": int(count)} if count:
            return f"{count} node{'s wait' if count > 1 else ' waits'} to join", ""
        case "member_lost", {"node_id": str(node)}:
            return f"node lost: {node}", BAD
        case "stop_ordered", {"reason": str(reason)}:
            return f"all nodes stop their workers: {reason}", BAD
        case "decided", {"failure": {**failure}, "decision": {**decision}}:
            return f"{_failed(failure)}; {_decision(decision)}", BAD
        case "decided", {"decision": {**decision}}:
            return f"decision: {_decision(decision)}", ""
        case "undecided", {"reason": str(reason)}:
            return reason, BAD
        case "suspended", {"reason": str(reason)}:
            return f"store unreachable: {reason}", BAD
        case "resumed", _:
            return "store reachable again", GOOD
    return "", ""


def _failed(failure: Mapping[object, object]) -> str:
    rank, node, summary = failure.get("global_rank"), failure.get("node_id"), failure.get("summary")
    subject = f"rank {rank}" if rank is not None else str(failure.get("failure_class"))
    return f"{subject}{f' on {node}' if node else ''} failed: {summary}"


def _decision(decision: Mapping[object, object]) -> str:
    delay, rule, reason = decision.get("delay_s"), decision.get("rule"), decision.get("reason")
    after = f" in {duration_text(delay)}" if isinstance(delay, float | int) and delay > 0 else ""
    return f"{decision.get('type')}{after}{f' ({rule})' if rule else ''}{f': {reason}' if reason else ''}"


def _names(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


class Observer:
    """The events of one run: those that its views and journals report, and changes that this reader sees.

    A store keeps no times, so an event from a store has the time at which the reader saw it. Threading: one thread.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._last: RunView | None = None
        self._journals: dict[str, Journal] = {}

    def events(self, runs: Sequence[RunView], *, now_ns: int) -> tuple[Event, ...]:
        """Return the last events, the newest first. `runs` are the views of one run, from its store or its agents."""
        found: list[Event] = []
        for run in runs:
            if run.source == "store":
                self._compare(run, now_ns)
            else:
                journal = self._journals.setdefault(run.run_dir, Journal(run.run_dir)).events()
                found += journal
                oldest_ns = journal[0].at_ns if journal else now_ns
                found += _of_rounds(run, oldest_ns)
                if run.last_incident is not None and 0 < ns_of(run.last_incident.at) < oldest_ns:
                    found.append(_of_incident(run.last_incident, ns_of(run.last_incident.at)))
                if run.agent is not None and run.agent.alive is False and run.verdict is None:
                    self._note_once(f"agent {run.agent.pid} on {run.agent.host} is dead", now_ns)
        found += self._seen
        return tuple(sorted(_distinct(found), key=lambda event: event.at_ns, reverse=True)[:MOST_EVENTS])

    def _note(self, text: str, now_ns: int, kind: str = "") -> None:
        self._seen.append(Event(at_ns=now_ns, text=clean(text), kind=kind))

    def _note_once(self, text: str, now_ns: int) -> None:
        if all(event.text != clean(text) for event in self._seen):
            self._note(text, now_ns, BAD)

    def _compare(self, run: RunView, now_ns: int) -> None:
        before, self._last = self._last, run
        if before is None:
            return
        self._compare_store(before, run, now_ns)
        known = {node.node_id: node for node in before.nodes}
        for node in run.nodes:
            self._compare_node(known.pop(node.node_id, None), node, now_ns)
        for gone in known.values():
            self._note(f"node {gone.node_id} is gone (it was {gone.state})", now_ns)
        if run.round is not None and (before.round is None or run.round.token != before.round.token):
            at = run.round
            self._note(f"round {at.index} formed: {counted(at.node_count, 'node')}, "
                       f"{counted(at.world_size, 'worker')}", now_ns, GOOD)  # fmt: skip
        if run.last_incident is not None and run.incident_count > before.incident_count:
            self._seen.append(_of_incident(run.last_incident, now_ns))
        if run.state != before.state:
            self._note(f"run: {run.state}", now_ns)

    def _compare_store(self, before: RunView, run: RunView, now_ns: int) -> None:
        reachable = None if run.store is None else run.store.reachable
        if before.store is not None and before.store.reachable != reachable and reachable is not None:
            trouble = f": {run.store.trouble}" if run.store is not None and run.store.trouble else ""
            text = "store reachable again" if reachable else f"store unreachable{trouble}"
            self._note(text, now_ns, GOOD if reachable else BAD)

    def _compare_node(self, before: NodeView | None, node: NodeView, now_ns: int) -> None:
        if before is None:
            self._note(f"node {node.node_id} joined ({node.state})", now_ns)
        elif before.state != node.state:
            self._note(f"node {node.node_id}: {node.state}", now_ns, BAD if node.state in ("lost", "silent") else "")


def _of_rounds(run: RunView, journal_ns: int) -> list[Event]:
    """Return rounds that were formed and have ended. The journal has reasons and failures of its own time."""
    events = []
    for past in run.rounds:
        size = f"{counted(past.node_count, 'node')}, {counted(past.world_size, 'worker')}"
        if began_ns := ns_of(past.began):
            events.append(Event(at_ns=began_ns, text=f"round {past.index} formed: {size}", kind=GOOD))
        if ended_ns := ns_of(past.ended):
            reason = f": {past.reason}" if past.reason and ended_ns < journal_ns else ""
            text = clean(f"round {past.index} ended by {past.ended_by}{reason}")
            events.append(Event(at_ns=ended_ns, text=text, kind=BAD if past.ended_by == "failure" else ""))
    return events


def _of_incident(incident: IncidentView, at_ns: int) -> Event:
    return Event(at_ns=at_ns, text=clean(incident_line(incident)), kind=BAD)


def _distinct(events: Iterable[Event]) -> list[Event]:
    """Return events without those that several agents of this machine report in the same words within a second."""
    kept: dict[str, int] = {}
    found = []
    for event in sorted(events, key=lambda event: event.at_ns):
        if event.at_ns - kept.get(event.text, -(10**18)) > 10**9:
            found.append(event)
        kept[event.text] = event.at_ns
    return found


def ns_of(iso: str) -> int:
    """Return a time in nanoseconds since the Unix epoch; 0 if it is not known."""
    if not iso:
        return 0
    return round(datetime.datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp() * 1000) * 10**6


def counted(number: int, noun: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
