"""A report's content: what the page, the trace, `--json` and `--markdown` show. Pure data.

Times `_s` are seconds since `RunFacts.began_ns`, on one clock to which those of all nodes were aligned.
"""

from collections.abc import Mapping
from typing import Final

from elastic_core.api import Record
from elastic_core.api.commands import Incident
from elastic_report.ledger.states import LedgerState

SCHEMA_VERSION: Final = 1


class Ratio(Record, frozen=True, kw_only=True):
    """A ratio from 0 to 1. If steps are not known, it lies between `low` and `high`; else both are equal."""

    low: float
    high: float


class RunFacts(Record, frozen=True, kw_only=True):
    """What the run was, and its result."""

    run_id: str
    script: str = ""
    backend: str = ""
    state: str = ""
    """`running`, `succeeded`, `failed`, `stopped`, or `unknown` (no end was recorded)."""
    exit_code: int | None = None
    began_ns: int
    """The first agent's start (or, if known, when the job was queued), in nanoseconds since the Unix epoch."""
    ended_s: float | None = None
    """`None` while it runs; the last sign of life if no end was recorded."""
    attempt_count: int = 1
    node_count: int = 1
    """The most nodes of a round."""
    world_size: int = 1
    """The most workers of a round."""
    restart_count: int = 0
    membership_changes: int = 0
    sentence: str = ""
    """The result and the first cause, in one sentence."""
    evidence: tuple[str, ...] = ()
    """Lines that show why the sentence is true: exception, place, exit code, rule."""


class LostTime(Record, frozen=True, kw_only=True):
    """Lost node-seconds by one cause."""

    state: LedgerState
    seconds: float
    text: str
    """`2 h redone after the failure at 02:14, last save 01:20`."""


class Account(Record, frozen=True, kw_only=True):
    """Where the time of all nodes went. Seconds are node-seconds: those of all nodes added up."""

    states: Mapping[LedgerState, float]
    present_s: float
    """The sum of the states."""
    redone_bound_s: float = 0.0
    """How much of the productive time may have been redone, where steps are not known. 0 if all are known."""
    goodput: Ratio | None = None
    """Productive time, of the time since the agents' starts. `None` without time."""
    goodput_nvidia: Ratio | None = None
    """NVIDIA's formula: the time without redone, hung, saving, restoring, and later rounds' stops and starts, of all
    time; the scheduler's time is in neither part."""
    lost: tuple[LostTime, ...] = ()
    """The largest first."""
    sentence: str = ""
    """`3 h 12 min of 9 h 40 min lost: 2 h redone …`."""
    frozen: bool = False
    """Whether the run is over, so that these figures no longer change."""


class LaneSpan(Record, frozen=True, kw_only=True, array_like=True):
    """A part of a node's lane."""

    state: LedgerState
    begin_s: float
    end_s: float
    round: int | None = None
    reason: str = ""


class WorkerBar(Record, frozen=True, kw_only=True, array_like=True):
    """One worker process in its node's lane."""

    local_rank: int
    global_rank: int
    round: int
    begin_s: float
    end_s: float
    code: int | None = None
    """`None`: not known, or it runs."""
    stopped: bool = False
    marks: tuple[tuple[str, float, float], ...] = ()
    """`save` or `restore`, begin and end."""
    first_step: int | None = None
    last_step: int | None = None


class NodeLane(Record, frozen=True, kw_only=True):
    """One agent: a node in one attempt of the run."""

    node_id: str
    host: str = ""
    attempt: int = 0
    """The attempt of the run, from 0."""
    inferred: bool = False
    """Whether the agent's ledger is missing, and the lane was inferred from those of other nodes."""
    outcome: str = ""
    """`succeeded`, `failed`, `stopped`, `lost`, `running`, or empty if not known."""
    begin_s: float
    end_s: float
    states: Mapping[LedgerState, float]
    spans: tuple[LaneSpan, ...]
    """In order of time, without gaps or overlaps; neighbours of one state may be merged, and details summed up."""
    workers: tuple[WorkerBar, ...] = ()
    run_dir: str = ""
    """Its run directory. Empty if there is none any more."""
    log_paths: tuple[str, ...] = ()
    """Log files that exist, at most 64."""
    clock_offset_s: float = 0.0
    """How much this node's clock was ahead of the reference node's, which was subtracted."""


class RoundRow(Record, frozen=True, kw_only=True):
    """One round."""

    attempt: int = 0
    index: int
    token: int = 0
    begin_s: float
    end_s: float | None = None
    node_count: int
    world_size: int
    ended_by: str = ""
    """`membership`, `failure`, `restart`, `drain`, `end`; empty if not known or not over."""
    reason: str = ""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


class TimelineEvent(Record, frozen=True, kw_only=True):
    """A mark on the timeline."""

    at_s: float
    name: str
    """As in the ledger's `Note`, and `round`, `worker_failed`, `incident`."""
    text: str
    node: str = ""
    rank: int | None = None
    incident: int | None = None
    """The number of its incident in the report."""


class IncidentRow(Record, frozen=True, kw_only=True):
    """One incident with what followed."""

    number: int
    """From 1; its anchor in the page is `incident-N`."""
    at_s: float
    incident: Incident
    sentence: str
    """`round 0 failed: rank 2 on node-b raised ValueError: boom (train.py:11); restarted by max-restarts`."""
    traceback: str = ""
    followers: str = ""
    """`63 other workers stopped because of it`; empty if there were none."""
    decision: str = ""
    rule: str = ""
    detect_s: float | None = None
    """From the first cause to the decision."""
    recover_s: float | None = None
    """From the decision to the next round's first step, or else its start of workers. `None`: none followed."""
    lost_s: float = 0.0
    """Node-seconds that it cost: hung, deciding, stopping, restarting, the next rendezvous and start, redone."""
    last_save_s: float | None = None
    """When the last save before it ended. `None` if no save is known."""
    log_paths: tuple[str, ...] = ()


class Difference(Record, frozen=True, kw_only=True):
    """What differs from the last good run of that name. Empty texts mean that it was absent."""

    kind: str
    """`option`, `version` or `node`."""
    name: str
    before: str
    now: str


class Report(Record, frozen=True, kw_only=True):
    """Everything about one run."""

    schema_version: int = SCHEMA_VERSION
    generated_ns: int
    """When the report was made, in nanoseconds since the Unix epoch."""
    source: str
    """What was read: `this machine`, `redis at …`, or the directories."""
    live: bool = False
    """Whether the run was still running."""
    run: RunFacts
    account: Account
    nodes: tuple[NodeLane, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    incidents: tuple[IncidentRow, ...] = ()
    options: tuple[tuple[str, str, str], ...] = ()
    """Name, value and origin."""
    versions: Mapping[str, str] = {}
    compared_with: str = ""
    """The last good run of that name, with its time. Empty if there is none."""
    differences: tuple[Difference, ...] = ()
    clocks: str = ""
    """How the nodes' clocks were aligned, in one sentence."""
    missing: tuple[str, ...] = ()
    """What could not be read, and what therefore is missing, a line each."""
