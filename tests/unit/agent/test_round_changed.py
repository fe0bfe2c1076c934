"""What the agent does about a rendezvous that decides for the whole run: it tells it first, and follows what stands."""

import pytest

from elastic_core import messages as m
from elastic_core.agent.machine.states import (
    AgentEnd,
    Created,
    Deciding,
    End,
    Gating,
    Leaving,
    Preparing,
    Rejoin,
    Running,
    Starting,
    Stopping,
    Waiting,
)
from elastic_core.agent.machine.table import advance
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    Ignore,
    NodesWaiting,
    RendezvousClosed,
    Restart,
    Resumed,
    Round,
    RoundEnded,
    Stop,
    Suspended,
    WorkerExit,
)

WORKERS = 2
LOST = RoundEnded(reason="node b was lost", lost=("b",))
CUT_OFF = RoundEnded(reason="cut off", stop_within_s=1.5)


def make_round(index=0, **counts):
    return Round(
        index=index, token=index + 1, nonce="n", node_rank=0, node_count=2, local_world_size=WORKERS, base_rank=0,
        world_size=2 * WORKERS, role="default", role_base_rank=0, role_world_size=2 * WORKERS, master_addr="a",
        master_port=1, **counts,
    )  # fmt: skip


def make_exit(rank, code):
    return WorkerExit(local_rank=rank, global_rank=rank, pid=100 + rank, code=code, at_s=0.0, at_ns=0, runtime_s=0.0)


def make_failure(rank, summary="exit code 7", **changes):
    values = {
        "failure_class": FailureClass.EXIT, "summary": summary, "node_id": "a", "round_index": 0, "at_s": 0.0,
        "uptime_s": 0.0, "exit_code": 7, "local_rank": rank % WORKERS, "global_rank": rank,
    }  # fmt: skip
    return Failure(**(values | changes))


OURS = make_failure(1)
THEIRS = make_failure(3, "ValueError: boom", node_id="b", exit_code=9)
RESTART = Decided(decision=Restart(), failure=THEIRS)
FAILED = Decided(decision=Stop(reason="no budget"), failure=THEIRS)
DONE = Decided(decision=Stop(reason="all workers finished", outcome="done"))


def drive(*events, state=None, now_s=0.0):
    """Advance over events; return the last step."""
    step, current = None, Created() if state is None else state
    for event in events:
        step = advance(current, event, now_s=now_s)
        current = step.state
    return step


def told(change):
    return m.RoundChanged(change=change)


def ended(rank, code):
    return m.WorkerExited(exit=make_exit(rank, code))


TO_PREPARING = (m.StartRequested(control=True), m.JoinAllowed(), m.RoundFormed(round=make_round()))
TO_STARTING = (*TO_PREPARING, m.StartAllowed())
TO_RUNNING = (*TO_STARTING, m.WorkersSpawned())
TO_EXAMINING = (*TO_RUNNING, ended(1, 7))
TO_DECIDING = (*TO_RUNNING, ended(1, -9), m.Examined(failure=OURS))


def deciding_to(decision):
    return (*TO_DECIDING, m.DecisionMade(failure=OURS, decision=decision))


def names(step):
    return [type(command).__name__ for command in step.commands]


def commands(step, kind):
    return [command for command in step.commands if isinstance(command, kind)]


# --- counts


def test_what_the_rendezvous_counts_replaces_what_this_node_counted():
    history = (THEIRS,)
    step = drive(
        *TO_PREPARING[:2],
        m.RoundFormed(round=make_round(9, restart_count=4, membership_changes=5, history=history)),
        m.StartAllowed(),
    )
    spawn = commands(step, m.SpawnWorkers)[0]
    assert (spawn.restart_count, spawn.membership_changes) == (4, 5)
    assert step.state.ledger.history == history
    assert step.state.ledger.rounds == 10


# --- the run is told first


@pytest.mark.parametrize("decision", [Restart(), Stop(reason="no budget"), Stop(reason="enough", outcome="done")])
def test_a_decision_is_published_before_the_workers_are_stopped(decision):
    step = drive(*deciding_to(decision))
    assert step.commands[0] == m.PublishDecision(failure=OURS, decision=decision)
    assert names(step) == ["PublishDecision", "StopWorkers", "WatchRound"]


def test_a_failure_that_is_ignored_is_no_news_to_the_run():
    step = drive(*deciding_to(Ignore()))
    assert isinstance(step.state, Running)
    assert names(step) == ["WatchRound"]


def test_a_rendezvous_without_control_is_told_nothing():
    events = (m.StartRequested(), *deciding_to(Restart())[1:])
    assert names(drive(*events)) == ["StopWorkers"]
    finished = drive(m.StartRequested(), *TO_RUNNING[1:], ended(0, 0), ended(1, 0))
    assert names(finished) == ["StopWorkers"]


def test_a_node_that_is_told_to_stop_says_so_first():
    step = drive(*TO_RUNNING, m.StopRequested(signum=15))
    assert names(step) == ["AnnounceDeparture", "StopWorkers", "WatchRound"]
    step = drive(m.StopRequested(signum=15), state=drive(*TO_RUNNING, told(LOST)).state)
    assert names(step) == ["AnnounceDeparture", "NoneMayLeave", "AnnounceDrain"]


# --- finishing


def test_first_and_last_worker_that_finish_are_reported_and_the_node_waits_for_the_run():
    first = drive(*TO_RUNNING, ended(0, 0))
    assert names(first) == ["ReportFinishing"]
    last = drive(ended(1, 0), state=first.state)
    assert names(last) == ["ReportDone"]
    assert isinstance(last.state, Running)
    assert not last.state.alive
    over = drive(told(DONE), m.WorkersStopped(), m.RendezvousLeft(), state=last.state)
    assert (over.state.outcome.ending, over.state.outcome.exit_code) == (AgentEnd.SUCCEEDED, 0)


def test_a_worker_that_finishes_beside_a_failure_is_reported_too():
    assert names(drive(*TO_EXAMINING, ended(0, 0))) == ["ReportFinishing"]
    assert names(drive(*TO_DECIDING, ended(0, 0))) == ["ReportFinishing"]


def test_a_node_that_has_finished_joins_again_when_the_run_restarts():
    waiting = drive(*TO_RUNNING, ended(0, 0), ended(1, 0)).state
    step = drive(told(RESTART), m.WorkersStopped(), state=waiting)
    assert isinstance(step.state, Gating)


def test_a_node_that_has_finished_and_is_told_to_stop_goes_without_a_word():
    step = drive(*TO_RUNNING, ended(0, 0), ended(1, 0), m.StopRequested(signum=15))
    assert names(step) == ["StopWorkers", "WatchRound"]
    assert step.state.then.outcome.exit_code == 143


def test_a_closed_rendezvous_ends_the_waiting_for_the_run():
    finished = drive(*TO_RUNNING, ended(0, 0), ended(1, 0), told(RendezvousClosed()))
    assert finished.state.then.outcome.ending is AgentEnd.SUCCEEDED
    closed = drive(*TO_RUNNING, told(RendezvousClosed()), ended(0, 0), ended(1, 0))
    assert closed.state.then.outcome.ending is AgentEnd.SUCCEEDED


# --- while workers run


def test_an_ended_round_is_joined_anew_at_no_cost():
    step = drive(*TO_RUNNING, told(LOST))
    assert names(step) == ["NotifyHooks", "PrintLine", "StopWorkers", "WatchRound"]
    assert step.commands[1].text == "round 0 is over: node b was lost"
    assert commands(step, m.StopWorkers)[0].grace_s is None
    ledger = step.state.ledger
    assert (step.state.then, ledger.membership_changes, ledger.restart_count) == (Rejoin(), 1, 0)


def test_a_node_that_is_cut_off_stops_in_time():
    step = drive(*TO_RUNNING, told(CUT_OFF))
    assert commands(step, m.StopWorkers)[0].grace_s == 1.5


def test_a_restart_after_a_failure_elsewhere_is_told_recorded_and_counted():
    step = drive(*TO_RUNNING, told(Decided(decision=Restart(delay_s=2.0), failure=THEIRS)))
    assert names(step) == ["ReportDecision", "StopWorkers", "WatchRound"]
    assert step.state.then == Rejoin(delay_s=2.0)
    assert step.state.ledger.restart_count == 1
    assert [failure.summary for failure in step.state.ledger.history] == ["ValueError: boom"]
    step = drive(m.WorkersStopped(), state=step.state)
    assert step.commands[0] == m.RecordIncident(failure=THEIRS, decision=Restart(delay_s=2.0))


def test_the_end_after_a_failure_elsewhere_has_its_exit_code():
    step = drive(*TO_RUNNING, told(FAILED), m.WorkersStopped())
    assert step.commands[0] == m.RecordIncident(failure=THEIRS, decision=FAILED.decision)
    assert commands(step, m.LeaveRendezvous) == [m.LeaveRendezvous(close=False)]
    assert step.state.outcome.exit_code == 9


@pytest.mark.parametrize(("failure_class", "planned"), [(FailureClass.PREEMPTED, True), (FailureClass.EXIT, False)])
def test_an_end_because_a_node_was_taken_away_lets_workers_save(failure_class, planned):
    failure = make_failure(3, failure_class=failure_class)
    step = drive(*TO_RUNNING, told(Decided(decision=Stop(reason="no store"), failure=failure)))
    assert [halt.planned for halt in commands(step, m.StopWorkers)] == [planned]


def test_an_end_without_a_failure_is_the_rendezvous():
    step = drive(*TO_RUNNING, told(Decided(decision=Stop(reason="too many changes"))), m.WorkersStopped())
    assert step.commands[0].failure.failure_class is FailureClass.RENDEZVOUS
    assert (step.state.outcome.exit_code, step.state.outcome.reason) == (4, "too many changes")


# --- before workers run


@pytest.mark.parametrize("answer", [m.StartAllowed(), m.StartRefused(hook="gate", reason="hot")])
def test_a_round_that_is_over_before_it_began_starts_no_worker(answer):
    heard = drive(*TO_PREPARING, told(LOST))
    assert isinstance(heard.state, Preparing)
    assert names(heard) == ["WatchRound"]
    step = drive(answer, state=heard.state)
    assert names(step) == ["NotifyHooks", "PrintLine", "AskToJoin"]
    step = drive(answer, state=drive(told(RESTART), told(LOST), state=heard.state).state)
    assert names(step) == ["ReportDecision", "RecordIncident", "AskToJoin"]


def test_a_run_that_is_over_before_the_round_began_is_left_at_once():
    step = drive(*TO_PREPARING, told(FAILED))
    assert isinstance(step.state, Leaving)
    assert step.state.outcome.exit_code == 9


def test_what_is_told_while_workers_are_started_is_done_when_they_are():
    heard = drive(*TO_STARTING, told(FAILED))
    assert isinstance(heard.state, Starting)
    step = drive(m.WorkersSpawned(), state=heard.state)
    assert isinstance(step.state, Stopping)
    assert step.state.then.outcome.exit_code == 9
    step = drive(m.SpawnFailed(failure=OURS), state=heard.state)
    assert step.state.then.outcome.exit_code == 9


# --- while a failure is looked at


@pytest.mark.parametrize("before", [TO_EXAMINING, TO_DECIDING], ids=["examining", "deciding"])
@pytest.mark.parametrize(
    ("change", "then"), [(LOST, Rejoin), (CUT_OFF, Rejoin), (RESTART, Rejoin), (FAILED, End), (DONE, End)]
)
def test_what_the_run_decides_wins_over_a_failure_here(before, change, then):
    step = drive(*before, told(change))
    assert isinstance(step.state, Stopping)
    assert isinstance(step.state.then, then)
    assert not commands(step, m.PublishDecision)
    late = drive(m.DecisionMade(failure=OURS, decision=Restart()), state=step.state)
    assert (late.state, late.commands) == (step.state, ())


@pytest.mark.parametrize("before", [TO_EXAMINING, TO_DECIDING], ids=["examining", "deciding"])
@pytest.mark.parametrize("change", [Suspended(reason="s"), Resumed(), NodesWaiting(count=1)])
def test_other_changes_leave_the_failure_first_and_the_watch_on(before, change):
    step = drive(*before, told(change))
    assert isinstance(step.state, Deciding)
    assert names(step) == ["WatchRound"]


@pytest.mark.parametrize(
    ("change", "state"),
    [(LOST, Gating), (RESTART, Gating), (Decided(decision=Restart(delay_s=1.0)), Waiting), (FAILED, Leaving)],
)
def test_what_the_run_decides_wins_over_a_start_that_was_refused_here(change, state):
    """Where this node can't wait beside the round, it has its place in it."""
    refused = drive(*TO_PREPARING, m.StartRefused(hook="gate", reason="hot")).state
    step = drive(told(change), state=refused)
    assert isinstance(step.state, state)
    assert step.commands[0] == m.CancelTimer(name="gate")


# --- while workers are stopped


def test_the_echo_of_our_own_decision_changes_nothing():
    stopping = drive(*deciding_to(Restart())).state
    echo = Decided(decision=Restart(), failure=make_failure(1, node_id="a/10.0.0.1"))
    assert drive(told(echo), state=stopping).state == stopping


def test_another_restart_came_first():
    step = drive(*deciding_to(Restart()), told(Decided(decision=Restart(delay_s=3.0), failure=THEIRS)))
    assert names(step) == ["ReportDecision", "WatchRound"]
    assert (step.state.then, step.state.incident.failure) == (Rejoin(delay_s=3.0), THEIRS)
    assert step.state.ledger.restart_count == 1
    assert len(step.state.ledger.history) == 1


def test_the_run_ends_where_we_would_have_restarted():
    step = drive(*deciding_to(Restart()), told(FAILED))
    assert step.state.then.outcome.exit_code == 9
    assert step.state.ledger.restart_count == 0


def test_the_run_restarts_where_we_would_have_ended():
    step = drive(*deciding_to(Stop(reason="no budget")), told(RESTART))
    assert step.state.then == Rejoin()
    assert step.state.ledger.restart_count == 1


def test_an_agent_that_was_told_to_stop_is_not_overruled():
    draining = drive(*TO_RUNNING, m.StopRequested(signum=15)).state
    for change in (RESTART, FAILED, LOST):
        assert drive(told(change), state=draining).state == draining


def test_a_lease_that_ends_shortens_the_grace_period():
    step = drive(*deciding_to(Restart()), told(CUT_OFF))
    assert step.commands[0] == m.ShortenGrace(grace_s=1.5, at_once=True)
    assert step.state.then == Rejoin()


# --- after


def test_the_run_ends_during_the_delay_before_a_restart():
    waiting = drive(*deciding_to(Restart(delay_s=5.0)), m.WorkersStopped()).state
    assert isinstance(waiting, Waiting)
    assert drive(told(LOST), state=waiting).state == waiting
    step = drive(told(FAILED), state=waiting)
    assert names(step) == ["CancelTimer", "RecordIncident", "SetTimer", "LeaveRendezvous"]
    assert step.state.outcome.exit_code == 9


def test_a_node_that_is_not_needed_says_why_and_ends_well():
    step = drive(*TO_PREPARING[:2], m.RendezvousFailed(summary="enough nodes", exit_code=0))
    assert step.commands[0] == m.PrintLine(text="enough nodes")
    assert step.state.outcome.exit_code == 0
