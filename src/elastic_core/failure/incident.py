"""The incident: what failed first, what followed from it, and what was decided. One JSON file for people and tools."""

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from elastic_core.encoding import decode_json, encode_json
from elastic_core.errors import ConfigError
from elastic_core.failure.classify import rank_causes
from elastic_core.failure.device_errors import fault_among
from elastic_core.failure.fingerprint import fingerprint
from elastic_core.processes.errors.causes import ELSEWHERE
from elastic_core.processes.errors.frames import place_of
from elastic_core.system.private_file import read_file, replace_file
from elastic_core.types import (
    Decision,
    DeviceFault,
    ErrorRecord,
    FailedWorker,
    Failure,
    FailureClass,
    Origin,
    Record,
    WorkerExit,
)

SCHEMA_VERSION = 2

MAX_FILE_BYTES = 16 << 20
"""The longest incident that is read."""
# The file also travels through the rendezvous store: bounded for a node of many workers with long tracebacks.
MAX_CALLSTACK_CHARS = 32_768
MAX_SECONDARY_CALLSTACK_CHARS = 2_048
MAX_MESSAGE_CHARS = 8_192
MAX_LOG_TAIL_CHARS = 4_096
MAX_CAUSE_CHARS = 500
"""The part of the message of a cause, member or note by which failures are compared, and that nodes report."""


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
    """One failure of a run: as seen from one node, or of all nodes where `report_count` is not 0.

    `source` is `worker`, or `launcher` where no worker was to blame (rendezvous, a health check, start-up); `first` is
    None then. `secondary` failed because of it or after it, in order; `stopped` were ended by us, by rank; tracebacks
    are cut (`bounded`). `exit_code` is what the run ends with if this is the end.
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
    first: FailedWorker | None = None
    """The first failed worker; None: no worker is to blame."""
    elsewhere_rank: int | None = None
    """The global rank of the worker that failed first, where another node has it: `host` is that node then."""
    secondary: tuple[FailedWorker, ...] = ()
    """Workers that failed because of it, or after it."""
    stopped: tuple[FailedWorker, ...] = ()
    """Ranks that the agent stopped."""
    finished_count: int = 0
    """Workers of this node (of all nodes) that had ended with 0 by themselves."""
    node_count: int | None = None
    """How many nodes the round had; None: there was none."""
    report_count: int = 0
    """How many nodes have reported; 0: it is the view of one node alone. What follows is empty then."""
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
    decision: Decision | None = None
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
    failure: Failure | None,
    *,
    run_id: str,
    host: str,
    at_ns: int = 0,
    node_id: str = "",
    round_index: int = -1,
    node_count: int | None = None,
    workers: Iterable[FailedWorker] = (),
    round_token: int = 0,
    restart_count: int = 0,
    finished_count: int = 0,
    decision: Decision | None = None,
    phases: IncidentPhases | None = None,
) -> Incident:
    """Put an incident together from all workers that failed or were stopped, in any order.

    Args:
        failure: What failed if no worker of these is to blame: rendezvous, a health check, start-up; None: the first of
            the workers that failed by itself.
        run_id: The run.
        host: This node's host name, for people.
        at_ns: When `failure` was.
        node_id: This node; of a `failure` it is the failure's, as the next two are.
        round_index: The round that failed.
        node_count: How many nodes it had.
        workers: As `classify.judge` made them, without those that finished well.
        round_token: The round's fencing token, 0 where none had formed.
        restart_count: Failure restarts of the run before this.
        finished_count: How many workers had ended well.
        decision: The policy's answer, None as long as there is none.
        phases: How long what took.

    Raises:
        ValueError: there is neither a failure nor a worker that failed by itself, so there is nothing to report.
    """
    ranked = rank_causes(workers)
    failed = [worker for worker in ranked if worker.origin is not Origin.STOPPED]
    first = None
    if failure is None:
        if not failed:
            raise ValueError(f"run {run_id!r} round {round_index}: no worker failed by itself (of {len(ranked)} given)")
        first, *failed = failed
        failure = _failure_of(first, node_id, round_index, node_count)
        at_ns = first.at_ns
    return Incident(
        run_id=run_id,
        node_id=failure.node_id,
        host=host,
        round_index=failure.round_index,
        round_token=round_token,
        restart_count=restart_count,
        at_ns=at_ns,
        at=iso_time(at_ns),
        source="launcher" if first is None else "worker",
        failure_class=failure.failure_class,
        reported_by=failure.reported_by,
        summary=failure.summary,
        exit_code=failure.exit_code,
        retryable=failure.retryable,
        first=None if first is None else bounded(first, MAX_CALLSTACK_CHARS, MAX_LOG_TAIL_CHARS),
        secondary=tuple(bounded(worker, MAX_SECONDARY_CALLSTACK_CHARS) for worker in failed),
        stopped=tuple(bounded(worker) for worker in ranked if worker.origin is Origin.STOPPED),
        finished_count=finished_count,
        node_count=failure.node_count,
        progress=failure.progress,
        decision=decision,
        phases=phases or IncidentPhases(),
    )


def _failure_of(first: FailedWorker, node_id: str, round_index: int, node_count: int | None) -> Failure:
    """Return the failure of a worker, without when it was and what it left."""
    return Failure(
        failure_class=first.failure_class,
        summary=first.summary,
        node_id=node_id,
        round_index=round_index,
        node_count=node_count,
        at_s=0.0,
        uptime_s=0.0,
        exit_code=1 if _ended_by_us(first) else exit_code_for(first.exit.code),
        retryable=first.failure_class is not FailureClass.USAGE or round_index != 0,
    )


def bounded(worker: FailedWorker, callstack_chars: int = 0, log_tail_chars: int = 0) -> FailedWorker:
    """Return a worker as an incident has it: with the end of its traceback, and with frames where it has any."""
    error = worker.error
    if error is not None:
        error = replace(
            error,
            message=error.message[:MAX_MESSAGE_CHARS],
            frames=error.frames if callstack_chars else (),
            # The end names the exception; of a cut one that is what matters.
            callstack=error.callstack[-callstack_chars:] if callstack_chars else "",
        )
    return replace(worker, error=error, log_tail=worker.log_tail[-log_tail_chars:] if log_tail_chars else "")


def to_failure(incident: Incident, *, at_s: float, uptime_s: float) -> Failure:
    """Return what a FailureHandler decides about.

    Args:
        incident: What happened.
        at_s: Seconds since the run began.
        uptime_s: Seconds since the round's workers were started.
    """
    first = incident.first
    error = None if first is None else first.error
    return Failure(
        failure_class=incident.failure_class,
        summary=incident.summary,
        node_id=incident.node_id,
        round_index=incident.round_index,
        at_s=at_s,
        uptime_s=uptime_s,
        exit_code=incident.exit_code,
        global_rank=None if first is None else first.exit.global_rank,
        local_rank=None if first is None else first.exit.local_rank,
        exception_type="" if error is None else error.type,
        message="" if error is None else _whole_message(error),
        retryable=incident.retryable,
        signal=None if first is None else _own_signal(first.exit),
        log_tail="" if first is None else first.log_tail,
        device_fault=_fault(incident),
        reported_by=incident.reported_by,
        fingerprint=_fingerprint(incident),
        node_count=incident.node_count,
        progress=incident.progress,
    )


def _fingerprint(incident: Incident) -> str:
    error = None if incident.first is None else incident.first.error
    if error is None or not error.type:
        # Loose last lines of stderr are other ones each time; how the worker ended is not.
        kind, where, message = "", "", incident.summary
    else:
        kind, where, message = error.type, place_of(error.frames), _distinctive(error)
    return fingerprint(failure_class=incident.failure_class.value, exception_type=kind, place=where, message=message)


def _fault(incident: Incident) -> DeviceFault | None:
    error = None if incident.first is None else incident.first.error
    if error is None or not incident.failure_class.on_device:
        return None
    return fault_among(((error.type, error.message), *(cause[1:3] for cause in error.causes)))


def _whole_message(error: ErrorRecord) -> str:
    """Return the message with what is known beside it, a line each: what rules look for may be in any of them."""
    causes = (f"{relation} {kind}: {message}" for relation, kind, message, _ in error.causes)
    return "\n".join([error.message, *error.notes, *causes])


def _distinctive(error: ErrorRecord) -> str:
    """Return what tells this failure from others of its class: of another process's, what that one has raised."""
    relayed = bool(error.causes) and error.causes[0][0].startswith(ELSEWHERE)
    causes = [f"{place} {kind}: {message[:MAX_CAUSE_CHARS]}" for _, kind, message, place in error.causes]
    return "\n".join([*causes, *error.notes, *(() if relayed else (error.message,))])


def _own_signal(exit: WorkerExit) -> int | None:
    """Return what killed a worker, unless it was we who sent it."""
    ours = exit.stop_signal is not None and exit.signal in (exit.stop_signal, signal.SIGKILL)
    return None if ours else exit.signal


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
        ConfigError: it is an incident of another schema version.
        msgspec.DecodeError: it is no incident.
    """
    return decode_incident(read_file(path, most_bytes=MAX_FILE_BYTES), str(path))


def decode_incident(text: str | bytes, where: str) -> Incident:
    """Return the incident in a text; `where` names it in errors.

    Raises:
        ConfigError: it is an incident of another schema version.
        msgspec.DecodeError: it is no incident.
    """
    version = decode_json(text, _SchemaVersion).schema_version
    if version != SCHEMA_VERSION:
        what = f"{where!r}: incident of schema version {version}; expected {SCHEMA_VERSION}"
        raise ConfigError(what, hint="the version of elastic-core that wrote it")
    return decode_json(text, Incident)


class _SchemaVersion(msgspec.Struct):
    schema_version: int
