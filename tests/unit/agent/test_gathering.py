"""What the agent does where a failure stops all nodes first: it says what it saw, and follows what the run decides."""

import pytest

from elastic_core import messages as m
from elastic_core.agent.machine.states import (
    AgentEnd,
    Await,
    Awaiting,
    Deciding,
    End,
    Gating,
    Leaving,
    Rejoin,
    Running,
    Stopping,
)
from elastic_core.types import Decided, Ignore, Restart, Resumed, RoundEnded, Stop, StopOrdered, Undecided
from unit.agent.test_round_changed import OURS, THEIRS, commands, drive, ended, make_round, names, told

ORDERED = StopOrdered(reason="exit code 9", by="b")
EVIDENCE = "what all have seen"
RESTART = Decided(decision=Restart(), failure=THEIRS, evidence=EVIDENCE)
FAILED = Decided(decision=Stop(reason="no budget"), failure=THEIRS, evidence=EVIDENCE)
LOST = RoundEnded(reason="node b was lost", lost=("b",))
TO_PREPARING = (
    m.StartRequested(control=True, gathers=True), m.JoinAllowed(), m.RoundFormed(round=make_round()),
)  # fmt: skip
TO_RUNNING = (*TO_PREPARING, m.StartAllowed(), m.WorkersSpawned())
TO_EXAMINING = (*TO_RUNNING, ended(1, 7))
TO_DECIDING = (*TO_RUNNING, ended(1, -9), m.Examined(failure=OURS))
ORDERS = (*TO_DECIDING, m.DecisionMade(failure=OURS, decision=Restart()))
AWAITS = (*ORDERS, m.WorkersStopped())


@pytest.mark.parametrize("decision", [Restart(), Stop(reason="no budget"), Stop(reason="enough", outcome="done")])
def test_a_failure_stops_the_others_first_then_its_own_node_and_decides_nothing(decision):
    step = drive(*TO_DECIDING, m.DecisionMade(failure=OURS, decision=decision))
    assert step.commands[0] == m.OrderStop(failure=OURS)
    assert names(step) == ["OrderStop", "SetTimer", "StopWorkers", "WatchRound"]
    assert (step.state.then, step.state.ledger.history) == (Await(), ())
    step = drive(m.WorkersStopped(), state=step.state)
    assert names(step) == ["CancelTimer", "ReportEvidence", "WatchRound"]
    assert step.commands[1].final
    assert isinstance(step.state, Awaiting)


def test_the_policys_word_that_a_worker_does_not_matter_is_taken_here():
    step = drive(*TO_DECIDING, m.DecisionMade(failure=OURS, decision=Ignore()))
    assert isinstance(step.state, Running)
    assert not commands(step, m.OrderStop)


@pytest.mark.parametrize("before", [TO_RUNNING, TO_EXAMINING, TO_DECIDING], ids=["running", "examining", "deciding"])
def test_an_order_stops_the_workers_whatever_happens_here(before):
    step = drive(*before, told(ORDERED))
    assert isinstance(step.state, Stopping)
    assert step.state.then == Await()
    assert names(step)[-3:] == ["SetTimer", "StopWorkers", "WatchRound"]


def test_a_node_that_has_finished_waits_for_what_is_decided():
    step = drive(*TO_RUNNING, ended(0, 0), ended(1, 0), told(ORDERED), m.WorkersStopped())
    assert isinstance(step.state, Awaiting)
    step = drive(told(FAILED), state=step.state)
    assert step.state.outcome.exit_code == 9


def test_workers_that_take_long_to_stop_do_not_hold_up_what_was_seen():
    step = drive(m.TimerFired(name="report"), state=drive(*ORDERS).state)
    assert step.commands == (m.ReportEvidence(round=make_round(), final=False),)
    decided = drive(told(RESTART), state=step.state)
    assert names(drive(m.TimerFired(name="report"), state=decided.state)) == []


@pytest.mark.parametrize("when", ["stopping", "awaiting"])
@pytest.mark.parametrize(("change", "state"), [(RESTART, Gating), (LOST, Gating), (FAILED, Leaving)])
def test_what_the_run_decides_is_done(when, change, state):
    if when == "awaiting":
        step = drive(*AWAITS, told(change))
    else:
        step = drive(*ORDERS, told(change))
        assert isinstance(step.state.then, End if change is FAILED else Rejoin)
        step = drive(m.WorkersStopped(), state=step.state)
    assert isinstance(step.state, state)
    if isinstance(change, Decided):
        (record,) = commands(step, m.RecordIncident)
        assert (record.failure, record.decision, record.evidence) == (THEIRS, change.decision, EVIDENCE)
        assert step.state.ledger.restart_count == isinstance(change.decision, Restart)
    else:
        assert step.state.ledger.membership_changes == 1


@pytest.mark.parametrize("answer", [m.StartAllowed(), m.StartRefused(hook="gate", reason="hot")])
def test_a_round_that_is_stopped_before_it_began_starts_no_worker(answer):
    heard = drive(*TO_PREPARING, told(ORDERED))
    assert names(drive(answer, state=heard.state)) == ["ReportEvidence", "WatchRound"]
    step = drive(told(LOST), answer, state=heard.state)
    assert names(step) == ["NotifyHooks", "PrintLine", "AskToJoin"]


def test_other_news_leave_the_watch_on():
    for change in (ORDERED, Resumed()):
        assert names(drive(*AWAITS, told(change))) == ["WatchRound"]


@pytest.mark.parametrize("final", [False, True])
def test_where_nobody_can_decide_the_node_does_and_says_so(final):
    step = drive(*AWAITS, told(Undecided(reason="the store is away", final=final)))
    assert names(step) == ["DecideAlone", "WatchRound"]
    assert (step.commands[0].final, step.commands[0].reason) == (final, "the store is away")
    assert isinstance(step.state, Deciding)
    ends = drive(m.DecisionMade(failure=OURS, decision=Stop(reason="no budget")), state=step.state)
    assert names(ends)[:2] == ["PublishDecision", "RecordIncident"]
    assert ends.state.outcome.exit_code == 7
    late = drive(told(FAILED), state=step.state)
    assert late.state.outcome.exit_code == 9


def test_a_node_that_is_told_to_stop_does_not_wait_for_the_run():
    step = drive(*AWAITS, m.StopRequested(signum=15))
    assert names(step) == ["AnnounceDrain", "AnnounceDeparture", "SetTimer", "LeaveRendezvous"]
    assert (step.state.outcome.ending, step.state.outcome.exit_code) == (AgentEnd.STOPPED, 143)
    step = drive(m.StopRequested(signum=15), state=drive(*ORDERS).state)
    assert names(step) == ["AnnounceDeparture", "NoneMayLeave", "AnnounceDrain"]
