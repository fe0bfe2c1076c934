"""The pictures that need no script: the ledger's bar, and the timeline as it is printed. Geometry only, pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from elastic_report.ledger.states import ORDER, LedgerState
from elastic_report.model import Account, LaneSpan, NodeLane, Report, TimelineEvent
from elastic_report.page.lanes import span_s
from elastic_report.page.texts import duration, share

MOST_LANES: Final = 40
"""How many nodes the printed timeline shows."""
LABEL: Final = 170
WIDTH: Final = 1000
ROW: Final = 16
_PIECES: Final = 300
"""How many parts of a lane the printed timeline can tell apart."""
_SHOWN_ALWAYS: Final = ("failure", "worker_failed", "lost", "hang", "drain", "decision")
MARKS: Final = {
    "failure": "\N{MULTIPLICATION X}",
    "worker_failed": "\N{MULTIPLICATION X}",
    "lost": "\N{MULTIPLICATION X}",
    "hang": "\N{DOUBLE VERTICAL LINE}",
    "decision": "\N{BLACK DIAMOND}",
    "drain": "\N{BLACK DOWN-POINTING TRIANGLE}",
    "left": "\N{WHITE DOWN-POINTING TRIANGLE}",
    "joined": "\N{BLACK UP-POINTING TRIANGLE}",
    "save": "\N{BLACK SMALL SQUARE}",
}
"""The sign of an event, where it has one. Others have a dot."""

_RISE, _FALL = "M-2 2L2 -2M0 8L8 0M6 10L10 6", "M-2 6L2 10M0 0L8 8M6 -2L10 2"
_UPRIGHT, _LEVEL, _DOTS = "M2 0V8M6 0V8", "M0 2H8M0 6H8", "M1 2h1.5M5 6h1.5"
PATTERNS: Final = {
    LedgerState.QUEUED: _RISE,
    LedgerState.HUNG: _RISE + _FALL,
    LedgerState.DRAINED: _UPRIGHT,
    LedgerState.EXCLUDED: _DOTS,
    LedgerState.STORE_OUTAGE: _DOTS,
    LedgerState.STOPPING: _RISE,
    LedgerState.DECIDING: "",
    LedgerState.RESTARTING: _DOTS,
    LedgerState.RENDEZVOUS: _LEVEL,
    LedgerState.STARTING: _UPRIGHT,
    LedgerState.RESTORING: _FALL,
    LedgerState.SAVING: _RISE,
    LedgerState.REDONE: _FALL,
    LedgerState.PRODUCTIVE: "",
}
"""The lines on each state's colour, in a square of 8 by 8, so that states differ without colours too."""


@dataclass(frozen=True)
class Piece:
    """A part of the ledger's bar; `x` and `width` are in percent."""

    state: str
    x: str
    width: str
    title: str
    label: str = ""
    short: bool = False
    """Whether the label fits on a phone too."""


@dataclass(frozen=True)
class Lane:
    """One node of the printed timeline."""

    label: str
    y: int
    pieces: tuple[tuple[str, str], ...]
    """A state's style, and the path of its rectangles."""
    marks: tuple[tuple[str, str, str], ...]
    """Sign, `x` and text of each event."""


@dataclass(frozen=True)
class Picture:
    """The printed timeline."""

    lanes: tuple[Lane, ...]
    height: int
    ticks: tuple[tuple[str, float], ...]
    """`x` and seconds of each line of the time axis."""
    rounds: tuple[tuple[str, str, str], ...]
    """`x`, width and text of each round."""
    left_out: int
    """How many nodes are not shown."""


def state_class(state: LedgerState) -> str:
    """Return the state's name in the style sheet."""
    return str(state).replace(" ", "-")


def ledger_bar(account: Account) -> tuple[Piece, ...]:
    """Return the parts of the ledger's bar, productive time first, in percent."""
    whole = sum(account.states.values())
    pieces, at = [], 0.0
    order = [LedgerState.PRODUCTIVE, *sorted((s for s in ORDER[:-1]), key=lambda s: -account.states.get(s, 0.0))]
    for state in order:
        seconds = account.states.get(state, 0.0)
        if seconds <= 0 or whole <= 0:
            continue
        width = 100 * seconds / whole
        text = f"{state} {share(seconds, whole)}"
        label = text if width > 1.1 * len(text) else str(state) if width > 1.1 * len(state) else ""
        pieces.append(
            Piece(
                state_class(state),
                f"{at:.3f}%",
                f"{width:.3f}%",
                f"{text}, {duration(seconds)}",
                label,
                width > 2 * len(label) + 3,
            )
        )
        at += width
    return tuple(pieces)


def printed_timeline(report: Report) -> Picture:
    """Return the timeline as a static picture: at most 40 nodes, those of incidents and with most lost time first."""
    lanes_of: dict[str, list[NodeLane]] = {}
    for lane in report.nodes:
        lanes_of.setdefault(lane.node_id, []).append(lane)
    shown = _chosen(report, lanes_of)
    end_s = span_s(report)
    scale = (WIDTH - LABEL) / end_s
    lanes = []
    events: dict[str, list[TimelineEvent]] = {}
    for event in report.events:
        if event.name in _SHOWN_ALWAYS:
            events.setdefault(event.node, []).append(event)
    for at, node_id in enumerate(shown):
        y = 34 + at * ROW
        paths: dict[str, list[str]] = {}
        for state, x, width in (piece for lane in lanes_of[node_id] for piece in _pieces(lane.spans, scale, end_s)):
            paths.setdefault(state_class(state), []).append(
                f"M{x:.1f} {y}h{max(width, 0.3):.1f}v13h-{max(width, 0.3):.1f}"
            )
        pieces = tuple((style, "".join(parts)) for style, parts in paths.items())
        lanes.append(Lane(node_id, y, pieces, _marks(events.get(node_id, ()), scale)))
    return Picture(
        tuple(lanes),
        34 + len(lanes) * ROW + 4,
        tuple((f"{LABEL + seconds * scale:.1f}", seconds) for seconds in _ticks(end_s)),
        tuple(_rounds(report, scale, end_s)),
        len(lanes_of) - len(shown),
    )


def _chosen(report: Report, lanes_of: dict[str, list[NodeLane]]) -> list[str]:
    if len(lanes_of) <= MOST_LANES:
        return list(lanes_of)
    of_incidents = {row.incident.node_id for row in report.incidents} | {
        event.node for event in report.events if event.name in ("lost", "hang", "drain")
    }

    def rank(node_id: str) -> tuple[bool, float]:
        lost = sum(
            seconds
            for lane in lanes_of[node_id]
            for state, seconds in lane.states.items()
            if state is not LedgerState.PRODUCTIVE
        )
        return (node_id not in of_incidents, -lost)

    chosen = set(sorted(lanes_of, key=rank)[:MOST_LANES])
    return [node_id for node_id in lanes_of if node_id in chosen]


def _pieces(spans: Sequence[LaneSpan], scale: float, end_s: float) -> Iterator[tuple[LedgerState, float, float]]:
    """Yield state, place and width of the parts of a lane. Of several short spans, the longest one is shown."""
    shortest = end_s / _PIECES
    begin, longest, open_until = None, None, 0.0
    for span in [*spans, None]:
        if begin is not None and longest is not None and (span is None or open_until - begin >= shortest):
            yield longest.state, LABEL + begin * scale, (open_until - begin) * scale
            begin = longest = None
        if span is None:
            return
        if begin is None or longest is None:
            begin, longest = span.begin_s, span
        elif span.end_s - span.begin_s > longest.end_s - longest.begin_s:
            longest = span
        open_until = span.end_s


def _marks(events: Sequence[TimelineEvent], scale: float) -> tuple[tuple[str, str, str], ...]:
    marks, last = [], -99.0
    for event in events:
        x = LABEL + event.at_s * scale
        if x - last > 6:
            marks.append((MARKS[event.name], f"{x:.1f}", event.text))
            last = x
    return tuple(marks)


def _ticks(end_s: float) -> Iterator[float]:
    sizes = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
    size = next((size for size in sizes if end_s / size <= 8), 86_400 * max(1, round(end_s / 86_400 / 7)))
    at = 0
    while at * size <= end_s:
        yield at * size
        at += 1


def _rounds(report: Report, scale: float, end_s: float) -> Iterator[tuple[str, str, str]]:
    for row in report.rounds[:400]:
        width = ((end_s if row.end_s is None else row.end_s) - row.begin_s) * scale
        text = f"round {row.index}" if width > 60 else str(row.index) if width > 16 else ""
        yield f"{LABEL + row.begin_s * scale:.1f}", f"{max(width, 0.3):.1f}", text
