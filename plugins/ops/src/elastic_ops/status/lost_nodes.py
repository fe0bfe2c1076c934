"""Incidents of lost nodes, from the events of an agent's feed, and their files in the run directory.

The agent writes incidents of failures itself. A lost node is no failure: it ends the round by a membership change.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import FailureClass, HookSettings, Restart, Round, encode_json
from elastic_core.api.feed import Phase, RunEvent
from elastic_core.api.rendezvous import MemberLost, NodesWaiting, RosterMember, RoundEnded
from elastic_core.api.tools import rank_ranges, replace_file

if TYPE_CHECKING:
    from elastic_core.api.commands import Incident

MOST_KEPT: Final = 64
"""The number of incidents of lost nodes that are kept: the first and the last ones."""
MOST_NODES: Final = 32
"""The most nodes that one incident lists."""
RULE: Final = "membership change"
_NAMED: Final = 4
_REASON_CHARS: Final = 240
_NUMBERED: Final = re.compile(r"incident-lost-(\d+)\.json")
_AWAY: Final = " stopped while the store was away"


def lost_nodes(change: RoundEnded) -> tuple[str, ...]:
    """Return the nodes that were lost when a round ended.

    A node that left by itself is not lost. The same is true of a node whose own hook refused to start workers, and of
    nodes that returned after they had stopped their workers because the store was away.
    """
    if change.planned or _AWAY in change.reason:
        return ()
    return tuple(node for node in change.lost if node not in change.left and f"{node} stays out: " not in change.reason)


def end_of_round(values: Mapping[str, object]) -> RoundEnded | None:
    """Return the membership change by which a step of the feed ended the round; `None` if the step has none."""
    match values:
        case {"event": "RoundChanged", "change": RoundEnded() as change}:
            return change
        # The changes that a handler without decisions for all nodes reports; the agent may wait with them.
        case {"event": "RoundChanged", "change": MemberLost(node_id=node), "state": "stopping", "entered": True}:
            return RoundEnded(reason=f"{node} lost", lost=(node,))
        case {"event": "RoundChanged", "change": NodesWaiting(count=count), "state": "stopping", "entered": True}:
            return RoundEnded(reason=f"{_count(count, 'node')} joined", arrived=count, planned=True)
    return None


class LostNodes:
    """Makes an incident for each round that ended because nodes were lost. Threading: one call at a time.

    Args:
        settings: Settings of the hook that receives the feed.
    """

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings
        self._round: Round | None = None
        self._members: tuple[RosterMember, ...] = ()
        self._reported: int | None = None
        self._leaving = False
        self._count = 0
        self._last: Incident | None = None
        """The incident whose next round has not started yet."""
        self._pending: dict[int, Incident] = {}

    def observe(self, event: RunEvent) -> None:
        """Apply the next event of the feed."""
        match event.name, event.values:
            case "round_joined", {"round": Round() as round_, "members": [*members]}:
                self._round = round_
                self._members = tuple(member for member in members if isinstance(member, RosterMember))
            case "step", {"event": "StopRequested"}:
                self._leaving = True
            case "step", {"event": "RoundChanged", "restart_count": int(restarts)}:
                self._ended(end_of_round(event.values), restarts, event.at_ns)
            case "step", {"event": "RoundFormed", "round": Round() as round_} if self._last is not None:
                nodes = _count(round_.node_count, "node")
                text = f"{round_.index}, {nodes} with {_count(round_.world_size, 'worker')}"
                self._add(replace(self._last, fields={**self._last.fields, "next round": text}))
        if self._last is not None and event.name == "step":
            self._note_phases(event.values)

    def take(self) -> dict[int, "Incident"]:
        """Return the incidents to write, by their numbers from 0. An incident comes again when more is known."""
        pending, self._pending = self._pending, {}
        return pending

    def return_unwritten(self, incidents: Mapping[int, "Incident"]) -> None:
        """Take back incidents that could not be written. Newer versions of them have precedence."""
        self._pending = {**incidents, **self._pending}

    def _ended(self, change: RoundEnded | None, restarts: int, at_ns: int) -> None:
        round_ = self._round
        if change is None or round_ is None or self._reported == round_.token or not (names := lost_nodes(change)):
            return
        here = round_.node_id or self._settings.node_id
        if here in names and self._leaving:
            return
        self._reported = round_.token
        self._count += 1
        self._last = None
        self._add(_incident(self._settings.run_id, round_, self._members, names, change, here, restarts, at_ns))

    def _note_phases(self, values: Mapping[str, object]) -> None:
        """Add the durations of the stop, the rendezvous and the start that followed."""
        phases = values.get("phases")
        for phase in phases if isinstance(phases, Sequence) else ():
            incident = self._last
            if incident is None or not isinstance(phase, Phase) or phase.name not in ("stop", "rendezvous", "start"):
                continue
            if phase.well:
                known = replace(incident.phases, **{f"{phase.name}_s": phase.took_s})
                self._add(replace(incident, phases=known))
            if phase.name == "start":
                self._last = None

    def _add(self, incident: "Incident") -> None:
        self._last = self._pending[self._count - 1] = incident


class LostNodeFiles:
    """Writes these incidents to the run directory, as `incident-lost-<n>.json`. Threading: one thread."""

    def __init__(self) -> None:
        self._first: int | None = None

    def write(self, folder: Path, number: int, incident: "Incident") -> None:
        """Write an incident; the same number replaces it.

        Raises:
            OSError: The file cannot be written.
        """
        if self._first is None:
            # A chosen directory may contain incidents of an earlier run.
            with os.scandir(folder) as entries:
                kept = [int(match[1]) for entry in entries if (match := _NUMBERED.fullmatch(entry.name))]
            self._first = max(kept, default=-1) + 1
        number += self._first
        replace_file(folder / file_name(number), msgspec.json.format(encode_json(incident), indent=2) + b"\n")
        if number >= MOST_KEPT:
            with suppress(OSError):
                (folder / file_name(number - MOST_KEPT + 1)).unlink()


def file_name(number: int) -> str:
    """Return the name of the file of such an incident."""
    return f"incident-lost-{number}.json"


def _incident(
    run_id: str,
    round_: Round,
    members: Sequence[RosterMember],
    names: Sequence[str],
    change: RoundEnded,
    here: str,
    restarts: int,
    at_ns: int,
) -> "Incident":
    from elastic_core.api.commands import Incident  # only a run that lost a node needs it

    addresses = {member.node_id: member.address for member in members}
    reason = change.reason[:_REASON_CHARS]
    fields = {"end of the round": reason}
    if len(names) > 1:
        more = f" and {len(names) - MOST_NODES} more" if len(names) > MOST_NODES else ""
        fields["nodes"] = f"{', '.join(names[:MOST_NODES])}{more}"
    return Incident(
        run_id=run_id,
        node_id=names[0],
        host=addresses.get(names[0]) or names[0],
        round_index=round_.index,
        round_token=round_.token,
        restart_count=restarts,
        at_ns=at_ns,
        at=_iso_time(at_ns),
        source="launcher",
        failure_class=FailureClass.NODE_LOST,
        summary=f"this node was lost: {reason}" if here in names else _summary(names, members),
        exit_code=1,
        node_count=round_.node_count,
        fields=fields,
        decision=Restart(rule=RULE, reason="no restart is counted"),
    )


def _summary(names: Sequence[str], members: Sequence[RosterMember]) -> str:
    """Return `b was lost (ranks 8-15)`, or `3 nodes were lost: b, c, d (ranks 8-31)`."""
    lost, ranks, first = set(names), list[int](), 0
    for member in members:
        if member.node_id in lost:
            ranks += range(first, first + member.local_world_size)
        first += member.local_world_size
    where = f" ({'rank' if len(ranks) == 1 else 'ranks'} {rank_ranges(ranks)})" if ranks else ""
    if len(names) == 1:
        return f"{names[0]} was lost{where}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} nodes were lost: {', '.join(names[:_NAMED])}{more}{where}"


def _iso_time(at_ns: int) -> str:
    import datetime

    whole = datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9:09d}Z"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
