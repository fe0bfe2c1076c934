"""A report as at most ten lines of Markdown, for a ticket or a chat."""

import datetime
import re
from collections.abc import Iterator
from typing import Final

from elastic_core.api.tools import clean, duration_text
from elastic_report.model import Difference, Ratio, Report

MOST_LINES: Final = 10
_MOST_CHARS: Final = 300
_MOST_EVIDENCE: Final = 2
_MOST_LOST: Final = 4
_MOST_DIFFERENCES: Final = 5
_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>#|~@])")


def markdown(report: Report) -> str:
    """Return the lines. Text of scripts is one line each, and its marks of Markdown are escaped."""
    return "\n".join([*_lines(report)][:MOST_LINES]) + "\n"


def _lines(report: Report) -> Iterator[str]:
    run = report.run
    so_far = " so far" if report.live else ""
    yield f"**{_text(run.sentence or f'run {run.run_id!r}: {run.state}')}**"
    yield f"- Run: {_text(_facts(report))}"
    for line in run.evidence[:_MOST_EVIDENCE]:
        yield f"- Evidence: {_text(line)}"
    if report.account.sentence:
        yield f"- Time{so_far}: {_text(report.account.sentence)}"
    if report.account.goodput is not None and report.account.goodput_nvidia is not None:
        google, nvidia = percent(report.account.goodput), percent(report.account.goodput_nvidia)
        yield f"- Goodput{so_far}: {google} (Google's formula), {nvidia} (NVIDIA's formula)"
    if report.account.lost:
        lost = [each.text or f"{duration_text(each.seconds)} {each.state}" for each in report.account.lost]
        yield f"- Largest losses: {_text(_listed(lost, _MOST_LOST))}"
    if report.incidents:
        last = report.incidents[-1]
        yield f"- Incidents: {len(report.incidents)}; the last: {_text(last.sentence or last.incident.summary)}"
    if report.differences:
        changed = _listed([_difference(each) for each in report.differences], _MOST_DIFFERENCES)
        yield f"- Changed since {_text(report.compared_with or 'the last good run')}: {_text(changed)}"
    if report.missing:
        yield f"- Missing: {_text(_listed(list(report.missing), 2))}"


def _facts(report: Report) -> str:
    run = report.run
    began = datetime.datetime.fromtimestamp(run.began_ns / 1e9, tz=datetime.UTC)
    facts = [f"{run.run_id!r}"]
    if run.script:
        facts.append(run.script)
    facts.append(f"{began:%Y-%m-%d %H:%M} UTC")
    if run.ended_s is not None:
        facts.append(duration_text(run.ended_s))
    facts += [_count(run.node_count, "node"), _count(run.world_size, "worker"), _count(run.restart_count, "restart")]
    if run.membership_changes:
        facts.append(_count(run.membership_changes, "membership change"))
    if run.attempt_count > 1:
        facts.append(_count(run.attempt_count, "attempt"))
    if run.exit_code is not None:
        facts.append(f"exit code {run.exit_code}")
    return ", ".join(facts)


def percent(ratio: Ratio) -> str:
    """Return `93.1 %`, or `81.0 to 93.1 %` for a range."""
    low, high = f"{ratio.low * 100:.1f}", f"{ratio.high * 100:.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _difference(difference: Difference) -> str:
    before, now = difference.before or "absent", difference.now or "absent"
    return f"{difference.kind} {difference.name}: {before} before, {now} now"


def _listed(texts: list[str], most: int) -> str:
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _text(text: str) -> str:
    line = clean(text).strip()
    cut = line if len(line) <= _MOST_CHARS else f"{line[: _MOST_CHARS - 1]}…"
    return _MARKS.sub(r"\\\1", cut)
