"""Records as the agent would make them, for tests of policies and hooks."""

from typing import Any

from msgspec.structs import asdict

from elastic_core.api import (
    AgentStarted,
    AgentStopped,
    DecisionTaken,
    Draining,
    ErrorRecord,
    FailedWorker,
    Failure,
    FailureClass,
    FailureSeen,
    Ignore,
    MembershipChanged,
    Moment,
    Origin,
    Restart,
    Round,
    RoundJoined,
    RoundJoining,
    Stop,
    WorkerEnded,
    WorkerExit,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.api.feed import (
    Agreed,
    AnswersGathered,
    Concluded,
    NodesAsked,
    Phase,
    RunEvent,
    StopPlanned,
)
from elastic_core.api.rendezvous import NodesWaiting, RosterMember, RoundEnded


def sample_failure(**given: Any) -> Failure:  # noqa: ANN401  # fields of the record, which checks their names
    """Return a worker's uncaught ValueError, or what is given."""
    base: dict[str, Any] = {
        "failure_class": FailureClass.USER_EXCEPTION,
        "summary": "ValueError: boom",
        "node_id": "n0",
        "round_index": 0,
        "at_s": 20.0,
        "uptime_s": 10.0,
        "global_rank": 1,
        "local_rank": 1,
        "exception_type": "ValueError",
        "message": "boom",
    }
    return Failure(**(base | given))


def sample_round(**given: Any) -> Round:  # noqa: ANN401  # fields of the record, which checks their names
    """Return the first round of a node with two workers, or what is given."""
    base: dict[str, Any] = {
        "index": 0,
        "token": 1,
        "nonce": "c0ffee",
        "node_rank": 0,
        "node_count": 1,
        "local_world_size": 2,
        "base_rank": 0,
        "world_size": 2,
        "role": "default",
        "role_base_rank": 0,
        "role_world_size": 2,
        "master_addr": "localhost",
        "master_port": 29500,
    }
    return Round(**(base | given))


def sample_moments(*, run_dir: str) -> tuple[Moment, ...]:
    """Return a run's moments in order: a failure and a restart, rounds that end for membership changes, a stop."""
    crash = sample_failure(alive_count=1)
    lost = sample_failure(
        failure_class=FailureClass.NODE_LOST, summary="lost", global_rank=None, local_rank=None, exception_type=""
    )
    return (
        AgentStarted(run_id="sample", node_id="n0", run_dir=run_dir, pid=4242),
        *_round_begins(0),
        WorkerEnded(round_index=0, exit=_exit(code=1)),
        FailureSeen(failure=crash, workers=(_failed(),)),
        DecisionTaken(failure=crash, decision=Restart(delay_s=0.5, rule="max-restarts"), policy="intensity"),
        WorkersStopping(round_index=0, reason="a worker failed", grace_s=30.0),
        WorkerEnded(round_index=0, exit=_exit(code=-15, stop_signal=15, stop_sent_ns=1_700_000_000_000_000_000)),
        *_round_begins(1),
        NodesAsked(serial=1, topic="sample: state"),
        AnswersGathered(serial=1, topic="sample: state", answers={"n0": b"well"}, missing=("n1",)),
        Concluded(serial=1, topic="sample: state", data=b"n1 is missing"),
        StopPlanned(round_index=1, reason="1 node joined", hold_s=30.0),
        Agreed(topic="sample: step", value=4),
        MembershipChanged(round_index=1, change=NodesWaiting(count=1)),
        *_round_begins(2),
        MembershipChanged(round_index=2, change=RoundEnded(reason="n1 left", lost=("n1",), left=("n1",), planned=True)),
        *_round_begins(3),
        FailureSeen(failure=lost),
        DecisionTaken(failure=lost, decision=Ignore(), policy="rules", fallback_reason="it raised KeyError"),
        DecisionTaken(failure=lost, decision=Stop(reason="budget used up"), policy="rules"),
        Draining(signum=15, deadline_s=30.0),
        WorkersStopping(round_index=3, reason="SIGTERM", grace_s=30.0),
        WorkerEnded(round_index=3, exit=_exit(code=-9, stop_signal=15, unreapable=True)),
        AgentStopped(exit_code=143, reason="stopped by SIGTERM"),
    )


def sample_feed(*, run_dir: str) -> tuple[RunEvent, ...]:
    """Return the feed of the same run: steps of the agent, its moments, what others add, and the end."""
    phase = Phase(name="rendezvous", took_s=0.25, well=True)
    step = {"event": "RoundFormed", "round": sample_round(), "state": "starting", "entered": True, "phases": (phase,)}
    events: list[tuple[str, dict[str, Any], str]] = [("step", step, "")]
    for moment in sample_moments(run_dir=run_dir):
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(moment).__name__)
        events.append((name.lstrip("_"), asdict(moment), ""))
    events += [
        ("store_call", {"call": "renew", "took_s": 0.001, "failed": False}, ""),
        ("store_reachable", {"reachable": False, "text": "the store is away"}, ""),
        ("fields_published", {"hook": "gpu", "fields": {"lost": 1, "driver": "550", "well": False}}, ""),
        ("of_a_later_version", {"x": ()}, ""),
        ("anything", {}, "another hook"),
        ("feed_closed", {}, ""),
    ]
    return tuple(
        RunEvent(
            name=name, number=at + 1, at_s=10.0 + at, at_ns=1_700_000_000_000_000_000 + at, values=values, source=source
        )
        for at, (name, values, source) in enumerate(events)
    )


def _round_begins(index: int) -> tuple[Moment, ...]:
    formed = sample_round(index=index, token=index + 1)
    return (
        RoundJoining(round_index=index),
        RoundJoined(round=formed, members=(RosterMember(node_id="n0", local_world_size=formed.local_world_size),)),
        WorkersStarting(round=formed, restart_count=index),
        WorkersStarted(round=formed, pids=(5000 + index, 6000 + index)),
    )


def _exit(*, code: int, **given: Any) -> WorkerExit:  # noqa: ANN401  # fields of the record
    base: dict[str, Any] = {
        "local_rank": 1,
        "global_rank": 1,
        "pid": 6000,
        "at_s": 20.0,
        "at_ns": 1_700_000_001_000_000_000,
        "runtime_s": 10.0,
    }
    return WorkerExit(code=code, **(base | given))


def _failed() -> FailedWorker:
    error = ErrorRecord(
        source="hook",
        type="ValueError",
        message="boom",
        timestamp_ns=1_700_000_000_900_000_000,
        frames=(("train.py", 7, "<module>", "main()"), ("train.py", 3, "main", "raise ValueError('boom')")),
    )
    return FailedWorker(
        exit=_exit(code=1),
        origin=Origin.INTRINSIC,
        failure_class=FailureClass.USER_EXCEPTION,
        summary="ValueError: boom",
        at_ns=1_700_000_000_900_000_000,
        error=error,
        log_paths=("/tmp/run/attempt_0/1/stderr.log",),
    )
