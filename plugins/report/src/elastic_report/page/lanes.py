"""The data of the page's timeline, as compact as it must be to fit into the file. Pure.

Times are whole ticks since the run began; `tick` is the length of a tick in seconds. Spans and workers are texts of
numbers in base 64: five bits a character, lowest first, the sixth bit set if another character follows. A signed number
is `2 * n`, or `-2 * n - 1` if it is negative.

Spans: `!` and a signed number change the round (from -1) by that number. `~` and a number name the reason of the next
span. `.` and a number leave a gap. A lower-case letter is a state (`a` is the first of `states`), with its ticks.

Workers: each bar is one character of flags, the changes of begin and length, and, for each flag that is set: 1 the
change of the local rank (else 1), 2 that of the global rank (else 1), 4 the end (see `_ending`), 8 first and last step,
16 the saves and restores (their number; for each its kind, its begin after the previous one's end, and its ticks). All
changes are relative to the bar before. `!` changes the round, and sets both ranks to those before the first bar of the
round before. `*` and a number repeat the last bar for the next ranks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from elastic_report.ledger.states import LOST, ORDER, LedgerState
from elastic_report.model import LaneSpan, NodeLane, Report, TimelineEvent, WorkerBar
from elastic_report.page.texts import number, visible

LIKELY_BYTES: Final = 6_000_000
"""The estimated size of spans and workers from which on details are left out."""
MOST_EVENTS: Final = 10_000
MOST_TEXT_CHARS: Final = 300_000
"""The characters of all reasons, and of all texts of events."""
BINS: Final = 240
"""How many points the overview has."""
MOST_COUNTED: Final = 300
"""How many lanes the overview counts. From larger runs every second one, every third one, and so on."""

_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_LETTERS: Final = {state: chr(ord("a") + at) for at, state in enumerate(ORDER)}
_FIRST_TO_GO: Final = ("save", "joined", "round", "left")
"""The events that are left out if there are too many, in this order."""


@dataclass(frozen=True)
class Detail:
    """How exact the data are. `text` says what is left out, for the page's list of what is missing."""

    ticks: float
    """The most ticks of the whole run."""
    apart_s: float
    """Workers of a node whose times differ by less are shown alike."""
    marks: bool = True
    workers: bool = True
    shortest: float = 0.0
    """The shortest span that is kept, as a part of the run."""
    text: str = ""


DETAILS: Final = (
    Detail(1e8, 0.0),
    Detail(4e6, 0.1, text="The timeline shows workers of a node alike if their times differ by less than 0.1 s."),
    Detail(
        5e5,
        1.0,
        marks=False,
        text="The timeline shows workers of a node alike if their times differ by less than 1 s, without their saves.",
    ),
    Detail(
        5e5,
        2.0,
        marks=False,
        workers=False,
        shortest=1 / 50_000,
        text="The timeline shows only workers that failed, and joins short spans to their neighbours.",
    ),
    Detail(
        1e5,
        5.0,
        marks=False,
        workers=False,
        shortest=1 / 4_000,
        text="The timeline shows only workers that failed, and joins short spans to their neighbours.",
    ),
)


def timeline_data(report: Report) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield the data of the timeline, and what was left out of them, a line each: each time with less detail."""
    end_s = span_s(report)
    for detail in DETAILS[_likely(report) :]:
        yield _Encoding(report, detail, end_s).data()


def span_s(report: Report) -> float:
    """Return the length of the timeline in seconds."""
    ends = (lane.end_s for lane in report.nodes)
    return max((report.run.ended_s or 0.0, 0.001, *ends))


def _likely(report: Report) -> int:
    """Return the first degree of detail that may fit, so that large reports are not encoded several times."""
    spans = sum(len(lane.spans) for lane in report.nodes)
    bars = sum(len(lane.workers) for lane in report.nodes)
    marks = sum(len(bar.marks) for lane in report.nodes for bar in lane.workers)
    sizes = (4 * spans + 8 * bars + 6 * marks, 3.7 * spans + 3 * bars + 1.5 * marks, 3.1 * spans + 2 * bars)
    return next((at for at, size in enumerate(sizes) if size <= LIKELY_BYTES), len(sizes))


class _Names:
    """Texts that occur several times, by number. When they have too many characters, further ones become 0: ``."""

    def __init__(self, most_chars: int) -> None:
        self._room = most_chars
        self._at: dict[str, int] = {"": 0}
        self.left_out = 0

    def __getitem__(self, text: str) -> int:
        at = self._at.get(text)
        if at is None:
            if len(text) > self._room:
                self.left_out += 1
                return 0
            self._room -= len(text)
            at = self._at[text] = len(self._at)
        return at

    def all(self) -> list[str]:
        return [visible(text) for text in self._at]


class _Encoding:
    def __init__(self, report: Report, detail: Detail, end_s: float) -> None:
        self._report = report
        self._detail = detail
        self._end_s = end_s
        self._tick = next(
            size * 10.0**power
            for power in range(-3, 9)
            for size in (1, 2, 5)
            if end_s <= detail.ticks * size * 10.0**power
        )
        self._reasons = _Names(MOST_TEXT_CHARS)
        self._suffixes = _Names(MOST_TEXT_CHARS)
        self._log_lists: dict[tuple[int, ...], int] = {}
        self._shares: dict[LedgerState, list[float]] = {}
        self._lanes = 0
        self._each = 1 + len(report.nodes) // MOST_COUNTED

    def data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        report = self._report
        nodes: dict[str, dict[str, Any]] = {}
        states: dict[str, dict[LedgerState, float]] = defaultdict(lambda: defaultdict(float))
        for lane in report.nodes:
            node = nodes.setdefault(lane.node_id, {"id": visible(lane.node_id), "host": "", "parts": []})
            node["host"] = visible(lane.host) or node["host"]
            node["parts"].append(self._part(lane))
            for state, seconds in lane.states.items():
                states[lane.node_id][state] += seconds
        for node_id, node in nodes.items():
            node["parts"].sort(key=lambda part: part["begin"])
            node["lost"] = round(sum(states[node_id].get(state, 0.0) for state in LOST), 1)
        events, names, texts, left_out = self._events({node_id: at for at, node_id in enumerate(nodes)})
        data = {
            "version": 1,
            "began": report.run.began_ns // 1_000_000,
            "tick": self._tick,
            "end": self._ticks(self._end_s),
            "live": report.live,
            "states": [str(state) for state in ORDER],
            "nodes": list(nodes.values()),
            "rounds": [
                [
                    row.attempt,
                    row.index,
                    self._ticks(row.begin_s),
                    -1 if row.end_s is None else self._ticks(row.end_s),
                    row.node_count,
                    row.world_size,
                    visible(row.ended_by),
                    visible(row.reason[:300]),
                ]
                for row in report.rounds[:20_000]
            ],
            "names": names,
            "texts": texts,
            "events": events,
            "incidents": [
                [
                    row.number,
                    self._ticks(row.at_s),
                    self._ticks(row.at_s + (row.detect_s or 0.0)),
                    self._ticks(row.at_s + (row.detect_s or 0.0) + (row.recover_s or 0.0)),
                    visible(row.sentence[:300]),
                    visible(row.incident.node_id),
                ]
                for row in report.incidents
            ],
            "overview": self._overview(),
            "reasons": self._reasons.all(),
            "suffixes": self._suffixes.all(),
            "logs": list(self._log_lists),
        }
        return data, tuple(self._left_out(left_out))

    def _left_out(self, events: int) -> Iterator[str]:
        if self._detail.text:
            yield self._detail.text
        if events:
            yield f"The timeline leaves out {number(events)} events, saves and joins first."
        if len(self._report.rounds) > 20_000:
            yield f"The timeline leaves out {number(len(self._report.rounds) - 20_000)} rounds."
        if self._reasons.left_out:
            yield f"The timeline leaves out the reasons of {number(self._reasons.left_out)} spans."
        if self._suffixes.left_out:
            yield f"The timeline leaves out the paths of {number(self._suffixes.left_out)} log files."

    def _ticks(self, seconds: float) -> int:
        return max(0, round(seconds / self._tick))

    def _part(self, lane: NodeLane) -> dict[str, Any]:
        prefix = lane.run_dir.rstrip("/") + "/" if lane.run_dir else ""
        logs = tuple(self._suffixes[path.removeprefix(prefix) if prefix else path] for path in lane.log_paths[:64])
        return {
            "attempt": lane.attempt,
            "inferred": int(lane.inferred),
            "outcome": visible(lane.outcome),
            "begin": self._ticks(lane.begin_s),
            "end": self._ticks(lane.end_s),
            "spans": self._spans(lane),
            "workers": self._workers(lane.workers),
            "dir": visible(lane.run_dir),
            "logs": self._log_lists.setdefault(tuple(filter(None, logs)), len(self._log_lists)),
        }

    def _spans(self, lane: NodeLane) -> str:
        parts: list[str] = []
        add = parts.append
        at, last_round = self._ticks(lane.begin_s), -1
        tick, letters, reasons = self._tick, _LETTERS, self._reasons
        self._lanes += 1
        if self._lanes % self._each == 0:
            self._add_shares(lane.spans)
        for span in _long_enough(lane.spans, self._detail.shortest * self._end_s):
            begin, end = round(span.begin_s / tick), round(span.end_s / tick)
            if begin > at:
                add("." + _digits(begin - at))
                at = begin
            if end <= at:
                continue
            if span.round is not None and span.round != last_round:
                add("!" + _digits(_signed(span.round - last_round)))
                last_round = span.round
            if span.reason and (reason := reasons[span.reason]):
                add("~" + _digits(reason))
            add(letters[span.state] + _digits(end - at))
            at = end
        return "".join(parts)

    def _add_shares(self, spans: Iterable[LaneSpan]) -> None:
        """Add the spans to the overview: node-seconds of each state in each of the run's 240 parts."""
        size, shares = self._end_s / BINS, self._shares
        for span in spans:
            bins = shares.get(span.state)
            if bins is None:
                bins = shares[span.state] = [0.0] * BINS
            begin, end = max(0.0, span.begin_s), span.end_s
            first, last = min(int(begin / size), BINS - 1), min(int(end / size), BINS - 1)
            if first == last:
                bins[first] += end - begin
                continue
            bins[first] += (first + 1) * size - begin
            bins[last] += end - last * size
            for at in range(first + 1, last):
                bins[at] += size

    def _overview(self) -> list[list[int]]:
        """Return for each state its share of the most nodes at a time, in 1/1000, at 240 points."""
        totals = [sum(bins[at] for bins in self._shares.values()) for at in range(BINS)]
        most = max((*totals, 1e-9))
        return [
            [round(1000 * seconds / most) for seconds in self._shares[state]] if state in self._shares else []
            for state in ORDER
        ]

    def _workers(self, workers: Sequence[WorkerBar]) -> str:
        detail = self._detail
        if not detail.workers:
            workers = [bar for bar in workers if bar.code and not bar.stopped]
        parts: list[str] = []
        last: WorkerBar | None = None
        shown = first = _Bar(-1, -1, -1, 0, 0, 0, 0, 0)
        repeats, begins = 0, False
        for bar in sorted(workers, key=lambda each: (each.round, each.local_rank, each.begin_s)):
            if last is not None and self._alike(bar, last, repeats + 1):
                repeats += 1
                continue
            if repeats:
                parts.append("*" + _digits(repeats))
                shown = shown.repeated(repeats)
                repeats = 0
            if bar.round != shown.round:
                parts.append("!" + _digits(_signed(bar.round - shown.round)))
                shown = shown._replace(round=bar.round, local=first.local, rank=first.rank)
                begins = True
            shown = self._bar(bar, shown, parts)
            if begins:
                first, begins = shown._replace(local=shown.local - 1, rank=shown.rank - 1), False
            last = bar
        if repeats:
            parts.append("*" + _digits(repeats))
        return "".join(parts)

    def _alike(self, bar: WorkerBar, last: WorkerBar, behind: int) -> bool:
        """Return whether the bar may be shown as `last`, for a rank that is higher by `behind`."""
        apart = self._detail.apart_s
        return (
            bar.round == last.round
            and bar.local_rank == last.local_rank + behind
            and bar.global_rank == last.global_rank + behind
            and bar.code == last.code
            and bar.stopped == last.stopped
            and bar.last_step == last.last_step
            and bar.first_step == last.first_step
            and abs(bar.begin_s - last.begin_s) <= apart
            and abs(bar.end_s - last.end_s) <= apart
            and (not self._detail.marks or _same_marks(bar.marks, last.marks, apart))
        )

    def _bar(self, bar: WorkerBar, last: "_Bar", parts: list[str]) -> "_Bar":
        begin = self._ticks(bar.begin_s)
        ending = _ending(bar)
        marks = bar.marks if self._detail.marks else ()
        steps = bar.first_step is not None or bar.last_step is not None
        first, final = (bar.first_step or 0, bar.last_step or 0) if steps else (last.first, last.final)
        now = _Bar(
            bar.round,
            bar.local_rank,
            bar.global_rank,
            begin,
            max(0, self._ticks(bar.end_s) - begin),
            ending,
            first,
            final,
        )
        local, rank = now.local - last.local, now.rank - last.rank
        flags = (local != 1) + 2 * (rank != 1) + 4 * (ending != last.ending) + 8 * steps + 16 * bool(marks)
        numbers = [_signed(now.begin - last.begin), _signed(now.length - last.length)]
        if local != 1:
            numbers.append(_signed(local))
        if rank != 1:
            numbers.append(_signed(rank))
        if ending != last.ending:
            numbers.append(ending)
        if steps:
            numbers += (_signed(now.first - last.first), _signed(now.final - last.final))
        at = begin
        if marks:
            numbers.append(len(marks))
        for kind, mark_begin, mark_end in marks:
            start, end = self._ticks(mark_begin), self._ticks(mark_end)
            numbers += (int(kind != "save"), _signed(start - at), max(0, end - start))
            at = max(start, end)
        parts.append(_DIGITS[flags] + "".join(map(_digits, numbers)))
        return now

    def _events(self, nodes: Mapping[str, int]) -> tuple[list[list[int]], list[str], list[str], int]:
        """Return the events in order of time, their names and texts, and how many were left out."""
        kept = kept_events(self._report.events, MOST_EVENTS)
        names, texts = _Names(MOST_TEXT_CHARS), _Names(MOST_TEXT_CHARS)
        rows = [
            [
                self._ticks(event.at_s),
                names[event.name],
                texts[event.text[:400]],
                nodes.get(event.node, -1),
                -1 if event.rank is None else event.rank,
                event.incident or 0,
            ]
            for event in kept
        ]
        return rows, names.all(), texts.all(), len(self._report.events) - len(kept)


class _Bar(NamedTuple):
    """A worker as the reader of the data knows it."""

    round: int
    local: int
    rank: int
    begin: int
    length: int
    ending: int
    first: int
    final: int

    def repeated(self, times: int) -> "_Bar":
        return self._replace(local=self.local + times, rank=self.rank + times)


def _ending(bar: WorkerBar) -> int:
    """Return a worker's end as a number: 0 if not known, else 1 and the signed code; doubled, and 1 if stopped."""
    return 2 * (0 if bar.code is None else 1 + _signed(bar.code)) + bar.stopped


def _same_marks(
    marks: Sequence[tuple[str, float, float]], others: Sequence[tuple[str, float, float]], apart: float
) -> bool:
    return len(marks) == len(others) and all(
        kind == other_kind and abs(begin - other_begin) <= apart and abs(end - other_end) <= apart
        for (kind, begin, end), (other_kind, other_begin, other_end) in zip(marks, others, strict=True)
    )


def _long_enough(spans: Sequence[LaneSpan], shortest_s: float) -> Iterable[LaneSpan]:
    """Yield the spans; one that is too short belongs to the span before it."""
    if shortest_s <= 0:
        return spans
    kept: list[LaneSpan] = []
    for span in spans:
        short = span.end_s - span.begin_s < shortest_s and span.state is not LedgerState.HUNG
        if kept and (short or span.state is kept[-1].state):
            last = kept[-1]
            kept[-1] = LaneSpan(
                state=last.state, begin_s=last.begin_s, end_s=span.end_s, round=last.round, reason=last.reason
            )
        else:
            kept.append(span)
    return kept


def kept_events(events: Sequence[TimelineEvent], most: int) -> list[TimelineEvent]:
    """Return at most `most` events in order of time: without all saves if there are too many, then without joins."""
    kept = sorted(events, key=lambda event: event.at_s)
    for name in _FIRST_TO_GO:
        if len(kept) > most:
            kept = [event for event in kept if event.name != name]
    return kept[:most]


def _signed(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def _digits(value: int) -> str:
    if value < len(_TABLE):
        return _TABLE[value]
    return _DIGITS[value % 32 + 32] + _digits(value // 32)


_TABLE = list(_DIGITS[:32])
_TABLE += [_DIGITS[value % 32 + 32] + _TABLE[value // 32] for value in range(32, 1024)]
_TABLE += [_DIGITS[value % 32 + 32] + _TABLE[value // 32] for value in range(1024, 32_768)]
