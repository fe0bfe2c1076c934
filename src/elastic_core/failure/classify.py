"""Classifies the exits of workers, and ranks several failed workers by first cause. Pure."""

import itertools
import re
import signal
from collections.abc import Collection, Iterable, Sequence

from elastic_core.failure.device_errors import fault_among
from elastic_core.processes.errors.causes import ELSEWHERE, MEMBER
from elastic_core.types import DeviceFault, ErrorRecord, FailedWorker, FailureClass, Origin, WorkerExit

COLLATERAL_WINDOW_NS = 100_000_000
"""A lost connection may be noticed this much earlier than its cause is recorded: the cause still ranks first."""
ENDING_NS = 1_000_000_000
"""The same for a cause without an error time: its connections close first, then its interpreter, then it exits."""
# It is also the longest wait for a record that has begun, because the reason of an exit is recorded at its end.
SETTLE_S = COLLATERAL_WINDOW_NS / 1e9
"""The longest wait for evidence of this node's other workers that is not known to come, in seconds."""
LOST_PEER_S = 0.5
"""A failure that only reports a lost peer ranks behind another node's own failure that is at most this much later, in
seconds. A node with such a failure waits as long before it orders the stop."""
STOP_S = 0.5
"""Seconds in which a worker's death by another process's stop signal may turn out to be the stop of this whole node.

A scheduler that signals all processes of a node needs milliseconds, or some tens of them on a busy machine.
"""
TIMED_SOURCES = ("hook", "record")
"""Sources that record when the error happened; for other sources only the time of the worker's exit is known."""

MAX_SUMMARY_CHARS = 300
MAX_REASONED_CHARS = 200
"""A summary that names a cause is short enough for a restart line to show it uncut."""
MAX_REASON_CHARS = 120

_COLLATERAL_TYPES = frozenset({"ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError"})
# Messages of torch 2.13 to 2.15, gloo and NCCL when a peer is gone or does not respond (2.15 has a new NCCL backend
# with other messages). The watchdog's hang messages are among them: the rank that notices a hang is not the one that
# hangs.
_COLLATERAL = re.compile(
    "|".join(
        (
            r"connection (?:was )?(?:reset|aborted|closed by|likely closed)",
            r"connection was likely closed",
            r"broken pipe",
            r"remote peer closed the connection",
            r"application timeout caused pair closure",
            r"gloo connectfullmesh failed",
            r"timed out waiting \d+ms for (?:send|recv) operation",
            r"failed to pass monitoredbarrier",
            r"ncclremoteerror",
            r"remote process exited or there was a network error",
            r"nccl communicator was aborted",
            r"connection closed by remote peer",
            r"watchdog caught collective operation timeout",
            r"nccl operation timed out",
            r"nccl (?:hit )?async error(?!.*unhandled cuda error)",
            r"some nccl operations have failed or timed out",
            r"the client socket has (?:failed to connect|timed out)",
            r"(?:recv|send)(?:value|bytes|vector|string)?(?:withtimeout)? failed on ",
            r"(?:socket|connect|wait) timeout",
            r"timed out after \d+ seconds waiting for clients",
        )
    ),
    re.IGNORECASE,
)
_OWN_PORT = re.compile(r"server socket has failed|address already in use", re.IGNORECASE)
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)|Cannot allocate memory|std::bad_alloc"
)
_MAY_BE_COLLATERAL = (FailureClass.USER_EXCEPTION, FailureClass.EXIT)
_ANNOUNCES = re.compile(r"\d+ validation errors? for ")
_KILLED_CHILD = re.compile(r"killed by signal: Killed")


def classify(
    exit: WorkerExit, error: ErrorRecord | None, *, script_missing: bool = False
) -> tuple[Origin, FailureClass, str]:
    """Return origin, class and one-line summary of one worker's exit.

    The code of `exit` is not 0, unless the agent had stopped the worker. `script_missing`: the script was missing
    or unreadable when it was checked after this exit.
    """
    kind, summary = _kind(exit, error, script_missing=script_missing)
    if was_stopped(exit, error):
        return Origin.STOPPED, kind, _stopped_summary(exit, summary)
    collateral = kind in _MAY_BE_COLLATERAL and error is not None and is_collateral(error)
    return (Origin.COLLATERAL if collateral else Origin.INTRINSIC), kind, summary


def judge(
    exit: WorkerExit, error: ErrorRecord | None, *, log_paths: Iterable[str] = (), script_missing: bool = False
) -> FailedWorker:
    """Return one worker's part in an incident: its exit, its evidence, and the result of `classify`."""
    origin, kind, summary = classify(exit, error, script_missing=script_missing)
    return FailedWorker(
        exit=exit,
        origin=origin,
        failure_class=kind,
        summary=summary,
        at_ns=exit.at_ns if error is None else error.timestamp_ns,
        error=error,
        log_paths=tuple(log_paths),
    )


def rank_causes(workers: Iterable[FailedWorker]) -> tuple[FailedWorker, ...]:
    """Return workers in the order of their failures; workers that the agent stopped follow, by rank.

    A collateral failure ranks behind each intrinsic one that is at most `COLLATERAL_WINDOW_NS` later. If a collateral
    failure would still be first, it ranks behind a worker without an error time that exited at most `ENDING_NS` later.
    """
    everyone = tuple(workers)
    failed = [worker for worker in everyone if worker.origin is not Origin.STOPPED]
    stopped = [worker for worker in everyone if worker.origin is Origin.STOPPED]
    failed.sort(key=_cause_order)
    slow = next((worker for worker in failed if _ended_slowly(worker, failed[0])), None)
    if slow is not None:
        failed.remove(slow)
        failed.insert(0, slow)
    stopped.sort(key=lambda worker: worker.exit.global_rank)
    return (*failed, *stopped)


def _cause_order(worker: FailedWorker) -> tuple[int, int, int]:
    allowance_ns = COLLATERAL_WINDOW_NS if worker.origin is Origin.COLLATERAL else 0
    return worker.at_ns + allowance_ns, int(worker.origin is Origin.COLLATERAL), worker.exit.global_rank


def is_timed(error: ErrorRecord | None) -> bool:
    """Return whether the worker recorded when it failed; if not, only the time of its exit is known."""
    return error is not None and error.source in TIMED_SOURCES


def wait_s(
    workers: Iterable[FailedWorker],
    *,
    begun_ns: Iterable[int] = (),
    others: bool = False,
    peers: bool = False,
    stop_signals: Collection[int] = (),
) -> float:
    """Return how long other evidence may still change the first cause, in seconds from the first examination.

    `workers` is the known evidence: at least one worker. `begun_ns` is when other workers of this node began to
    record a failure, in nanoseconds since the epoch. `others`: this node has workers without a known failure.
    `peers`: workers of other nodes may have failed before, and are stopped with these.
    """
    known = tuple(workers)
    stopped = [worker.exit.at_s for worker in known if _stopped_from_outside(worker.exit, stop_signals)]
    if stopped:  # a stop signal from outside usually reaches the agent, too: then it is no failure but the run's end
        return STOP_S + min(stopped) - min(worker.exit.at_s for worker in known)
    first = rank_causes(known)[0]
    most_s = 0.0
    if first.origin is Origin.COLLATERAL:
        most_s = SETTLE_S * others + LOST_PEER_S * peers
    elif first.origin is Origin.STOPPED or first.exit.code < 0:
        return 0.0  # a death by signal (out of memory, a crash in native code) has no earlier cause
    elif not is_timed(first.error):  # an exit code alone may be the script's reaction to a stop signal
        most_s = SETTLE_S * others
    # A failure that precedes a recorded one has begun to be recorded before.
    earlier = any(at_ns <= _cause_order(first)[0] for at_ns in begun_ns)
    return max(most_s, ENDING_NS / 1e9) if earlier else most_s


def _stopped_from_outside(exit: WorkerExit, stop_signals: Collection[int]) -> bool:
    """Return whether a worker ended by a stop signal that the agent did not send, or with that signal's exit code."""
    return exit.stop_signal is None and (exit.signal or exit.code - 128) in stop_signals


def _ended_slowly(worker: FailedWorker, first: FailedWorker) -> bool:
    if first.origin is not Origin.COLLATERAL or worker.origin is not Origin.INTRINSIC:
        return False
    return not is_timed(worker.error) and worker.at_ns <= first.at_ns + ENDING_NS


def was_stopped(exit: WorkerExit, error: ErrorRecord | None) -> bool:
    """Return whether the agent ended the worker, which then failed, if at all, only after the agent's signal.

    If the worker recorded its own error before that signal, it failed by itself, whatever ended it.
    """
    if exit.stop_signal is None:
        return False
    if error is None or exit.stop_sent_ns is None:
        return True
    return error.timestamp_ns > exit.stop_sent_ns


def is_collateral(error: ErrorRecord) -> bool:
    """Return whether an error only reports that a peer is gone or silent."""
    if not error.type:
        return False  # the last lines of stderr, which may warn of lost connections after any failure
    kind, message = error.type, error.message
    if kind == "SystemExit" and error.causes:
        _, kind, message, _ = error.causes[0]  # the script handled this error by exiting
    return lost_peer({_short(kind)}, message) is True


def lost_peer(kinds: Collection[str], message: str) -> bool | None:
    """Return whether an error only reports that a peer is gone or silent. `None`: neither class nor text shows it.

    `kinds` are the names of the error's class and of its bases, without modules.
    """
    if _OWN_PORT.search(message):
        return False  # the same exception class, but about this worker's own port
    return True if not _COLLATERAL_TYPES.isdisjoint(kinds) or _COLLATERAL.search(message) else None


def signal_name(signum: int) -> str:
    """Return a signal as `SIGKILL (9)`, or as `signal 99` if the number has no name."""
    try:
        return f"{signal.Signals(signum).name} ({signum})"
    except ValueError:
        return f"signal {signum}"


def one_line(text: str, limit: int = MAX_SUMMARY_CHARS) -> str:
    """Return the first line of `text` that is not blank, in at most `limit` characters."""
    return shortened(next((stripped for line in text.splitlines() if (stripped := line.strip())), ""), limit)


def shortened(text: str, limit: int) -> str:
    """Return `text` in at most `limit` characters: a part near the middle with the fewest digits is left out.

    A message begins with the error and ends with the numbers and addresses that distinguish one case from another.
    """
    if len(text) <= limit:
        return text
    gap = len(text) - limit + 1
    digits = [0, *itertools.accumulate(map(str.isdigit, text))]
    middle = (len(text) - gap) * 2 // 3
    starts = range(max(1, limit // 3), len(text) - gap - limit // 6)
    start = min(starts, key=lambda at: (digits[at + gap] - digits[at], abs(at - middle)), default=middle)
    return f"{text[:start].rstrip()}…{text[start + gap :].lstrip()}"


def _kind(exit: WorkerExit, error: ErrorRecord | None, *, script_missing: bool) -> tuple[FailureClass, str]:
    killed = exit.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if killed and exit.oom_kills > 0:
        return FailureClass.OOM_HOST, f"{_end(exit)}: out of memory in this node's cgroup ({exit.oom_kills} kills)"
    if error is not None and error.type == "SystemExit":
        kind = FailureClass.USAGE if error.top_level_import else _exception_kind(exit, error)
        return (FailureClass.EXIT if kind is FailureClass.USER_EXCEPTION else kind), _describe(error, _end(exit))
    if script_missing or (error is not None and error.top_level_import):
        return FailureClass.USAGE, _describe(error) if error is not None and error.type else _end(exit)
    if error is None or not error.type:
        return (FailureClass.SIGNAL if exit.code < 0 else FailureClass.EXIT), _end(exit)
    if error.source == "faulthandler" and error.type == "Fatal Python error":
        return FailureClass.SIGNAL, _fault(exit, error)
    return _exception_kind(exit, error), _describe(error)


def _exception_kind(exit: WorkerExit, error: ErrorRecord) -> FailureClass:
    name = _short(error.type)
    fault = fault_among(((error.type, error.message), *(cause[1:3] for cause in error.causes)))
    if fault is DeviceFault.OUT_OF_MEMORY:
        return FailureClass.OOM_DEVICE
    if fault is not None and not is_collateral(error):  # else a peer is gone, whichever library reports it
        return FailureClass.DEVICE
    if name == "MemoryError" or _HOST_OOM.search(error.message):
        return FailureClass.OOM_HOST
    if exit.oom_kills > 0 and _KILLED_CHILD.search(error.message):
        return FailureClass.OOM_HOST  # the kernel killed a data loader's process
    return FailureClass.SIGNAL if name == "KeyboardInterrupt" else FailureClass.USER_EXCEPTION


def _describe(error: ErrorRecord, name: str = "") -> str:
    """Return the raised class (or `name`) and message with the cause, each shortened so that both fit."""
    name = name or _short(error.type)  # the record has its module
    message, causes = error.message, list(error.causes)
    if causes and causes[0][0].startswith(ELSEWHERE):
        (_, kind, message, _), *causes = causes
        name = name if _short(kind) == name else f"{name}, from {_short(kind)}"
    texts = [_named(_short(kind), text) for _, kind, text, _ in causes]
    if not causes:
        reason = ""
    elif causes[0][0] == MEMBER:
        reason = f": {_as_many_as_fit(texts)}"
    else:
        reason = f", {causes[0][0]} {texts[0]}"
    if error.notes:
        reason += f"; {one_line(error.notes[0], MAX_REASON_CHARS)}"
    if not reason:
        return one_line(_named(name, message))
    reason = shortened(reason, MAX_REASONED_CHARS * 2 // 3)
    return shortened(_named(name, message), MAX_REASONED_CHARS - len(reason)) + reason


def _named(name: str, message: str) -> str:
    text = _headline(message)
    return one_line(f"{name}: {text}" if text else name)


def _headline(message: str) -> str:
    """Return a message's first line, with the lines that it introduces (pydantic's, or a list after a colon)."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and (lines[0].endswith(":") or _ANNOUNCES.match(lines[0])):
        return " ".join(lines[:3])
    return lines[0] if lines else ""


def _as_many_as_fit(texts: Sequence[str]) -> str:
    shown = [shortened(each, MAX_REASON_CHARS) for each in texts]
    for count in range(len(shown), 1, -1):
        text = "; ".join(shown[:count]) + (f"; {len(shown) - count} more" if count < len(shown) else "")
        if len(text) <= MAX_REASON_CHARS + 10:
            return text
    return shown[0] + (f"; {len(shown) - 1} more" if len(shown) > 1 else "")


def _end(exit: WorkerExit) -> str:
    if exit.unreapable:
        return "did not end after SIGKILL: still in uninterruptible sleep"
    return f"killed by {signal_name(-exit.code)}" if exit.code < 0 else f"exit code {exit.code}"


def _fault(exit: WorkerExit, error: ErrorRecord) -> str:
    end = _end(exit)
    return end if exit.code < 0 else f"{end}: {one_line(error.message)}"


def _stopped_summary(exit: WorkerExit, summary: str) -> str:
    sent = signal_name(exit.stop_signal or 0)
    if exit.code == -(exit.stop_signal or 0):
        return f"stopped by the launcher with {sent}"
    return f"stopped by the launcher with {sent}: {summary}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]
