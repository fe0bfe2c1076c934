"""The rounds of a run as text, for `elastic status --history`. No I/O."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from elastic_core.api.tools import duration_text
from elastic_ops.status.page import Page, Table, age, aligned
from elastic_ops.status.view import PastRoundView, RunView

HEADS: Final = ("ROUND", "BEGAN (UTC)", "AGE", "LASTED", "NODES", "WORKERS", "ENDED BY")
STORE_NOTE: Final = (
    "The store has the last round, the last end of a round, and the failures of the run; + is the time since the run "
    "began. Only the nodes know the other rounds: elastic status --history RUN on a node, without the store's options."
)
_INDENT: Final = "       "
_UNKNOWN: Final = "-"


def page_of_history(run: RunView, *, now_ns: int, width: int = 80) -> Page:
    """Return all known rounds of a run. Texts are wrapped at `width` characters; `now_ns` is for ages."""
    where = f", node {run.nodes[0].node_id}" if run.source == "directory" and run.nodes else ""
    lines = [f"run {run.run_id!r}{where}: {run.state}"]
    if run.earlier_rounds:
        lines.append(f"{_count(run.earlier_rounds, 'earlier round')} of this node: no longer kept")
    if run.rounds:
        lines += ["", *_rounds(run, now_ns, width)]
    else:
        lines.append("no round yet")
    if run.verdict is not None:
        reason = f": {run.verdict.reason}" if run.verdict.reason else ""
        text = f"verdict: {run.verdict.outcome}, exit code {run.verdict.exit_code}{reason}"
        lines += ["", *textwrap.wrap(text, width)]
    if run.source == "store" and [past.index for past in run.rounds if past.began] != [*range(len(run.rounds))]:
        lines += ["", *textwrap.wrap(STORE_NOTE, width)]
    return Page(above=tuple(lines))


def _rounds(run: RunView, now_ns: int, width: int) -> Iterator[str]:
    over = run.verdict is not None
    rows = tuple(_row(past, now_ns, over=over and past is run.rounds[-1]) for past in run.rounds)
    heads, *lines = aligned(Table(heads=HEADS, rows=rows)).split("\n")
    yield heads
    for line, past in zip(lines, run.rounds, strict=True):
        yield line
        for text in _changes(past):
            yield from textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ")


def _row(past: PastRoundView, now_ns: int, *, over: bool) -> tuple[str, ...]:
    lasted = _lasted_s(past)
    began = past.began.partition(".")[0].replace("T", " ")
    if not began and past.began_s is not None:
        began = f"+{duration_text(round(past.began_s))}"
    return (
        str(past.index),
        began or _UNKNOWN,
        age(past.began, now_ns),
        _UNKNOWN if lasted is None else duration_text(round(lasted)),
        str(past.node_count) if past.node_count else _UNKNOWN,
        str(past.world_size) if past.world_size else _UNKNOWN,
        past.ended_by or ("run's end" if over else _UNKNOWN),
    )


def _lasted_s(past: PastRoundView) -> float | None:
    if past.began and past.ended:
        return seconds(past.ended) - seconds(past.began)
    if past.began_s is not None and past.ended_s is not None:
        return past.ended_s - past.began_s
    return None


def seconds(iso: str) -> float:
    """Return a time of a view as seconds since the Unix epoch."""
    import datetime

    return datetime.datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()


def _changes(past: PastRoundView) -> Iterator[str]:
    """Yield the changes since the round before, and the end of the round."""
    for what, names, count in (
        ("joined", past.joined, past.joined_count),
        ("left", past.left, past.left_count),
        ("lost", past.lost, past.lost_count),
    ):
        if count:
            yield f"{what}: {_named(names, count)}"
    if past.reason:
        when = ""
        if not past.began and past.began_s is None and past.ended_s is not None:
            when = f" +{duration_text(round(past.ended_s))}"
        yield f"ended{when}: {past.reason}"


def _named(names: Sequence[str], count: int) -> str:
    if not names:
        return _count(count, "node")
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
