"""A screen's content as lines of a terminal of any size, drawn with rich. Imported only by `--watch` on a terminal."""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from elastic_ops.status.ledger_bar import LedgerBar, filled, shares
from elastic_ops.status.recent import BAD, GOOD, Event
from elastic_ops.status.screen import Content, Fact, Rows, time_of_day

_STYLES: Final = {
    "running": "green",
    "alive": "green",
    "done": "green",
    "failed": "red",
    "lost": "red",
    "silent": "red",
    "agent dead": "red",
    "all nodes lost": "red",
    "ended": "yellow",
}
_ANY: Final = "yellow"
_FACTS: Final = {"strong": "bold", "bad": "red"}
_KINDS: Final = {GOOD: "green", BAD: "red"}
BAR: Final = {
    "productive": ("green", "#"),
    "redone": ("magenta", "x"),
    "saving": ("cyan", "s"),
    "restoring": ("bright_cyan", "l"),
    "starting": ("blue", "+"),
    "rendezvous": ("bright_blue", "."),
    "restarting": ("yellow", "~"),
    "deciding": ("bright_yellow", "?"),
    "stopping": ("bright_magenta", "-"),
    "hung": ("red", "!"),
    "store outage": ("bright_red", "%"),
    "excluded": ("white", "o"),
    "drained": ("bright_white", "d"),
    "queued": ("bright_black", "q"),
}
"""The colour of each state in the ledger bar, and its sign on a terminal without colours."""
_FULL: Final = "█"
_MOST_LINES: Final = 2
"""The most lines of one list of facts, of the legend, and of notes on a low terminal."""
_ROOMY: Final = 24
"""The height from which blank lines separate the parts."""
_LEAST_EVENTS: Final = 4
"""The lines of events, with their heading, that a long table leaves."""
_GAP: Final = "  "


class Screen:
    """Lays out content for a terminal, and remembers how far its table is scrolled.

    Args:
        colour: Whether the terminal has colours.
        unicode: Whether the terminal's encoding has block characters.
    """

    def __init__(self, *, colour: bool, unicode: bool = True) -> None:
        self._blocks = colour and unicode
        self._unicode = unicode
        self._offset = 0
        self._page = 1

    def scroll(self, rows: int = 0, *, pages: int = 0, start: bool = False, end: bool = False) -> None:
        """Move the visible part of the table. The next `lines` limits it to the table."""
        self._offset = 0 if start else 10**9 if end else max(0, self._offset + rows + pages * self._page)

    def lines(self, content: Content, *, width: int, height: int, now_ns: int) -> list[Text]:
        """Return exactly `height` lines of at most `width` cells."""
        roomy = height >= _ROOMY
        top = [self._headline(content, width)]
        if roomy:
            for facts in content.facts:
                top += self._flowed(facts, width, _MOST_LINES)
        else:
            rounds, steps, others = content.facts
            by_weight = sorted((*steps, *rounds, *others), key=lambda fact: fact.style != "bad")
            top += self._flowed(by_weight, width, _MOST_LINES)
        bar = self._bar(content.bar, width, _MOST_LINES if roomy else 1) if content.bar is not None else []
        bar += [Text(content.bar_note, style="dim")] if content.bar_note else []
        last = self._wrapped(Text(content.last), width, _MOST_LINES if roomy else 1) if content.last else []
        blanks = 0
        if roomy:  # a blank line before each part but the first
            blanks = sum(map(bool, (bar, content.rows, content.notes, content.events, last)))
        room = height - len(top) - len(bar) - len(last) - 1 - blanks
        notes = [Text(note) for note in content.notes[: max(0, room // 4)]]
        room -= len(notes)
        wanted = len(content.events) + 1 if content.events else 0
        needed = 0 if content.rows is None else content.rows.count + 2
        for_events = min(wanted, max(room - needed, min(_LEAST_EVENTS, room // 2)))
        rows, cut = self._table(content.rows, width, room - for_events)
        events: list[Text] = []
        if for_events > 1:
            events = [Text("LAST EVENTS", style="bold dim")]
            events += [self._event(event, now_ns) for event in content.events[: for_events - 1]]
        drawn: list[Text] = []
        for part in (top, bar, rows, notes, events, last):
            drawn += [*([Text("")] if roomy and drawn and part else []), *part]
        drawn = drawn[: height - 1]
        drawn += [Text("") for _ in range(height - 1 - len(drawn))]
        drawn.append(Text(f"q quit{f'{_GAP}up/down/PgUp/PgDn scroll' if cut else ''}", style="dim"))
        return [self._encodable(self._fit(line, width)) for line in drawn[:height]]

    def _headline(self, content: Content, width: int) -> Text:
        clock = Text(content.clock, style="bold")
        style = f"bold {_STYLES.get(content.state, _ANY)}"
        state = Text(_GAP + content.state, style=style) if content.state else Text("")
        room = width - cell_len(state.plain) - len(content.clock) - 2
        name = self._fit(Text(content.name, style="bold"), max(8, room))
        left = Text.assemble(name, state)
        left.truncate(max(0, width - len(content.clock) - 1))
        return Text.assemble(left, " " * (width - cell_len(left.plain) - len(content.clock)), clock)

    def _flowed(self, facts: Sequence[Fact], width: int, most: int) -> list[Text]:
        """Return facts side by side, in as many lines as they need, at most `most`."""
        lines: list[Text] = []
        for fact in facts:
            text = Text(fact.text, style=_FACTS.get(fact.style, ""))
            if lines and cell_len(lines[-1].plain) + len(_GAP) + cell_len(fact.text) <= width:
                lines[-1] = Text.assemble(lines[-1], _GAP, text)
            elif len(lines) < most:
                lines.append(text)
        return lines

    def _wrapped(self, text: Text, width: int, most: int) -> list[Text]:
        whole: list[Text] = []
        rest = text
        while cell_len(rest.plain) > width and len(whole) < most - 1:
            cut = rest.plain.rfind(" ", 1, width)
            at = cut if cut > width // 2 else width
            head, rest = rest.divide([at])
            whole.append(head)
            rest = rest[1:] if rest.plain.startswith(" ") else rest
        return [*whole, rest]

    def _bar(self, bar: LedgerBar, width: int, most: int) -> list[Text]:
        """Return the bar across the width, and its legend."""
        drawn = Text("")
        for state, cells in filled(bar.parts, width):
            colour, sign = BAR[state]
            drawn.append((_FULL if self._blocks else sign) * cells, style=colour)
        legend: list[Text] = []
        for state, share in shares(bar.parts):
            colour, sign = BAR[state]
            key = Text.assemble((_FULL if self._blocks else sign, colour), f" {state} {share}")
            if legend and cell_len(legend[-1].plain) + len(_GAP) + cell_len(key.plain) <= width:
                legend[-1] = Text.assemble(legend[-1], _GAP, key)
            elif len(legend) < most:
                legend.append(key)
        return [drawn, *legend]

    def _event(self, event: Event, now_ns: int) -> Text:
        at = time_of_day(event.at_ns, now_ns=now_ns)
        return Text.assemble((at, "dim"), _GAP, (event.text, _KINDS.get(event.kind, "")))

    def _table(self, table: Rows | None, width: int, height: int) -> tuple[list[Text], bool]:
        """Return the table in `height` lines, and whether rows are hidden. Its title then has their number."""
        if table is None or height < 1:
            return [], table is not None
        cut = table.count + 2 > height
        fits = max(0, min(table.count, height - 2))
        self._page = max(1, fits)
        self._offset = min(self._offset, table.count - fits) if cut else 0
        order: Sequence[int] = range(table.count)
        if cut and table.troubled:
            troubled = set(table.troubled)
            order = sorted(order, key=lambda at: at not in troubled)
        hidden = ""
        if cut:
            above = f", {self._offset:,} of them above" if self._offset else ""
            hidden = f" ({table.count - fits:,} not shown{above})"
        lines = [self._fit(Text(table.title), width - len(hidden)).append(hidden)]
        lines[0].stylize("bold dim")
        if fits:
            lines += self._rows(table, [table.cells(at) for at in order[self._offset : self._offset + fits]], width)
        return lines, cut

    def _columns(self, table: Rows, rows: Sequence[tuple[str, ...]], width: int) -> dict[int, int]:
        """Return the columns that fit, with their widths. The first one is shortened if the others need the space."""
        widths = {
            at: max(cell_len(text) for text in column) for at, column in enumerate(zip(table.heads, *rows, strict=True))
        }
        for optional in table.optional:
            if sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
                break
            widths.pop(optional)
        first = next(iter(widths))
        over = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width
        if over > 0:
            widths[first] = max(min(12, widths[first]), widths[first] - over)
        return widths

    def _rows(self, table: Rows, rows: Sequence[tuple[str, ...]], width: int) -> list[Text]:
        columns = self._columns(table, rows, width)
        lines = [self._row([(table.heads[at], "dim") for at in columns], columns, width)]
        for row in rows:
            styles = {table.state: _STYLES.get(row[table.state], _ANY)}
            lines.append(self._row([(row[at], styles.get(at, "")) for at in columns], columns, width))
        return lines

    def _row(self, cells: Sequence[tuple[str, str]], columns: dict[int, int], width: int) -> Text:
        line = Text("")
        for (cell, style), (at, cells_wide) in zip(cells, columns.items(), strict=True):
            if line.plain or at != next(iter(columns)):
                line.append(_GAP)
            text = self._fit(Text(cell, style=style), cells_wide)
            line.append_text(text)
            line.append(" " * max(0, cells_wide - cell_len(text.plain)))
        return self._fit(line, width)

    def _encodable(self, line: Text) -> Text:
        if not self._unicode and not line.plain.isascii():
            line = line.copy()
            line.plain = line.plain.encode("ascii", "replace").decode()
        return line

    def _fit(self, text: Text, width: int) -> Text:
        """Return a text that is cut to the width, with a sign where it is cut."""
        if cell_len(text.plain) > width:
            text = text.copy()
            text.truncate(max(0, width - 1))
            text.append("…" if self._unicode else "~")
        return text


class Frame:
    """Lines that rich prints as they are, without wrapping."""

    def __init__(self, lines: Sequence[Text]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        for line in self._lines:
            line.no_wrap, line.overflow, line.end = True, "crop", "\n"
            yield line
