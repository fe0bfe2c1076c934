"""What the page's static parts show: rows and texts for the template. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from elastic_core.api import FailedWorker, Origin
from elastic_core.api.tools import rank_ranges
from elastic_report.ledger.states import LOST, ORDER, LedgerState
from elastic_report.model import IncidentRow, NodeLane, Report, TimelineEvent
from elastic_report.page.lanes import kept_events
from elastic_report.page.picture import MARKS, state_class
from elastic_report.page.texts import count, duration, durations, number, ratio, share, shortened

MOST_INCIDENTS: Final = 100
"""How many incidents are shown with all their details; the first and the last ones."""
MOST_EVENTS: Final = 1000
"""How many events the table has."""
MOST_ROUNDS: Final = 2000
MOST_NODES: Final = 2000
MOST_TRACEBACK_CHARS: Final = 300_000
"""The characters of all tracebacks and log tails."""
_BY_DEFAULT: Final = ("", "default")

MEANINGS: Final[Mapping[LedgerState, str]] = {
    LedgerState.QUEUED: "The scheduler has the job, and has not started the node's agent.",
    LedgerState.HUNG: "From the last sign of progress to the detection of a hang or of a lost node.",
    LedgerState.DRAINED: "The agent was ordered to stop, and its workers no longer train.",
    LedgerState.EXCLUDED: "A hook or the policy keeps the node out.",
    LedgerState.STORE_OUTAGE: "No workers run, and the rendezvous store is unreachable.",
    LedgerState.STOPPING: "Workers are being stopped, or the agent leaves the rendezvous.",
    LedgerState.DECIDING: "A failure is examined, and the decision is pending.",
    LedgerState.RESTARTING: "The pause before a restart.",
    LedgerState.RENDEZVOUS: "The agent starts, or the node waits for a round, also as a spare.",
    LedgerState.STARTING: "From the formed round to the first step or sign of life of the least advanced worker.",
    LedgerState.RESTORING: "A worker loads a checkpoint.",
    LedgerState.SAVING: "Training waits for a checkpoint to be saved.",
    LedgerState.REDONE: "Workers execute steps again that an earlier round had reported.",
    LedgerState.PRODUCTIVE: "Workers train.",
}
ENDINGS: Final[Mapping[str, str]] = {
    "membership": "membership change",
    "failure": "failure",
    "restart": "restart",
    "drain": "drain",
    "end": "end of the run",
    "": "not known",
}
EVENTS: Final[Mapping[str, str]] = {
    "failure": "failure",
    "worker_failed": "worker failed",
    "hang_hung": "hang found",
    "store_lost": "store lost",
    "store_back": "store back",
}
RESULTS: Final[Mapping[str, tuple[str, str]]] = {
    "succeeded": ("\N{CHECK MARK}", "succeeded"),
    "failed": ("\N{MULTIPLICATION X}", "failed"),
    "running": ("\N{BLACK RIGHT-POINTING TRIANGLE}", "running"),
    "stopped": ("\N{BLACK SQUARE}", "stopped"),
}
"""The sign and the text of each state of the run."""


@dataclass(frozen=True)
class StateRow:
    """One state of the ledger."""

    name: str
    style: str
    time: str
    share: str
    each: str
    meaning: str
    lost: bool


@dataclass(frozen=True)
class Formula:
    """One goodput formula with its result."""

    name: str
    value: str
    text: str
    figures: str


@dataclass(frozen=True)
class Path:
    """A log file. `link` is empty where a browser cannot open the path."""

    text: str
    link: str


@dataclass(frozen=True)
class WorkerPart:
    """A worker in an incident."""

    rank: int
    local_rank: int
    pid: int
    summary: str
    part: str
    """`first cause`, `consequence`, or `failed after the first cause`."""
    at_ns: int


@dataclass(frozen=True)
class IncidentView:
    """One incident. `full` is false where only the sentence is shown."""

    row: IncidentRow
    full: bool
    first: bool
    """Whether this is the first incident."""
    traceback: str
    log_tail: str
    blamed: str
    decision: str
    rule: str
    detect: str
    recover: str
    lost: str
    workers: tuple[WorkerPart, ...]
    stopped: str
    absent: tuple[str, ...]
    hang: tuple[str, ...]
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class EventRow:
    """One event of the table."""

    event: TimelineEvent
    sign: str
    name: str


@dataclass(frozen=True)
class NodeRow:
    """One node of the table, with all its agents."""

    number: int
    node_id: str
    host: str
    outcome: str
    present: str
    productive: str
    lost: str
    clock: str
    inferred: bool
    run_dirs: tuple[Path, ...]
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Page:
    """All that the template shows besides the report itself."""

    sign: str
    result: str
    style: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    states: tuple[StateRow, ...]
    present: str
    productive: str
    formulas: tuple[Formula, ...]
    incidents: tuple[IncidentView, ...]
    events: tuple[EventRow, ...]
    nodes: tuple[NodeRow, ...]
    log_count: int
    endings: Mapping[str, str]
    changed: tuple[tuple[str, str, str], ...]
    """The options that differ from their defaults."""
    defaults: tuple[tuple[str, str, str], ...]
    consequences: str
    missing: tuple[str, ...]
    most_rounds: int
    dates: bool
    """Whether times are shown with their dates."""


def page(report: Report, left_out: tuple[str, ...]) -> Page:
    """Return the content of the page. `left_out` is what the timeline lacks."""
    run, account = report.run, report.account
    sign, result = RESULTS.get(run.state, ("?", "end not known"))
    changed = tuple(option for option in report.options if option[2] not in _BY_DEFAULT)
    incidents = tuple(_incidents(report))
    events = kept_events(report.events, MOST_EVENTS)
    nodes = tuple(_nodes(report))
    cut = (
        (len(report.events) - len(events), "events; the timeline and the search find further ones"),
        (len({lane.node_id for lane in report.nodes}) - len(nodes), "nodes"),
        (len(report.rounds) - MOST_ROUNDS, "rounds"),
        (sum(not view.full for view in incidents), "incidents in full"),
    )
    dropped = tuple(f"The tables leave out {number(missing)} {what}." for missing, what in cut if missing > 0)
    if left_out or dropped:
        dropped = (*dropped, "`elastic report --json` writes all data of this report.")
    last = report.incidents[-1] if report.incidents else None
    return Page(
        sign=sign,
        result=result,
        style=run.state if run.state in RESULTS else "unknown",
        sentence=run.sentence or _plain_sentence(report, result),
        facts=tuple(_facts(report)),
        states=tuple(_states(report)),
        present=duration(account.present_s),
        productive=_productive(report),
        formulas=tuple(_formulas(report)),
        incidents=incidents,
        events=tuple(EventRow(event, MARKS.get(event.name, "\N{BULLET}"), event_name(event.name)) for event in events),
        nodes=nodes,
        log_count=sum(len(node.paths) for node in nodes),
        endings=ENDINGS,
        changed=changed,
        defaults=tuple(option for option in report.options if option[2] in _BY_DEFAULT),
        consequences=last.followers if last is not None and run.state == "failed" else "",
        missing=(*report.missing, *left_out, *dropped),
        most_rounds=MOST_ROUNDS,
        dates=(run.ended_s or 0.0) > 72_000,
    )


def event_name(name: str) -> str:
    """Return the name of an event for readers."""
    return EVENTS.get(name, name.replace("_", " "))


def _plain_sentence(report: Report, result: str) -> str:
    code = report.run.exit_code
    ending = f" with exit code {code}" if code and report.run.state == "failed" else ""
    if report.run.state in ("succeeded", "failed"):
        return f"The run {result}{ending}."
    if report.run.state == "running":
        return "The run is running."
    return "The run was stopped." if report.run.state == "stopped" else "The end of the run was not recorded."


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    run = report.run
    if run.script:
        yield "Script", run.script
    yield "Size", f"{count(run.node_count, 'node')}, {count(run.world_size, 'worker')}"
    if run.exit_code is not None:
        yield "Exit code", str(run.exit_code)
    if run.attempt_count != 1:
        yield "Attempts", str(run.attempt_count)
    yield "Rounds", number(len(report.rounds))
    yield "Restarts", str(run.restart_count)
    yield "Membership changes", str(run.membership_changes)
    if run.backend:
        yield "Backend", run.backend
    yield "Source", report.source


def _states(report: Report) -> Iterator[StateRow]:
    account = report.account
    agents = max(1, len({lane.node_id for lane in report.nodes}))
    shown = sorted((state for state in LOST if account.states.get(state, 0) > 0), key=lambda s: -account.states[s])
    bound = account.redone_bound_s
    order = [LedgerState.PRODUCTIVE, *shown]
    if bound and LedgerState.REDONE not in order:
        order.insert(1, LedgerState.REDONE)
    for state in order:
        seconds = account.states.get(state, 0.0)
        low, high = seconds, seconds
        if state is LedgerState.PRODUCTIVE:
            low = max(0.0, seconds - bound)
        elif state is LedgerState.REDONE:
            high = seconds + bound
        shares = share(low, account.present_s), share(high, account.present_s)
        yield StateRow(
            name=str(state),
            style=state_class(state),
            time=durations(low, high),
            share=" to ".join(dict.fromkeys(shares)),
            each=durations(low / agents, high / agents),
            meaning=MEANINGS[state],
            lost=state in LOST,
        )


def _productive(report: Report) -> str:
    seconds = report.account.states.get(LedgerState.PRODUCTIVE, 0.0)
    return durations(max(0.0, seconds - report.account.redone_bound_s), seconds)


def _formulas(report: Report) -> Iterator[Formula]:
    account = report.account
    queued = account.states.get(LedgerState.QUEUED, 0.0)
    yield Formula(
        "Goodput, Google's formula",
        ratio(account.goodput),
        "productive \N{DIVISION SIGN} (present \N{MINUS SIGN} queued)",
        f"{_productive(report)} \N{DIVISION SIGN} {duration(max(0.0, account.present_s - queued))}",
    )
    yield Formula(
        "Goodput, NVIDIA's formula",
        ratio(account.goodput_nvidia),
        "(present \N{MINUS SIGN} redone \N{MINUS SIGN} hung \N{MINUS SIGN} resume \N{MINUS SIGN} queued"
        " \N{MINUS SIGN} saving) \N{DIVISION SIGN} (present \N{MINUS SIGN} queued)",
        "Resume is restoring, and stopping, deciding, restarting, rendezvous and starting after the first round.",
    )


def _incidents(report: Report) -> Iterator[IncidentView]:
    rows = report.incidents
    half = MOST_INCIDENTS // 2
    full = set(range(half)) | set(range(len(rows) - half, len(rows)))
    most = max(1500, min(40_000, MOST_TRACEBACK_CHARS // max(1, min(len(rows), MOST_INCIDENTS))))
    linked = _Linked(report)
    for at, row in enumerate(rows):
        incident = row.incident
        first = incident.first
        decision = row.decision
        yield IncidentView(
            row=row,
            full=at in full,
            first=at == 0,
            traceback=shortened(row.traceback, most),
            log_tail=shortened(first.log_tail, most // 3) if first is not None and not row.traceback else "",
            blamed=_blamed(row),
            decision=decision or "none was recorded",
            rule=row.rule,
            detect=duration(row.detect_s),
            recover=duration(row.recover_s)
            if row.recover_s is not None
            else "not yet"
            if report.live
            else "did not recover",
            lost=duration(row.lost_s),
            workers=tuple(_parts(row)),
            stopped=_stopped(row),
            absent=tuple(f"{each.node_id}: {each.reason} ({each.by})" for each in incident.absent[:32]),
            hang=tuple(_hang(row)),
            paths=tuple(linked.path(path, incident.host) for path in _paths(row)[:32]),
        )


def _paths(row: IncidentRow) -> tuple[str, ...]:
    first = row.incident.first
    return row.log_paths or (() if first is None else first.log_paths)


def _blamed(row: IncidentRow) -> str:
    incident = row.incident
    rank = incident.elsewhere_rank
    if incident.first is not None:
        exit_ = incident.first.exit
        local = f" (local rank {exit_.local_rank}, pid {exit_.pid})"
        return f"rank {exit_.global_rank}{local} on {_place(incident.node_id, incident.host)}"
    where = _place(incident.node_id, incident.host)
    return f"rank {rank} on {where}" if rank is not None else f"{where}: no worker, the {incident.source}"


def _place(node_id: str, host: str) -> str:
    return f"{node_id} ({host})" if host and host != node_id else node_id


def _parts(row: IncidentRow) -> Iterator[WorkerPart]:
    incident = row.incident
    if incident.first is not None:
        yield _worker(incident.first, "first cause")
    for worker in incident.secondary[:64]:
        follows = worker.origin is not Origin.INTRINSIC
        yield _worker(worker, "consequence" if follows else "failed after the first cause")


def _worker(worker: FailedWorker, part: str) -> WorkerPart:
    exit_ = worker.exit
    return WorkerPart(exit_.global_rank, exit_.local_rank, exit_.pid, worker.summary, part, worker.at_ns)


def _stopped(row: IncidentRow) -> str:
    incident = row.incident
    ranges = [f"{low}-{high}" if high > low else str(low) for low, high in incident.stopped_ranks[:64]]
    total = incident.stopped_count or len(incident.stopped)
    ranks = ", ".join(ranges) or rank_ranges(worker.exit.global_rank for worker in incident.stopped)
    return f"{count(total, 'worker')}: {ranks}" if total and ranks else count(total, "worker") if total else ""


def _hang(row: IncidentRow) -> Iterator[str]:
    hang = row.incident.hang
    if hang is None:
        return
    details = (hang.attribution or {}).get("details", ())
    if isinstance(details, list | tuple):
        yield from (str(line) for line in details)
    if hang.evidence:
        yield f"Evidence: {', '.join(hang.evidence)}."
    if hang.step is not None:
        yield f"The highest step of any rank was {hang.step}."
    if hang.section:
        yield f"The section {hang.section!r} exceeded its limit."
    for rank in hang.ranks:
        facts = [
            "blamed" if rank.blamed else "",
            f"step {rank.step}" if rank.step is not None else "",
            f"quiet for {duration(rank.quiet_s)}" if rank.quiet_s is not None else "",
            f"at {rank.place}" if rank.place else "",
            f"waits in {rank.wait}" if rank.wait else "",
        ]
        yield f"rank {rank.global_rank}: {', '.join(fact for fact in facts if fact) or 'nothing known'}"
    if hang.stacks:
        yield f"stacks of all threads: {hang.stacks}"
    if hang.recorder:
        yield f"files of torch's flight recorder, for torchfrtrace: {hang.recorder}"


class _Linked:
    """Which paths are links: those that existed on the machine that made the report."""

    def __init__(self, report: Report) -> None:
        self._known = {path for lane in report.nodes for path in lane.log_paths}
        self._dirs = {lane.run_dir.rstrip("/") for lane in report.nodes if lane.run_dir}

    def path(self, path: str, host: str = "") -> Path:
        here = (
            path in self._known or path in self._dirs or any(str(p) in self._dirs for p in PurePosixPath(path).parents)
        )
        if path.startswith("/") and here:
            return Path(path, "file://" + quote(path, errors="surrogateescape"))
        return Path(f"{host}:{path}" if host else path, "")


def _nodes(report: Report) -> Iterator[NodeRow]:
    lanes_of: dict[str, list[NodeLane]] = {}
    for lane in report.nodes:
        lanes_of.setdefault(lane.node_id, []).append(lane)
    linked = _Linked(report)
    few = len(lanes_of) <= 32
    for at, (node_id, lanes) in enumerate(lanes_of.items(), 1):
        if at > MOST_NODES:
            return
        states = {state: sum(lane.states.get(state, 0.0) for lane in lanes) for state in ORDER}
        offsets = {round(lane.clock_offset_s, 1) for lane in lanes}
        yield NodeRow(
            number=at,
            node_id=node_id,
            host=next((lane.host for lane in reversed(lanes) if lane.host), ""),
            outcome=lanes[-1].outcome or "not known",
            present=duration(sum(states.values())),
            productive=duration(states[LedgerState.PRODUCTIVE]),
            lost=duration(sum(states[state] for state in LOST)),
            clock=", ".join(f"{offset:+.1f} s" for offset in sorted(offsets) if offset) or "0 s",
            inferred=any(lane.inferred for lane in lanes),
            run_dirs=tuple(linked.path(lane.run_dir) for lane in lanes if lane.run_dir),
            paths=tuple(linked.path(path) for lane in lanes for path in lane.log_paths) if few else (),
        )
