"""A small report with one of everything, for the tests of what is written from it."""

from elastic_core.api import FailureClass, Restart
from elastic_core.api.commands import Incident
from elastic_report.ledger.states import LedgerState as S
from elastic_report.model import (
    Account,
    Difference,
    IncidentRow,
    LaneSpan,
    LostTime,
    NodeLane,
    Ratio,
    Report,
    RoundRow,
    RunFacts,
    TimelineEvent,
    WorkerBar,
)

BEGAN_NS = 1_790_000_000_000_000_000


def incident(summary="ValueError: boom"):
    """Return an incident of rank 1 on node b that ended in a restart."""
    return Incident(
        run_id="bert-7",
        node_id="b",
        host="gpu-b",
        round_index=0,
        at_ns=BEGAN_NS + 9_000_000_000,
        at="2026-09-21T14:13:29Z",
        source="worker",
        failure_class=FailureClass.USER_EXCEPTION,
        summary=summary,
        exit_code=1,
        decision=Restart(rule="max-restarts"),
    )


def lane(node_id, *spans, workers=(), **fields):
    """Return a lane of (state, seconds) that begins at 0."""
    at_s, found, states = 0.0, [], {}
    for state, seconds in spans:
        found.append(LaneSpan(state=state, begin_s=at_s, end_s=at_s + seconds, round=0))
        states[state] = states.get(state, 0.0) + seconds
        at_s += seconds
    return NodeLane(
        node_id=node_id, begin_s=0.0, end_s=at_s, states=states, spans=tuple(found), workers=workers, **fields
    )


def report(**fields):
    """Return a report of two nodes with a crash, a save and a restart."""
    worker = WorkerBar(
        local_rank=0,
        global_rank=1,
        round=0,
        begin_s=2.0,
        end_s=9.0,
        code=1,
        marks=(("save", 5.0, 6.0),),
        first_step=0,
        last_step=40,
    )
    found = Report(
        generated_ns=BEGAN_NS + 60_000_000_000,
        source="this machine",
        run=RunFacts(
            run_id="bert-7",
            script="train.py",
            state="succeeded",
            exit_code=0,
            began_ns=BEGAN_NS,
            ended_s=20.0,
            node_count=2,
            world_size=2,
            restart_count=1,
            sentence="run 'bert-7' succeeded after 1 restart: rank 1 on b raised ValueError: boom",
            evidence=("ValueError: boom (train.py:11)",),
        ),
        account=Account(
            states={S.PRODUCTIVE: 30.0, S.STARTING: 4.0, S.REDONE: 6.0},
            present_s=40.0,
            goodput=Ratio(low=0.75, high=0.75),
            goodput_nvidia=Ratio(low=0.8, high=0.85),
            lost=(LostTime(state=S.REDONE, seconds=6.0, text="6 s redone after the failure at 14:13"),),
            sentence="10 s of 40 s lost: 6 s redone, 4 s starting",
            frozen=True,
        ),
        nodes=(
            lane("a", (S.STARTING, 2.0), (S.PRODUCTIVE, 18.0), host="gpu-a"),
            lane("b", (S.STARTING, 2.0), (S.PRODUCTIVE, 12.0), (S.REDONE, 6.0), workers=(worker,), host="gpu-b"),
        ),
        rounds=(
            RoundRow(index=0, token=1, begin_s=1.0, end_s=9.5, node_count=2, world_size=2, ended_by="failure"),
            RoundRow(index=1, token=2, begin_s=9.8, node_count=2, world_size=2, joined=("a", "b")),
        ),
        events=(
            TimelineEvent(
                at_s=9.0, name="worker_failed", text="rank 1: ValueError: boom", node="b", rank=1, incident=1
            ),
            TimelineEvent(at_s=9.4, name="decision", text="restart"),
        ),
        incidents=(
            IncidentRow(
                number=1,
                at_s=9.0,
                incident=incident(),
                sentence="round 0 failed: rank 1 on b raised ValueError: boom; restarted by max-restarts",
                decision="restart",
                rule="max-restarts",
                detect_s=0.2,
                recover_s=3.0,
                lost_s=6.0,
            ),
        ),
        options=(("nproc_per_node", "1", "command line"),),
        compared_with="run 'bert-6' of 2026-09-20",
        differences=(Difference(kind="version", name="torch", before="2.13.0", now="2.14.0"),),
        clocks="The clocks of both nodes agreed within 0.1 s.",
    )
    return type(found)(**{name: fields.get(name, getattr(found, name)) for name in found.__struct_fields__})
