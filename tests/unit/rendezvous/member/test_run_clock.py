"""One clock for the failures of a run, on nodes whose own clocks have nothing in common."""

import pytest
from msgspec.structs import replace

from elastic_core.agent.run_decision import FailureContext
from elastic_core.failure.evidence import run_incident
from elastic_core.rendezvous.member.announce import announce
from elastic_core.rendezvous.member.documents import ControlDocument, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.state import JoinWait, Me, OwnLease, OwnRun, SeenStore, State, StoreConnection, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Seat
from elastic_core.reports import NodeReport
from elastic_core.types import Failure, FailureClass, RendezvousInfo, Round, WorkerExit
from elastic_plugin_kit import ManualClock

ROUND = RoundDocument(
    epoch="e", token=3, nonce="x", index=2, at_s=100.0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
ME = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=2, max_nodes=4)


def reads(state, round_, now_s):
    return announce(
        replace(state, seen=replace(state.seen, round=round_, fresh=frozenset({CONTROL_KEY, ROUND_KEY}))), now_s
    )


def member(now_s):
    return State(
        me=ME,
        want=Want.JOIN,
        run=OwnRun(epoch="e", kept_control=CONTROL),
        seen=SeenStore(control=CONTROL),
        lease=OwnLease(seat=Seat(number=1, incarnation="a#", ahead=0), confirmed_s=now_s),
        connection=StoreConnection(connected=True, ever_connected=True),
        waiting=JoinWait(since_s=now_s, began_s=now_s),
    )


@pytest.mark.parametrize("now_s", [0.5, 7.0e6])
def test_node_takes_the_runs_age_from_the_round_it_reads(now_s):
    state, told = reads(member(now_s), ROUND, now_s)
    assert state.run_s(now_s + 5.0) == pytest.approx(105.0)
    (formed,) = [each for each in told if isinstance(each, RendezvousInfo)]
    assert formed.at_s == pytest.approx(100.0)


def test_what_is_read_late_makes_the_run_no_younger():
    state, _ = reads(member(50.0), ROUND, 50.0)
    state, _ = reads(state, ROUND, 90.0)  # again, after trouble with the store
    assert state.run_s(90.0) == pytest.approx(140.0)
    state, _ = reads(state, replace(ROUND, token=4, nonce="y", at_s=150.0), 91.0)  # its leader knew better
    assert state.run_s(91.0) == pytest.approx(150.0)


def test_another_run_has_a_clock_of_its_own():
    state, _ = reads(member(50.0), ROUND, 50.0)
    assert replace(state, run=replace(state.run, epoch="other")).run_s(60.0) == 0.0


# --- what agents make of it


def round_(at_s):
    return Round(
        index=2, token=3, nonce="x", node_rank=0, node_count=2, local_world_size=1, base_rank=0, world_size=2,
        role="default", role_base_rank=0, role_world_size=2, master_addr="h", master_port=1, node_id="a",
        restart_count=0, membership_changes=0, at_s=at_s,
    )  # fmt: skip


FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 3", node_id="", round_index=2, at_s=0.0, uptime_s=0.0,
    local_rank=0,
)  # fmt: skip


@pytest.mark.parametrize(("at_s", "expected_s"), [(100.0, 103.0), (None, 63.0)])
def test_agent_places_failures_on_the_runs_clock_or_on_its_own_where_there_is_none(at_s, expected_s):
    clock = ManualClock()
    placing = FailureContext("a", clock, progress=lambda: 12)
    clock.advance(60.0)
    placing.joined(round_(at_s))
    clock.advance(1.0)
    placing.spawning()
    clock.advance(2.0)
    exit = WorkerExit(local_rank=0, global_rank=0, pid=1, code=3, at_s=clock.monotonic_s(), at_ns=0, runtime_s=2.0)
    clock.advance(30.0)  # until it is looked at
    placed = placing.of_worker(FAILURE, [exit], round_(at_s))
    assert (placed.at_s, placed.uptime_s, placed.progress) == (pytest.approx(expected_s), pytest.approx(2.0), 12)
    made_up = placing.of_machine(replace(FAILURE, local_rank=None), round_(at_s))
    assert (made_up.at_s, made_up.node_count) == (pytest.approx(expected_s + 30.0), 2)


# --- how far the run had come


@pytest.mark.parametrize(("steps", "furthest"), [((3, 7, None), 7), ((None, None, None), None), ((0, None, None), 0)])
def test_progress_is_that_of_the_node_which_had_come_furthest(steps, furthest):
    reports = [
        NodeReport(node_id=node, progress=step, failure=replace(FAILURE, node_id=node, progress=step))
        for node, step in zip("abc", steps, strict=True)
    ]
    failure, _ = run_incident(reports, run_id="r", at_ns=0, restarts=0)
    assert failure.progress == furthest


def test_stop_that_nobody_explains_is_a_lost_node_in_a_round_of_so_many():
    failure, _ = run_incident([NodeReport(node_id=n) for n in "ab"], run_id="r", at_ns=0, restarts=0)
    assert (failure.failure_class, failure.node_count) == (FailureClass.NODE_LOST, 2)
