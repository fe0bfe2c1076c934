"""Draws a mermaid state diagram as SVG: a box for each state, a row for each way out of it, a wire for each target.

All rows that lead to one state meet in that state's wire, so that a diagram of any size stays legible; nothing has to
be placed by hand, and no script is needed in the browser.
"""

import re
from html import escape
from typing import Final, NamedTuple

_EDGE: Final = re.compile(r"\s*(\S+) --> (\S+?)(?:: (.+))?")
_ROW, _HEAD, _GAP = 19, 26, 16
_BOX_WIDTH, _LANE, _MARGIN = 470, 15, 12


class Way(NamedTuple):
    """From one state to another, by any of several events."""

    source: str
    target: str
    events: tuple[str, ...]


class Box(NamedTuple):
    """A state and where it stands: its upper edge, and its ways out."""

    state: str
    top: int
    ways: tuple[Way, ...]

    @property
    def height(self) -> int:
        """How tall it is."""
        return _HEAD + _ROW * len(self.ways) + (6 if self.ways else 0)

    @property
    def entry(self) -> int:
        """Where wires come in."""
        return self.top + _HEAD // 2


def read(lines: list[str]) -> list[Way]:
    """Return the ways of a state diagram, in its order; the dots of beginning and end are left out."""
    events: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        match = _EDGE.fullmatch(line)
        if match and "[*]" not in match.groups():
            events.setdefault((match[1], match[2]), []).append(match[3] or "")
    return [Way(source, target, tuple(names)) for (source, target), names in events.items()]


def place(ways: list[Way]) -> dict[str, Box]:
    """Return the boxes by state, from top to bottom in the order in which sources appear."""
    states = dict.fromkeys([way.source for way in ways] + [way.target for way in ways])
    boxes: dict[str, Box] = {}
    top = _MARGIN
    for state in states:
        boxes[state] = Box(state, top, tuple(way for way in ways if way.source == state))
        top += boxes[state].height + _GAP
    return boxes


def lanes(boxes: dict[str, Box]) -> dict[str, int]:
    """Return the lane of each target's wire: wires in one lane don't overlap, and short ones are near the boxes."""
    spans = {state: span for state in boxes if (span := _span(state, boxes))}
    taken: list[list[tuple[int, int]]] = []
    found = {}
    for state, (top, end) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1])):
        lane = next((n for n, used in enumerate(taken) if all(end < a or b < top for a, b in used)), len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append((top, end))
        found[state] = lane
    return found


def _rows(box: Box) -> list[tuple[int, Way]]:
    return [(box.top + _HEAD + _ROW * n + _ROW // 2, way) for n, way in enumerate(box.ways)]


def _span(state: str, boxes: dict[str, Box]) -> tuple[int, int] | None:
    ends = [y for box in boxes.values() if box.state != state for y, way in _rows(box) if way.target == state]
    return (min(*ends, boxes[state].entry), max(*ends, boxes[state].entry)) if ends else None


def draw(lines: list[str]) -> str:
    """Return the picture of a mermaid state diagram."""
    boxes = place(read(lines))
    lane_of = lanes(boxes)
    right = _MARGIN + _BOX_WIDTH
    width = right + (max(lane_of.values(), default=0) + 2) * _LANE + _MARGIN
    height = max(box.top + box.height for box in boxes.values()) + _MARGIN
    style = f"max-width: {width}px; width: 100%; font: 13px monospace"
    head = f'viewBox="0 0 {width} {height}" role="img" style="{style}" aria-label="state diagram; tables follow"'
    parts = [f'<svg class="state-diagram" xmlns="http://www.w3.org/2000/svg" {head}>']
    for index, state in enumerate(lane_of):
        parts += _wire(boxes[state], boxes, right, right + (lane_of[state] + 1) * _LANE, _colour(index, len(lane_of)))
    for box in boxes.values():
        parts += _box(box)
    return "\n".join([*parts, "</svg>"])


def _colour(index: int, count: int) -> str:
    return f"hsl({360 * index // max(count, 1)} 60% 50%)"


def _wire(box: Box, boxes: dict[str, Box], right: int, x: int, colour: str) -> list[str]:
    ends = [y for other in boxes.values() if other is not box for y, way in _rows(other) if way.target == box.state]
    top, end = min(*ends, box.entry), max(*ends, box.entry)
    path = [f"M{x} {top}V{end}", *(f"M{right} {y}H{x}" for y in ends), f"M{x} {box.entry}H{right + 7}"]
    dots = [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for y in ends]
    arrow = f'<path d="M{right + 1} {box.entry}l9 -5v10z" fill="{colour}"/>'
    return [f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>', *dots, arrow]


def _box(box: Box) -> list[str]:
    left = _MARGIN
    frame = (
        f'<rect x="{left}" y="{box.top}" width="{_BOX_WIDTH}" height="{box.height}" rx="6" fill="none" '
        'stroke="currentColor"/>'
    )
    head = f'<text x="{left + 10}" y="{box.top + 18}" font-weight="bold" fill="currentColor">{escape(box.state)}</text>'
    texts = [frame, head]
    right = left + _BOX_WIDTH - 8
    for y, way in _rows(box):
        back = "stays" if way.target == way.source else f"→ {way.target}"
        names = escape(", ".join(filter(None, way.events)))
        texts += [
            f'<text x="{left + 10}" y="{y + 4}" fill="currentColor">{names}</text>',
            f'<text x="{right}" y="{y + 4}" text-anchor="end" fill="currentColor">{escape(back)}</text>',
        ]
    return texts
