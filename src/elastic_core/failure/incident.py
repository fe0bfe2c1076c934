"""The incident: the first failure, its consequences, and the decision. One JSON file for people and tools."""

import signal
import time
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
"""The longest incident file that is read, in bytes."""
# The rendezvous store transfers the content too, so it is limited even for a node of many workers with long tracebacks.
MAX_CALLSTACK_CHARS = 32_768
MAX_SECONDARY_CALLSTACK_CHARS = 2_048
MAX_MESSAGE_CHARS = 8_192
MAX_LOG_TAIL_CHARS = 4_096
MAX_CAUSE_CHARS = 500
"""The part of a cause's, member's or note's message that nodes report and that fingerprints compare."""


class IncidentPhases(Record, frozen=True, kw_only=True):
    """How long each part of the recovery took, in seconds; `None` if it did not happen, or not yet."""

    detect_s: float | None = None
    stop_s: float | None = None
    rendezvous_s: float | None = None
    start_s: float | None = None


class IncidentHungRank(Record, frozen=True, kw_only=True):
    """One rank of this node during a hang.

    `quiet_s` is the number of seconds without a sign of life, `None` if that was no longer than usual. `state` is the
    kernel's letter for the process, `wait` where it sleeps in the kernel, `cpu_share` how many processors it used.
    `place` is its innermost line of the user's code; `stacks` is the file with all its threads, in the hang's folder.
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
    """A hang: `step` is the highest step of any rank; `section` is a section that exceeded its limit.

    `ranks` are at most 16; the blamed ranks come first.
    """

    ranks: tuple[IncidentHungRank, ...]
    step: int | None = None
    section: str = ""
    stacks: str = ""
    """The folder with the stacks."""
    attribution: Mapping[str, object] | None = None
    """The cause in collectives, by the evidence of all nodes; `None` if there was none."""
    evidence: tuple[str, ...] = ()
    """The kinds of evidence that were available."""
    recorder: str = ""
    """The folder with the files of torch's flight recorder."""


class IncidentNode(Record, frozen=True, kw_only=True):
    """One node's part in an incident of the whole run.

    `age_s` is how long its first worker had failed when the node ordered the stop or received the order; `None` if no
    worker failed by itself. If not `complete`, the decision was made before its workers had stopped.
    """

    node_id: str
    host: str = ""
    failed_count: int = 0
    stopped_count: int = 0
    finished_count: int = 0
    age_s: float | None = None
    complete: bool = True


class IncidentAbsence(Record, frozen=True, kw_only=True):
    """A node that was left out: it was present when other nodes failed, and had no part in their round."""

    node_id: str
    by: str
    """A hook of that node with its distribution, or the run's policy."""
    reason: str
    """The reason."""
    refused: bool
    """Whether the hook refused; otherwise the policy left the node out."""
    until_ns: int = 0
    """The latest time of the hook's next check, or the end of the policy's time; 0 means the policy's next decision."""


class Incident(Record, frozen=True, kw_only=True):
    """One failure of a run: the view of one node, or of all nodes if `report_count` is not 0.

    Tracebacks are shortened (`bounded`).
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
    """The number of earlier restarts of the run."""
    at_ns: int
    """When the first worker failed, nanoseconds since the Unix epoch."""
    at: str
    """The same time as text, in UTC."""
    source: str
    """`worker`, or `launcher` if no worker caused the failure (rendezvous, a health check, start-up)."""
    failure_class: FailureClass
    """The failure class."""
    reported_by: str = ""
    """The hook that reported it; empty if the agent found it."""
    fields: Mapping[str, object] = {}
    """Further fields of that report."""
    decided_by: str = ""
    """The node with the policy that decided for the whole run; empty if each node's policy decided."""
    summary: str
    """One line for people."""
    exit_code: int
    """The run's exit code, if it ends with this incident."""
    retryable: bool = True
    """Whether a restart may help."""
    first: FailedWorker | None = None
    """The first failed worker; `None` if no worker caused the failure."""
    elsewhere_rank: int | None = None
    """The global rank of the first failed worker if it is on another node; `host` is that node then."""
    secondary: tuple[FailedWorker, ...] = ()
    """Workers that failed because of it, or after it, in order."""
    stopped: tuple[FailedWorker, ...] = ()
    """Workers that the agent stopped, by rank."""
    finished_count: int = 0
    """How many workers of this node (or of all nodes) had exited with 0 by themselves."""
    kept_count: int = 0
    """How many workers of this node (or of all nodes) were not stopped, but left the round and run on."""
    node_count: int | None = None
    """The number of nodes in the round; `None` if there was no round."""
    report_count: int = 0
    """The number of nodes that reported; 0 means the view of one node alone, without the next five fields."""
    nodes: tuple[IncidentNode, ...] = ()
    """The part of each node that reported, for at most 32 nodes."""
    absent: tuple[IncidentAbsence, ...] = ()
    """The nodes that were left out at that moment."""
    failed_count: int = 0
    """How many workers of all nodes failed by themselves after the first; `secondary` has some of them."""
    stopped_count: int = 0
    """How many workers were stopped on all nodes."""
    stopped_ranks: tuple[tuple[int, int], ...] = ()
    """First and last rank of each range of workers that the launcher stopped, on all nodes."""
    decision: Decision | None = None
    """The decision; `None` if there is none yet."""
    progress: int | None = None
    """The highest step that any worker reported; `None` if unknown."""
    phases: IncidentPhases = IncidentPhases()
    """How long each part of the recovery took."""
    hang: IncidentHang | None = None
    """The hang; `None` if no hang of this node's workers was reported."""
    hooks: Mapping[str, Mapping[str, object]] = {}
    """The fields that hooks of this node published, by hook name."""


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
) -> Incident:
    """Return an incident of all workers that failed or were stopped, which may be in any order.

    `failure` is `None` if the first worker that failed by itself is the cause. If none of these workers is
    (rendezvous, a health check, start-up), it is that failure, with its own node, round and number of nodes, and
    `at_ns` is its time, in nanoseconds since the Unix epoch. `workers` are results of `classify.judge`, without
    those that finished with 0, which `finished_count` counts. `round_token` is 0 if no round had formed.

    Raises:
        ValueError: there is neither a failure nor a worker that failed by itself.
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
    )


def _failure_of(first: FailedWorker, node_id: str, round_index: int, node_count: int | None) -> Failure:
    """Return the failure of a worker, without time and evidence."""
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
    """Return a worker shortened for an incident: with the end of its traceback, and with its frames if there is one."""
    error = worker.error
    if error is not None:
        error = replace(
            error,
            message=error.message[:MAX_MESSAGE_CHARS],
            frames=error.frames if callstack_chars else (),
            # The end of a traceback names the exception, so it is kept.
            callstack=error.callstack[-callstack_chars:] if callstack_chars else "",
        )
    return replace(worker, error=error, log_tail=worker.log_tail[-log_tail_chars:] if log_tail_chars else "")


def to_failure(incident: Incident, *, at_s: float, uptime_s: float) -> Failure:
    """Return the failure for a FailureHandler.

    Args:
        incident: The incident.
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
        # The last lines of stderr differ each time; the exit of the worker does not.
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
    """Return the message with its notes and causes, one per line: rules search all of them."""
    causes = (f"{relation} {kind}: {message}" for relation, kind, message, _ in error.causes)
    return "\n".join([error.message, *error.notes, *causes])


def _distinctive(error: ErrorRecord) -> str:
    """Return the text that identifies the failure within its class; a relayed failure has that of its first process."""
    relayed = bool(error.causes) and error.causes[0][0].startswith(ELSEWHERE)
    causes = [f"{place} {kind}: {message[:MAX_CAUSE_CHARS]}" for _, kind, message, place in error.causes]
    return "\n".join([*causes, *error.notes, *(() if relayed else (error.message,))])


def _own_signal(exit: WorkerExit) -> int | None:
    """Return the signal that killed a worker; `None` if there is none or the agent sent it."""
    ours = exit.stop_signal is not None and exit.signal in (exit.stop_signal, signal.SIGKILL)
    return None if ours else exit.signal


def _ended_by_us(worker: FailedWorker) -> bool:
    # The worker had failed, but ended only after a stop signal: that signal is no information about the run, and 128+N
    # would look like a run that was ordered to stop.
    exit = worker.exit
    if worker.failure_class is FailureClass.HANG and exit.code < 0:
        return True  # possibly with a signal of its own
    return exit.stop_signal is not None and exit.code in (-exit.stop_signal, -signal.SIGKILL)


def exit_code_for(code: int) -> int:
    """Return the run's exit code for a worker's code: the same code, 128+N after signal N, or 1 if the code is 0."""
    if code < 0:
        return 128 - code
    return code or 1


def iso_time(at_ns: int) -> str:
    """Return a time as `2026-01-31T12:00:00.123456789Z`."""
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{at_ns % 10**9:09d}Z", time.gmtime(at_ns // 10**9))


def write_incident(path: Path, incident: Incident) -> None:
    """Write an incident as a file that only its owner can read, atomically.

    Raises:
        OSError: the file can't be written; an earlier file is unchanged.
    """
    replace_file(path, msgspec.json.format(encode_json(incident), indent=2) + b"\n")


def read_incident(path: Path) -> Incident:
    """Return the incident in a file of `write_incident`.

    Raises:
        OSError: the file can't be read, or is too long.
        ConfigError: the incident has another schema version.
        msgspec.DecodeError: the file is not an incident.
    """
    return decode_incident(read_file(path, most_bytes=MAX_FILE_BYTES), str(path))


def decode_incident(text: str | bytes, where: str) -> Incident:
    """Return the incident in a text; `where` names the text in errors.

    Raises:
        ConfigError: the incident has another schema version.
        msgspec.DecodeError: the text is not an incident.
    """
    version = decode_json(text, _SchemaVersion).schema_version
    if version != SCHEMA_VERSION:
        what = f"{where!r}: incident of schema version {version}; expected {SCHEMA_VERSION}"
        raise ConfigError(what, hint="the version of elastic-core that wrote it")
    return decode_json(text, Incident)


class _SchemaVersion(msgspec.Struct):
    schema_version: int
