"""The content of `elastic status --watch` on a terminal, without I/O and sizes. `status.drawing` lays it out."""

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import force_setattr, replace

from elastic_core.api import Record
from elastic_core.api.tools import clean, duration_text
from elastic_ops.status.document import WorkerStatus
from elastic_ops.status.ledger_bar import DISTRIBUTION, HOOK, LedgerBar, ledger_bar, percent
from elastic_ops.status.page import (
    RUN_HEADS,
    age,
    incident_line,
    node_cells,
    notes,
    restarts_text,
    run_cells,
    store_line,
)
from elastic_ops.status.recent import Event, counted, ns_of
from elastic_ops.status.view import NodeView, RunView

GRACE_NS: Final = 3 * 10**9
"""The age from which an agent without a ledger has no hook for it: a hook publishes soon after the start."""
_WELL: Final = ("running", "alive", "done")
NODE_HEADS: Final = ("NODE", "STATE", "RANKS", "WORKERS", "SINCE", "ADDRESS")
WORKER_HEADS: Final = ("RANK", "LOCAL RANK", "PID", "STATE")


class Fact(Record, frozen=True, kw_only=True):
    """A short text of the header, with the name of its style."""

    text: str
    style: str = ""

    def __post_init__(self) -> None:
        """Clean the text."""
        force_setattr(self, "text", clean(self.text))


class Rows(Record, frozen=True, kw_only=True):
    """The table that can be scrolled.

    `cells` returns a row by its number; only visible rows are made. `optional`: columns that a narrow terminal leaves
    out, the first of them first. `state`: the column with the state. `troubled`: the numbers of rows that are shown
    first if not all fit.
    """

    title: str
    heads: tuple[str, ...]
    count: int
    row: Callable[[int], tuple[str, ...]]
    optional: tuple[int, ...] = ()
    state: int
    troubled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Clean the title."""
        force_setattr(self, "title", clean(self.title))

    def cells(self, number: int) -> tuple[str, ...]:
        """Return a row without terminal control characters."""
        return tuple(map(clean, self.row(number)))


class Content(Record, frozen=True, kw_only=True):
    """One screen.

    `name` and `state`: the headline, with `clock`, the time of day. `facts`: about the round, the steps, and the agent
    with the store. `bar`: `None` if there is no ledger. `bar_note`: why, or empty. `notes`: lines about nodes and
    hooks, the most important first. `last`: the last incident.
    """

    name: str
    state: str = ""
    clock: str
    facts: tuple[tuple[Fact, ...], tuple[Fact, ...], tuple[Fact, ...]] = ((), (), ())
    bar: LedgerBar | None = None
    bar_note: str = ""
    rows: Rows | None = None
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()
    last: str = ""

    def __post_init__(self) -> None:
        """Clean the texts that others wrote."""
        for field in ("name", "state", "last"):
            force_setattr(self, field, clean(getattr(self, field)))
        force_setattr(self, "notes", tuple(map(clean, self.notes)))


def content_of_run(
    runs: Sequence[RunView], here: Sequence[RunView], events: Sequence[Event], *, now_ns: int
) -> Content:
    """Return the screen of one run.

    Args:
        runs: Its view from the store, or the views of its agents on this machine.
        here: The views of its agents on this machine; the same as `runs` if they are from there.
        events: Its last events, the newest first.
        now_ns: This host's wall clock.
    """
    run = runs[0]
    bar = ledger_bar(here, now_ns=now_ns)
    nodes = tuple(node for each in runs for node in each.nodes)
    last = next((each.last_incident for each in runs if each.last_incident is not None), None)
    others = [{name: fields for name, fields in each.hooks.items() if name != HOOK} for each in runs]
    shown = [replace(each, hooks=hooks) for each, hooks in zip(runs, others, strict=True)]  # the bar has the ledger
    page_notes = [line for each in shown for line in notes(each, now_ns=now_ns)]
    return Content(
        name=run.run_id,
        state=run.state,
        clock=time_of_day(now_ns),
        facts=(
            tuple(_place_facts(run, here, now_ns)),
            tuple(_step_facts(bar)),
            tuple(_agent_facts(runs, now_ns)),
        ),
        bar=bar,
        bar_note="" if bar is not None else _without_bar(run, here, now_ns),
        rows=_rows(runs, nodes, now_ns),
        events=tuple(events),
        notes=tuple(dict.fromkeys(page_notes)),
        last="" if last is None else f"last incident (of {max(each.incident_count for each in runs)}"
        f"{f', {age(last.at, now_ns)} ago' if last.at else ''}): {incident_text(runs)}",
    )  # fmt: skip


def content_of_runs(runs: Sequence[RunView], *, now_ns: int) -> Content:
    """Return the screen of all runs on this machine."""
    states = Counter(run.state for run in runs)
    return Content(
        name=counted(len(runs), "agent"),
        clock=time_of_day(now_ns),
        facts=((Fact(text="one in full: elastic status --watch RUN"),), (), ()),
        rows=Rows(
            title=_summary(len(runs), "agent", states),
            heads=RUN_HEADS,
            count=len(runs),
            row=lambda at: run_cells(runs[at], now_ns),
            optional=(7, 5, 4, 3),
            state=1,
            troubled=tuple(at for at, run in enumerate(runs) if run.state not in _WELL),
        ),
    )


def time_of_day(at_ns: int, *, now_ns: int | None = None) -> str:
    """Return `09:41:22` in this host's time zone; `11-26 09:41` if it is more than 20 hours before `now_ns`."""
    at = datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.UTC).astimezone()
    if now_ns is not None and abs(now_ns - at_ns) > 20 * 3600 * 10**9:
        return f"{at:%m-%d %H:%M}"
    return f"{at:%H:%M:%S}"


# --- the parts


def incident_text(runs: Sequence[RunView]) -> str:
    """Return the line of the last incident, without its path."""
    return next((incident_line(run.last_incident) for run in runs if run.last_incident is not None), "")


def _place_facts(run: RunView, here: Sequence[RunView], now_ns: int) -> list[Fact]:
    facts = []
    if run.round is not None:
        facts.append(Fact(text=f"round {run.round.index}"))
        facts.append(Fact(text=f"{counted(run.round.node_count, 'node')}, {counted(run.round.world_size, 'worker')}"))
    began = [ns_of(each.agent.started) for each in here if each.agent is not None and each.agent.started]
    if began and run.verdict is None:
        whose = "agent here " if run.source == "store" else ""  # the run may be older
        facts.append(Fact(text=f"{whose}started {duration_text(max(0, round((now_ns - min(began)) / 1e9)))} ago"))
    known = next((each for each in (run, *here) if each.max_restarts is not None), run)
    restarts, changes = restarts_text(run, most=known.max_restarts)
    facts += [Fact(text=restarts), *([Fact(text=changes)] if run.membership_changes else [])]
    if run.verdict is not None:
        reason = f": {run.verdict.reason}" if run.verdict.reason else ""
        facts.append(Fact(text=f"exit code {run.verdict.exit_code}{reason}"))
    return facts


def _step_facts(bar: LedgerBar | None) -> list[Fact]:
    if bar is None:
        return []
    facts = []
    if bar.step is not None:
        facts.append(Fact(text=f"step {bar.step:,}", style="strong"))
    if bar.steps_per_s is not None:
        facts.append(Fact(text=rate_text(bar.steps_per_s), style="strong"))
    if bar.low is not None and bar.high is not None:
        low, high = percent(bar.low), percent(bar.high)
        facts.append(Fact(text=f"goodput {high}" if low == high else f"goodput {low} to {high}"))
    if bar.state:
        facts.append(Fact(text=f"now {bar.state}"))
    return facts


def rate_text(steps_per_s: float) -> str:
    """Return `12.3 steps/s`, or `4.2 s/step` for less than one step in two seconds."""
    if 0 < steps_per_s < 0.5:
        seconds = 1 / steps_per_s
        return f"{seconds:,.3g} s/step" if seconds < 1000 else f"{seconds:,.0f} s/step"
    return f"{steps_per_s:,.3g} steps/s" if steps_per_s < 1000 else f"{steps_per_s:,.0f} steps/s"


def _agent_facts(runs: Sequence[RunView], now_ns: int) -> list[Fact]:
    facts = []
    store = next((run.store for run in runs if run.store is not None), None)
    for run in runs if len(runs) == 1 else ():
        if run.agent is not None:
            life = {True: "", False: ", dead", None: ", not visible from here"}[run.agent.alive]
            style = "bad" if run.agent.alive is False and run.verdict is None else ""
            shown = life if run.verdict is None else ""
            facts.append(Fact(text=f"agent {run.agent.pid} on {run.agent.host}{shown}", style=style))
        if len(run.nodes) == 1:
            (node,) = run.nodes
            since = f" for {age(node.since, now_ns)}" if node.since else ""
            facts.append(Fact(text=f"node {node.node_id}: {node.state}{since}"))
    if store is not None:
        facts.append(Fact(text=store_line(store, now_ns), style="bad" if store.reachable is False else ""))
    return facts


def _without_bar(run: RunView, here: Sequence[RunView], now_ns: int) -> str:
    if not here:
        return "no ledger bar: no agent of this run is on this machine"
    if any(each.agent is not None and now_ns - ns_of(each.agent.started) < GRACE_NS for each in here):
        return ""
    return f"no ledger bar: needs the hook {HOOK!r} ({DISTRIBUTION})"


def _rows(runs: Sequence[RunView], nodes: Sequence[NodeView], now_ns: int) -> Rows | None:
    workers = tuple(worker for run in runs for worker in run.workers)
    if len(nodes) == 1 and workers:
        return _worker_rows(workers)
    if not nodes:
        return None

    def row(at: int) -> tuple[str, ...]:
        name, address, state, ranks, count, since = node_cells(nodes[at], now_ns)
        return name, state, ranks, count, since, address

    return Rows(
        title=_summary(len(nodes), "node", Counter(node.state for node in nodes)),
        heads=NODE_HEADS,
        count=len(nodes),
        row=row,
        optional=(5, 3, 2),
        state=1,
        troubled=tuple(at for at, node in enumerate(nodes) if node.state not in _WELL),
    )


def _worker_rows(workers: Sequence[WorkerStatus]) -> Rows:
    def row(at: int) -> tuple[str, ...]:
        worker = workers[at]
        return str(worker.global_rank), str(worker.local_rank), str(worker.pid), worker.state

    return Rows(
        title=_summary(len(workers), "worker", Counter(worker.state for worker in workers)),
        heads=WORKER_HEADS,
        count=len(workers),
        row=row,
        optional=(1,),
        state=3,
        troubled=tuple(at for at, worker in enumerate(workers) if worker.state not in _WELL),
    )


def _summary(count: int, noun: str, states: Counter[str]) -> str:
    """Return `1,000 nodes: 997 running, 2 lost, 1 silent`."""
    return f"{counted(count, noun)}: " + ", ".join(f"{number:,} {state}" for state, number in states.most_common())
