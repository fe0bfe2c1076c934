"""A run's status as text and columns, without I/O. `status.live` shows the same as a table on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from elastic_core.api import FailureClass, Record
from elastic_core.api.tools import clean, duration_text
from elastic_ops.status.ledger_line import LEDGER, ledger_line
from elastic_ops.status.view import AbsenceView, IncidentView, NodeView, PastRoundView, RunView, StoreView

NODE_HEADS: Final = ("NODE", "ADDRESS", "STATE", "RANKS", "WORKERS", "SINCE")
WORKER_HEADS: Final = ("LOCAL RANK", "RANK", "PID", "STATE")
ROUND_HEADS: Final = ("ROUND", "BEGAN", "LASTED", "NODES", "WORKERS", "ENDED BY")
RUN_HEADS: Final = ("RUN", "STATE", "ROUND", "RESTARTS", "NODE", "PID", "SINCE", "RUN DIRECTORY")
MOST_NAMED: Final = 8
MOST_ROUNDS: Final = 5
MOST_OF_HOOK: Final = 240
"""The most characters of a hook's published fields."""
_NOTHING: Final = "-"


class Table(Record, frozen=True, kw_only=True):
    """Heads and rows of equal length, without terminal control characters."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Clean the cells."""
        force_setattr(self, "rows", tuple(tuple(map(clean, row)) for row in self.rows))


class Page(Record, frozen=True, kw_only=True):
    """Lines above, tables, and lines below, without terminal control characters."""

    above: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    below: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Clean the lines."""
        force_setattr(self, "above", tuple(map(clean, self.above)))
        force_setattr(self, "below", tuple(map(clean, self.below)))


def page_of_run(run: RunView, *, now_ns: int) -> Page:
    """Return one run in full. `now_ns` is this host's wall clock, for ages."""
    tables = [Table(heads=NODE_HEADS, rows=tuple(node_cells(node, now_ns) for node in run.nodes))] if run.nodes else []
    if run.workers:
        rows = tuple((str(w.local_rank), str(w.global_rank), str(w.pid), w.state) for w in run.workers)
        tables.append(Table(heads=WORKER_HEADS, rows=rows))
    if any(past.ended for past in run.rounds):
        past_rows = tuple(_round_row(past, now_ns) for past in run.rounds[-MOST_ROUNDS:])
        tables.append(Table(heads=ROUND_HEADS, rows=past_rows))
    return Page(above=tuple(_above(run, now_ns)), tables=tuple(tables), below=tuple(_below(run, now_ns)))


def page_of_runs(runs: Sequence[RunView], *, now_ns: int) -> Page:
    """Return several runs, one line each."""
    rows = tuple(run_cells(run, now_ns) for run in runs)
    return Page(above=(), tables=(Table(heads=RUN_HEADS, rows=rows),), below=("One in full: elastic status RUN",))


def plain(page: Page) -> str:
    """Return a page as text with aligned columns."""
    blocks = ["\n".join(page.above), *map(aligned, page.tables), "\n".join(page.below)]
    return "\n\n".join(block for block in blocks if block)


def aligned(table: Table) -> str:
    """Return a table as text; the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows, strict=True)]
    lines = []
    for row in (table.heads, *table.rows):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join((*cells, row[-1])).rstrip())
    return "\n".join(lines)


def age(iso: str, now_ns: int) -> str:
    """Return the age of a time; `-` if it is not known."""
    return duration_text(round(_age_s(iso, now_ns))) if iso else _NOTHING


def _age_s(iso: str, now_ns: int) -> float:
    import datetime

    return now_ns / 1e9 - datetime.datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()


def incident_line(incident: IncidentView) -> str:
    """Return an incident on one line: `rank 3 on n1 failed: ValueError: boom (user exception, round 2); restart`."""
    subject = f"rank {incident.rank}" if incident.rank is not None else incident.failure_class
    node = f" on {incident.node_id}" if incident.node_id else ""
    where = f", round {incident.round_index}" if incident.round_index >= 0 else ""
    decision = f"; {incident.decision}" if incident.decision else ""
    if incident.rank is None and incident.failure_class == FailureClass.NODE_LOST.value and incident.decision:
        return f"{incident.summary} ({incident.failure_class}{where}){decision}"
    return f"{subject}{node} failed: {incident.summary} ({incident.failure_class}{where}){decision}"


# --- the parts of a page


def _above(run: RunView, now_ns: int) -> list[str]:
    lines = [f"run {run.run_id!r}: {run.state}"]
    if run.round is not None:
        token = f" (token {run.round.token})" if run.round.token else ""
        lines[0] += f", round {run.round.index}{token}"
        master = f"; master {run.round.master_addr}:{run.round.master_port}" if run.round.master_addr else ""
        lines.append(f"{_count(run.round.node_count, 'node')}, {_count(run.round.world_size, 'worker')}{master}")
    lines.append(", ".join(restarts_text(run, most=run.max_restarts)))
    agent = run.agent
    if agent is not None:
        life = {True: "", False: "; it is dead", None: "; it can't be seen from here"}[agent.alive]
        ended = run.verdict is not None and agent.alive is False
        started = age(agent.started, now_ns)
        lines.append(f"agent {agent.pid} on {agent.host}, started {started} ago{'' if ended else life}")
    elif run.source == "directory":
        lines.append("its agent left no status: it began just now, or ended before it wrote one")
    if run.store is not None:
        lines.append(store_line(run.store, now_ns))
        if run.store.reachable is False and run.source == "store":
            lines.append("the values on this page were read before that")
    return lines


def restarts_text(run: RunView, *, most: int | None) -> tuple[str, str]:
    """Return `1 restart of 3` and `0 membership changes`."""
    changes = f"{_count(run.membership_changes, 'membership change')}{_limit(run.max_membership_changes)}"
    return f"{_count(run.restart_count, 'restart')}{_limit(most)}", changes


def store_line(store: StoreView, now_ns: int) -> str:
    """Return the store's address, and since when it is unreachable or how long the read took."""
    where = f"store: {store.where}"
    if store.reachable is False:
        since = f" for {age(store.unreachable_since, now_ns)}" if store.unreachable_since else ""
        trouble = f" ({store.trouble})" if store.trouble else ""
        return f"{where}, unreachable{since}{trouble}"
    return where if store.latency_s is None else f"{where}, read in {store.latency_s * 1000:.1f} ms"


def notes(run: RunView, *, now_ns: int) -> list[str]:
    """Return lines about nodes that wait or are left out, and about the values of hooks."""
    lines = []
    if run.waiting:
        named = ", ".join(run.waiting[:MOST_NAMED])
        more = f" and {len(run.waiting) - MOST_NAMED} more" if len(run.waiting) > MOST_NAMED else ""
        lines.append(f"waiting for a place: {named}{more}")
    hooks = sorted(run.hooks.items())
    lines += [_hook_line(name, fields) for name, fields in hooks[:MOST_NAMED] if fields]
    if len(hooks) > MOST_NAMED:
        lines.append(f"{_count(len(hooks) - MOST_NAMED, 'more hook')}: --json has all")
    lines += [
        f"{node.node_id} {_absence(node.absence, now_ns)}"
        for node in run.nodes[:MOST_NAMED]
        if node.absence is not None
    ]
    return lines


def _below(run: RunView, now_ns: int) -> list[str]:
    lines = notes(run, now_ns=now_ns)
    if run.last_incident is not None:
        when = f", {age(run.last_incident.at, now_ns)} ago" if run.last_incident.at else ""
        lines.append(f"last incident (of {run.incident_count}{when}): {incident_line(run.last_incident)}")
        if run.last_incident.path:
            lines.append(f"  {run.last_incident.path}")
    if run.verdict is not None:
        verdict = run.verdict
        reason = f": {verdict.reason}" if verdict.reason else ""
        lines.append(f"verdict: {verdict.outcome}, exit code {verdict.exit_code}{reason}")
    if run.run_dir:
        lines.append(f"run directory: {run.run_dir}")
    return lines


def _hook_line(name: str, fields: Mapping[str, object]) -> str:
    own = ledger_line(fields) if name == LEDGER else ""
    return own or f"hook {name!r}: {_fields(fields)}"


def _fields(fields: Mapping[str, object]) -> str:
    text = ", ".join(f"{name}={_value(value)}" for name, value in fields.items())
    return text if len(text) <= MOST_OF_HOOK else f"{text[: MOST_OF_HOOK - 1]}…"


def _value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _absence(absence: AbsenceView, now_ns: int) -> str:
    """Return why a node is left out, by whom, and until when: `is left out for 18 s by policy 'hw': exit code 77`."""
    left = duration_text(round(-_age_s(absence.until, now_ns))) if absence.until else ""
    if absence.refused:
        again = left and f"in {left}"
        if not again and absence.for_s is not None:
            again = f"within {duration_text(absence.for_s)}"
        return f"is out: {absence.by} refused: {absence.reason}" + (f"; asked again {again}" if again else "")
    for_s = "" if absence.for_s is None else f"{duration_text(absence.for_s)} in all"
    until = f"for {left or for_s}" if left or for_s else "until the policy's next decision"
    return f"is left out {until} by {absence.by}: {absence.reason}"


def node_cells(node: NodeView, now_ns: int) -> tuple[str, ...]:
    """Return a node's cells in the order of `NODE_HEADS`."""
    first, count = node.first_rank, node.worker_count
    ranks = _NOTHING
    if first is not None and count > 0:
        ranks = str(first) if count == 1 else f"{first}-{first + count - 1}"
    role = f" ({node.role})" if node.role not in ("", "default") else ""
    return (
        node.node_id or _NOTHING,
        node.address or _NOTHING,
        node.state or _NOTHING,
        f"{ranks}{role}",
        str(count) if count and node.absence is None else _NOTHING,
        age(node.since, now_ns),
    )


def _round_row(past: PastRoundView, now_ns: int) -> tuple[str, ...]:
    """Return a round's time, size, and end: `membership: b lost; 2 nodes with 2 workers go on`."""
    lasted = _NOTHING
    if past.began and past.ended:
        lasted = duration_text(round(_age_s(past.began, now_ns) - _age_s(past.ended, now_ns)))
    return (
        str(past.index),
        f"{age(past.began, now_ns)} ago",
        lasted,
        str(past.node_count),
        str(past.world_size),
        f"{past.ended_by}: {past.reason}" if past.ended else _NOTHING,
    )


def run_cells(run: RunView, now_ns: int) -> tuple[str, ...]:
    """Return a run's cells in the order of `RUN_HEADS`."""
    agent, node = run.agent, run.nodes[0] if run.nodes else None
    return (
        run.run_id,
        run.state,
        _NOTHING if run.round is None else str(run.round.index),
        f"{run.restart_count}{_limit(run.max_restarts)}",
        _NOTHING if node is None else node.node_id,
        _NOTHING if agent is None else str(agent.pid),
        _NOTHING if node is None else age(node.since, now_ns),
        run.run_dir or _NOTHING,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _limit(most: int | None) -> str:
    return "" if most is None else f" of {most}"
