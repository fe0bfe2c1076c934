"""The incident: what failed first, what followed from it, and what was decided. One JSON file for people and tools."""

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from elastic_core.encoding import decode_json, encode_json
from elastic_core.failure.classify import rank_causes
from elastic_core.failure.device_errors import fault_among
from elastic_core.failure.fingerprint import fingerprint
from elastic_core.private_file import read_file, replace_file
from elastic_core.processes.errors.causes import ELSEWHERE
from elastic_core.types import (
    Decision,
    DeviceFault,
    FailedWorker,
    Failure,
    FailureClass,
    Ignore,
    Origin,
    Record,
    Restart,
)

SCHEMA_VERSION = 1

MAX_FILE_BYTES = 16 << 20
"""The longest incident that is read."""
# The file also travels through the rendezvous store: bounded for a node of many workers with long tracebacks.
MAX_CALLSTACK_CHARS = 32_768
MAX_SECONDARY_CALLSTACK_CHARS = 2_048
MAX_MESSAGE_CHARS = 8_192
MAX_LOG_TAIL_CHARS = 4_096
MAX_TOLD_CHARS = 500
"""Of a cause's or member's message, in what failures are compared by."""


class IncidentFrame(Record, frozen=True, kw_only=True):
    """One frame of a traceback; `text` is the source line, empty where unknown."""

    file: str
    line: int
    function: str
    text: str = ""


class IncidentCause(Record, frozen=True, kw_only=True):
    """One exception that led to another.

    `relation` is `from`, `while handling`, `member` (of a group) or `in …` (another process or thread); `place` is its
    innermost line of the user's own code, empty where unknown.
    """

    relation: str
    type: str
    message: str
    place: str = ""


class IncidentException(Record, frozen=True, kw_only=True):
    """What a worker left about its failure; `source` is `hook`, `record`, `faulthandler` or `stderr`.

    `frames` are outermost first, without launcher frames. `type` is empty where only loose lines were found.
    """

    type: str
    message: str
    source: str
    frames: tuple[IncidentFrame, ...] = ()
    callstack: str = ""
    causes: tuple[IncidentCause, ...] = ()
    notes: tuple[str, ...] = ()


class IncidentWorker(Record, frozen=True, kw_only=True):
    """One worker of this node that had a part in the incident.

    `at_ns` is when it failed, `exited_ns` when the kernel said that it was gone; `exit_code` is -N for death by signal
    N. `stop_signal` and `stop_sent_ns` are set where we had signalled it before it ended.
    """

    global_rank: int
    local_rank: int
    pid: int
    exit_code: int
    signal: int | None
    origin: Origin
    failure_class: FailureClass
    summary: str
    at_ns: int
    exited_ns: int
    runtime_s: float
    oom_kills: int = 0
    stop_signal: int | None = None
    stop_sent_ns: int | None = None
    exception: IncidentException | None = None
    log_paths: tuple[str, ...] = ()
    log_tail: str = ""
    """The end of its stderr, where that is kept; of the first worker only."""


class IncidentDecision(Record, frozen=True, kw_only=True):
    """What the policy answered: `kind` is `restart`, `stop` or `ignore`."""

    kind: str
    """`restart`, `stop` or `ignore`."""
    rule: str = ""
    """Which rule decided."""
    reason: str = ""
    """A line for people."""
    outcome: str = ""
    """Of a stop: `failed` or `done`."""
    delay_s: float = 0.0
    """Of a restart: seconds before it."""
    exclude_nodes: tuple[str, ...] = ()
    """Of a restart: nodes that stay out."""
    exclude_s: tuple[float, ...] = ()
    """For how many seconds each does."""


class IncidentPhases(Record, frozen=True, kw_only=True):
    """How long each part of the recovery took, in seconds; None: it did not happen, or not yet."""

    detect_s: float | None = None
    stop_s: float | None = None
    rendezvous_s: float | None = None
    start_s: float | None = None


class IncidentHungRank(Record, frozen=True, kw_only=True):
    """One rank of this node during a hang.

    `quiet_s`: seconds without a sign of life, None where that was no longer than usual. `state` is the kernel's letter
    for the process, `wait` where in the kernel it sleeps, `cpu_share` how many processors it used. `place` is its
    innermost line of the user's code, `stacks` the file with all its threads, in the hang's folder.
    """

    global_rank: int
    blamed: bool
    step: int | None = None
    quiet_s: float | None = None
    state: str = ""
    wait: str = ""
    cpu_share: float | None = None
    place: str = ""
    stacks: str = ""


class IncidentHang(Record, frozen=True, kw_only=True):
    """What is known of a hang: `step` is the furthest that any rank had come, `section` one that was over its limit.

    `ranks` are at most 16, those to blame first.
    """

    ranks: tuple[IncidentHungRank, ...]
    step: int | None = None
    section: str = ""
    stacks: str = ""
    """The folder with the stacks."""


class IncidentNode(Record, frozen=True, kw_only=True):
    """One node's part in an incident of the whole run.

    `age_s`: how long before it ordered the stop, or heard of it, its first worker failed by itself; None: none did.
    Not `complete`: its workers took so long to stop that it was decided without knowing how they ended.
    """

    node_id: str
    host: str = ""
    failed_count: int = 0
    stopped_count: int = 0
    finished_count: int = 0
    age_s: float | None = None
    complete: bool = True


class IncidentAbsence(Record, frozen=True, kw_only=True):
    """A node that was there when others failed, and had no part in their round: it was left out."""

    node_id: str
    by: str
    """A hook of that node with its distribution, or the run's policy."""
    reason: str
    """Why."""
    refused: bool
    """The hook refused; else the policy had left the node out."""
    until_ns: int = 0
    """When the hook is asked again, at the latest, or the policy's time is over; 0: with the policy's next decision."""


class Incident(Record, frozen=True, kw_only=True):
    """One failure of a run: as seen from one node, or of all nodes where `told_count` is not 0.

    `source` is `worker`, or `launcher` where no worker was to blame (rendezvous, a health check, start-up); `first` is
    None then. `secondary` failed because of it or after it, in order; `stopped` were ended by us, by rank.
    `exit_code` is what the run ends with if this is the end.
    """

    schema_version: int = SCHEMA_VERSION
    """The version of this document."""
    run_id: str
    """The run's id."""
    node_id: str
    """The node that wrote it."""
    host: str
    """Its host's name."""
    round_index: int
    """The round that failed, from 0."""
    round_token: int = 0
    """Its fencing token."""
    restart_count: int = 0
    """Restarts of the run before it."""
    at_ns: int
    """When the first worker failed, nanoseconds since the Unix epoch."""
    at: str
    """The same as text, UTC."""
    source: str
    """Where it was seen: `worker`, or what else found it."""
    failure_class: FailureClass
    """What kind of failure it is."""
    reported_by: str = ""
    """The hook that has reported it; empty: the agent saw it itself."""
    fields: Mapping[str, object] = {}
    """What that report has besides."""
    decided_by: str = ""
    """The node whose agent asked the policy for the whole run; empty: each node asked its own."""
    summary: str
    """One line for people."""
    exit_code: int
    """The run's exit code, if it ends with this."""
    retryable: bool = True
    """Whether another try may help."""
    first: IncidentWorker | None = None
    """The first failed worker; None: no worker is to blame."""
    elsewhere_rank: int | None = None
    """The global rank of the worker that failed first, where another node has it: `host` is that node then."""
    secondary: tuple[IncidentWorker, ...] = ()
    """Workers that failed because of it, or after it."""
    stopped: tuple[IncidentWorker, ...] = ()
    """Ranks that the agent stopped."""
    finished_count: int = 0
    """Workers of this node (of all nodes) that had ended with 0 by themselves."""
    node_count: int | None = None
    """How many nodes the round had; None: there was none."""
    told_count: int = 0
    """How many nodes have said what they saw; 0: it is one node's view. What follows is empty then."""
    nodes: tuple[IncidentNode, ...] = ()
    """What each node has seen; empty: there is one."""
    absent: tuple[IncidentAbsence, ...] = ()
    """Nodes that were left out at that moment."""
    failed_count: int = 0
    """Workers of all nodes that failed by themselves after the first; `secondary` has some of them."""
    stopped_count: int = 0
    """How many workers were stopped on all nodes."""
    stopped_ranks: tuple[tuple[int, int], ...] = ()
    """Workers of all nodes that the launcher ended, as first and last ranks of rows; `stopped` has some of them."""
    decision: IncidentDecision | None = None
    """What was decided; None: not yet."""
    progress: int | None = None
    """The furthest step that any worker had said; None: not known."""
    phases: IncidentPhases = IncidentPhases()
    """How long the stations took."""
    hang: IncidentHang | None = None
    """Set where workers of this node were taken for hung."""
    hooks: Mapping[str, Mapping[str, object]] = {}
    """What hooks of this node say, by their names."""


def build_incident(
    *,
    run_id: str,
    node_id: str,
    host: str,
    round_index: int,
    workers: Iterable[FailedWorker],
    round_token: int = 0,
    restart_count: int = 0,
    finished_count: int = 0,
    node_count: int | None = None,
    first_attempt: bool | None = None,
    decision: Decision | None = None,
    phases: IncidentPhases | None = None,
) -> Incident:
    """Put an incident together from all workers that failed or were stopped, in any order.

    Args:
        run_id: The run.
        node_id: This node.
        host: This node's host name, for people.
        round_index: The round that failed.
        workers: As `classify.judge` made them; workers that had finished well are left out and counted.
        round_token: The round's fencing token.
        restart_count: Failure restarts of the run before this.
        finished_count: How many workers had ended well.
        node_count: How many nodes the round had.
        first_attempt: Whether usage errors are beyond hope; None: yes in round 0.
        decision: The policy's answer, None as long as there is none.
        phases: How long what took.

    Raises:
        ValueError: no worker failed by itself, so there is nothing to report.
    """
    ranked = rank_causes(workers)
    if not ranked or ranked[0].origin is Origin.STOPPED:
        raise ValueError(f"run {run_id!r} round {round_index}: no worker failed by itself (of {len(ranked)} given)")
    first = ranked[0]
    hopeless = first.failure_class is FailureClass.USAGE and (
        round_index == 0 if first_attempt is None else first_attempt
    )
    return Incident(
        run_id=run_id,
        node_id=node_id,
        host=host,
        round_index=round_index,
        round_token=round_token,
        restart_count=restart_count,
        at_ns=first.at_ns,
        at=iso_time(first.at_ns),
        source="worker",
        failure_class=first.failure_class,
        summary=first.summary,
        exit_code=1 if _ended_by_us(first) else exit_code_for(first.exit.code),
        retryable=not hopeless,
        first=_worker(first, MAX_CALLSTACK_CHARS, log_tail=first.log_tail[-MAX_LOG_TAIL_CHARS:]),
        secondary=tuple(
            _worker(worker, MAX_SECONDARY_CALLSTACK_CHARS)
            for worker in ranked[1:]
            if worker.origin is not Origin.STOPPED
        ),
        stopped=tuple(_worker(worker, 0) for worker in ranked if worker.origin is Origin.STOPPED),
        finished_count=finished_count,
        node_count=node_count,
        decision=None if decision is None else describe_decision(decision),
        phases=phases or IncidentPhases(),
    )


def build_launcher_incident(
    failure: Failure,
    *,
    run_id: str,
    host: str,
    at_ns: int,
    workers: Iterable[FailedWorker] = (),
    round_token: int = 0,
    restart_count: int = 0,
    finished_count: int = 0,
    decision: Decision | None = None,
    phases: IncidentPhases | None = None,
) -> Incident:
    """Put an incident together for a failure that no worker caused: rendezvous, a health check, start-up.

    Args:
        failure: What failed; its summary names it.
        run_id: The run.
        host: This node's host name, for people.
        at_ns: When.
        workers: Those that were stopped because of it, if any ran.
        round_token: The round's fencing token, 0 where none had formed.
        restart_count: Failure restarts of the run before this.
        finished_count: How many workers had ended well.
        decision: The policy's answer, None where it was not asked.
        phases: How long what took.
    """
    ranked = rank_causes(workers)
    return Incident(
        run_id=run_id,
        node_id=failure.node_id,
        host=host,
        round_index=failure.round_index,
        round_token=round_token,
        restart_count=restart_count,
        at_ns=at_ns,
        at=iso_time(at_ns),
        source="launcher",
        failure_class=failure.failure_class,
        reported_by=failure.reported_by,
        summary=failure.summary,
        exit_code=failure.exit_code,
        retryable=failure.retryable,
        secondary=tuple(
            _worker(worker, MAX_SECONDARY_CALLSTACK_CHARS) for worker in ranked if worker.origin is not Origin.STOPPED
        ),
        stopped=tuple(_worker(worker, 0) for worker in ranked if worker.origin is Origin.STOPPED),
        finished_count=finished_count,
        node_count=failure.node_count,
        progress=failure.progress,
        decision=None if decision is None else describe_decision(decision),
        phases=phases or IncidentPhases(),
    )


def to_failure(incident: Incident, *, at_s: float, uptime_s: float) -> Failure:
    """Return what a FailureHandler decides about.

    Args:
        incident: What happened.
        at_s: Seconds since the run began.
        uptime_s: Seconds since the round's workers were started.
    """
    first = incident.first
    exception = None if first is None else first.exception
    return Failure(
        failure_class=incident.failure_class,
        summary=incident.summary,
        node_id=incident.node_id,
        round_index=incident.round_index,
        at_s=at_s,
        uptime_s=uptime_s,
        exit_code=incident.exit_code,
        global_rank=None if first is None else first.global_rank,
        local_rank=None if first is None else first.local_rank,
        exception_type="" if exception is None else exception.type,
        message="" if exception is None else _whole_message(exception),
        retryable=incident.retryable,
        signal=None if first is None else _own_signal(first),
        log_tail="" if first is None else first.log_tail,
        device_fault=_fault(incident),
        reported_by=incident.reported_by,
        fingerprint=_fingerprint(incident),
        node_count=incident.node_count,
        progress=incident.progress,
    )


def _fingerprint(incident: Incident) -> str:
    from elastic_core.failure.traceback_text import place  # which is made of our frames

    exception = None if incident.first is None else incident.first.exception
    if exception is None or not exception.type:
        # Loose last lines of stderr are other ones each time; how the worker ended is not.
        kind, where, message = "", "", incident.summary
    else:
        kind, where, message = exception.type, place(exception.frames), _distinctive(exception)
    return fingerprint(failure_class=incident.failure_class.value, exception_type=kind, place=where, message=message)


def _fault(incident: Incident) -> DeviceFault | None:
    exception = None if incident.first is None else incident.first.exception
    if exception is None or not incident.failure_class.on_device:
        return None
    texts = ((exception.type, exception.message), *((cause.type, cause.message) for cause in exception.causes))
    return fault_among(texts)


def _whole_message(exception: IncidentException) -> str:
    """Return the message with what is known beside it, a line each: what rules look for may be in any of them."""
    told = (f"{cause.relation} {cause.type}: {cause.message}" for cause in exception.causes)
    return "\n".join([exception.message, *exception.notes, *told])


def _distinctive(exception: IncidentException) -> str:
    """Return what tells this failure from others of its class: of another process's, what that one has raised."""
    causes = exception.causes
    relayed = bool(causes) and causes[0].relation.startswith(ELSEWHERE)
    told = [f"{cause.place} {cause.type}: {cause.message[:MAX_TOLD_CHARS]}" for cause in causes]
    return "\n".join([*told, *exception.notes, *(() if relayed else (exception.message,))])


def _own_signal(worker: IncidentWorker) -> int | None:
    """Return what killed a worker, unless it was we who sent it."""
    ours = worker.stop_signal is not None and worker.signal in (worker.stop_signal, signal.SIGKILL)
    return None if ours else worker.signal


def describe_decision(decision: Decision) -> IncidentDecision:
    """Return the record's form of a policy's answer."""
    if isinstance(decision, Restart):
        return IncidentDecision(
            kind="restart",
            rule=decision.rule,
            reason=decision.reason,
            delay_s=decision.delay_s,
            exclude_nodes=decision.exclude_nodes,
            exclude_s=decision.exclude_s,
        )
    if isinstance(decision, Ignore):
        return IncidentDecision(kind="ignore", rule=decision.rule)
    return IncidentDecision(kind="stop", rule=decision.rule, reason=decision.reason, outcome=decision.outcome)


def _ended_by_us(worker: FailedWorker) -> bool:
    # It had failed, but was slow to end when it was stopped with the others: that signal says nothing about the run,
    # and 128+N would look like a run that was told to stop.
    exit = worker.exit
    if worker.failure_class is FailureClass.HANG and exit.code < 0:
        return True  # with a signal of its own choice, perhaps
    return exit.stop_signal is not None and exit.code in (-exit.stop_signal, -signal.SIGKILL)


def exit_code_for(code: int) -> int:
    """Return the run's exit code for a worker's: its own, 128+N for death by signal N, 1 where there is no better."""
    if code < 0:
        return 128 - code
    return code or 1


def iso_time(at_ns: int) -> str:
    """Return `2026-01-31T12:00:00.123456789Z`."""
    import datetime

    whole = datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9:09d}Z"


def write_incident(path: Path, incident: Incident) -> None:
    """Replace the file at once, readable by its owner only.

    Raises:
        OSError: it can't be written; what was there before is unchanged.
    """
    replace_file(path, msgspec.json.format(encode_json(incident), indent=2) + b"\n")


def read_incident(path: Path) -> Incident:
    """Return what `write_incident` wrote.

    Raises:
        OSError: it can't be read, or is too long.
        msgspec.DecodeError: it is no incident, or one of another version.
    """
    return decode_json(read_file(path, most_bytes=MAX_FILE_BYTES), Incident)


def describe_worker(worker: FailedWorker) -> IncidentWorker:
    """Return the record's form of a worker, without frames."""
    return _worker(worker, 0)


def _worker(worker: FailedWorker, callstack_chars: int, *, log_tail: str = "") -> IncidentWorker:
    exit = worker.exit
    return IncidentWorker(
        global_rank=exit.global_rank,
        local_rank=exit.local_rank,
        pid=exit.pid,
        exit_code=exit.code,
        signal=-exit.code if exit.code < 0 else None,
        origin=worker.origin,
        failure_class=worker.failure_class,
        summary=worker.summary,
        at_ns=worker.at_ns,
        exited_ns=exit.at_ns,
        runtime_s=exit.runtime_s,
        oom_kills=exit.oom_kills,
        stop_signal=exit.stop_signal,
        stop_sent_ns=exit.stop_sent_ns,
        exception=_exception(worker, callstack_chars),
        log_paths=worker.log_paths,
        log_tail=log_tail,
    )


def _exception(worker: FailedWorker, callstack_chars: int) -> IncidentException | None:
    error = worker.error
    if error is None:
        return None
    return IncidentException(
        type=error.type,
        message=error.message[:MAX_MESSAGE_CHARS],
        source=error.source,
        frames=tuple(
            IncidentFrame(file=file, line=line, function=function, text=text)
            for file, line, function, text in error.frames
        )
        if callstack_chars
        else (),
        # The end names the exception; of a cut one that is what matters.
        callstack=error.callstack[-callstack_chars:] if callstack_chars else "",
        causes=tuple(
            IncidentCause(relation=relation, type=kind, message=message, place=place)
            for relation, kind, message, place in error.causes
        ),
        notes=error.notes,
    )
