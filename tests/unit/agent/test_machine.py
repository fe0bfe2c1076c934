"""The agent machine: the table is complete, steps keep to it, and the promises hold over random histories."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elastic_core import messages as m
from elastic_core.agent.machine.states import (
    AgentEnd,
    Await,
    Awaiting,
    Created,
    Deciding,
    End,
    Ended,
    Gating,
    Joining,
    Leaving,
    Preparing,
    Refused,
    Running,
    Starting,
    Step,
    Stopping,
    Waiting,
)
from elastic_core.agent.machine.table import EVENTS, STATES, TABLE, Handled, Ignored, advance
from elastic_core.errors import IllegalEventError
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    Ignore,
    MemberLost,
    NodesWaiting,
    RendezvousClosed,
    Restart,
    Resumed,
    Round,
    RoundEnded,
    Stop,
    StopOrdered,
    Suspended,
    Undecided,
    WorkerExit,
)

WORKERS = 3
STOP_SIGNALS = (2, 15)


def make_round(index=0):
    return Round(
        index=index, token=index + 1, nonce="n", node_rank=0, node_count=1, local_world_size=WORKERS, base_rank=0,
        world_size=WORKERS, role="default", role_base_rank=0, role_world_size=WORKERS, master_addr="127.0.0.1",
        master_port=1,
    )  # fmt: skip


def make_exit(rank, code):
    return WorkerExit(local_rank=rank, global_rank=rank, pid=100 + rank, code=code, at_s=0.0, at_ns=0, runtime_s=0.0)


def make_failure(rank=0, **changes):
    values = {
        "failure_class": FailureClass.EXIT, "summary": "exit code 7", "node_id": "n", "round_index": 0, "at_s": 0.0,
        "uptime_s": 0.0, "exit_code": 7, "local_rank": rank, "global_rank": rank,
    }  # fmt: skip
    return Failure(**(values | changes))


def drive(*events, state=None, now_s=0.0):
    """Advance over events; return the last step."""
    step = None
    current = Created() if state is None else state
    for event in events:
        step = advance(current, event, now_s=now_s)
        current = step.state
    return step


TO_RUNNING = (
    m.StartRequested(), m.JoinAllowed(), m.RoundFormed(round=make_round()), m.StartAllowed(), m.WorkersSpawned(),
)  # fmt: skip


def names(step):
    return [type(command).__name__ for command in step.commands]


def test_table_has_a_rule_for_every_pair_of_state_and_event():
    assert set(TABLE) == set(STATES)
    for state, row in TABLE.items():
        assert set(row) == set(EVENTS), state


def test_every_state_is_reached_and_all_but_the_last_are_left():
    targets = {t for row in TABLE.values() for r in row.values() if isinstance(r, Handled) for t in r.to}
    assert targets == set(STATES) - {Created}
    for state, row in TABLE.items():
        leaves = any(isinstance(r, Handled) and set(r.to) - {state} for r in row.values())
        assert leaves == (state is not Ended), state


def test_every_state_but_the_last_handles_a_stop_signal():
    for state, row in TABLE.items():
        assert isinstance(row[m.StopRequested], Ignored if state is Ended else Handled), state


def test_illegal_event_raises_and_names_both():
    with pytest.raises(IllegalEventError, match=r"WorkersSpawned in state Created"):
        advance(Created(), m.WorkersSpawned(), now_s=0)


def test_all_workers_finishing_ends_with_success_after_the_sweep():
    step = drive(*TO_RUNNING, *(m.WorkerExited(exit=make_exit(r, 0)) for r in range(WORKERS)))
    assert isinstance(step.state, Stopping)
    assert names(step) == ["StopWorkers"]
    step = drive(m.WorkersStopped(), state=step.state)
    assert names(step) == ["SetTimer", "LeaveRendezvous"]
    step = drive(m.RendezvousLeft(), state=step.state)
    assert step.state.outcome.ending is AgentEnd.SUCCEEDED
    assert names(step) == ["CancelTimer"]


@pytest.mark.parametrize("code", [7, -9, -15, 143])
def test_a_failure_is_examined_and_later_exits_are_added_to_it(code):
    step = drive(*TO_RUNNING, m.WorkerExited(exit=make_exit(1, code)))
    assert isinstance(step.state, Deciding)
    assert names(step) == ["Examine"]
    step = drive(*(m.WorkerExited(exit=make_exit(r, 1)) for r in (0, 2)), state=step.state)
    assert names(step) == []
    assert [e.local_rank for e in step.state.exits] == [1, 0, 2]


def told_to_stop(*codes, control=False):
    begin = m.StartRequested(control=control, gathers=control, stop_signals=STOP_SIGNALS)
    exits = [m.WorkerExited(exit=make_exit(rank, code)) for rank, code in enumerate(codes)]
    return drive(begin, *TO_RUNNING[1:], *exits)


@pytest.mark.parametrize("codes", [(-15,), (143,), (-2, -2), (-15, -15, -15), (7, -15), (7, 130, 7), (-15, 0, 0)])
@pytest.mark.parametrize("control", [False, True])
def test_death_by_a_stop_signal_is_the_stop_of_the_node_when_the_agent_gets_it_in_time(codes, control):
    step = told_to_stop(*codes, control=control)
    assert isinstance(step.state, Deciding)
    drained = drive(m.StopRequested(signum=15), state=step.state)
    assert names(drained)[-2:] == (["StopWorkers", "WatchRound"] if control else ["StopWorkers"])
    assert not {"OrderStop", "PublishDecision", "AskPolicy"} & set(names(step) + names(drained))
    end = drive(m.WorkersStopped(), m.RendezvousLeft(), state=drained.state)
    assert (end.state.outcome.ending, end.state.outcome.exit_code) == (AgentEnd.STOPPED, 143)
    assert end.state.ledger.history == ()


def failed_with(decision, *, code=-9, rank=1):
    failure = make_failure(rank)
    return drive(
        *TO_RUNNING, m.WorkerExited(exit=make_exit(rank, code)), m.Examined(failure=failure),
        m.DecisionMade(failure=failure, decision=decision),
    )  # fmt: skip


def test_restart_stops_the_others_then_joins_again_with_one_more_restart_on_the_books():
    step = failed_with(Restart())
    assert names(step) == ["StopWorkers"]
    step = drive(m.WorkersStopped(), state=step.state)
    assert names(step) == ["RecordIncident", "AskToJoin"]
    step = drive(m.JoinAllowed(), m.RoundFormed(round=make_round(1)), m.StartAllowed(), state=step.state)
    assert step.commands[0].restart_count == 1
    assert step.commands[0].membership_changes == 0


def test_delayed_restart_waits_after_the_workers_are_gone():
    step = drive(m.WorkersStopped(), state=failed_with(Restart(delay_s=2.0)).state)
    assert isinstance(step.state, Waiting)
    assert m.SetTimer(name="backoff", delay_s=2.0) in step.commands
    assert isinstance(drive(m.TimerFired(name="backoff"), state=step.state).state, Gating)


def test_stop_decision_ends_with_the_failed_workers_code():
    step = drive(m.WorkersStopped(), m.RendezvousLeft(), state=failed_with(Stop(reason="no budget")).state)
    assert (step.state.outcome.ending, step.state.outcome.exit_code) == (AgentEnd.FAILED, 7)


def test_stop_decision_as_done_ends_with_zero():
    step = drive(m.WorkersStopped(), m.RendezvousLeft(), state=failed_with(Stop(reason="enough", outcome="done")).state)
    assert (step.state.outcome.ending, step.state.outcome.exit_code) == (AgentEnd.SUCCEEDED, 0)


def test_hang_is_decided_about_while_the_workers_run_on():
    failure = make_failure(1, failure_class=FailureClass.HANG, exit_code=1)
    step = drive(*TO_RUNNING, m.HangFound(failure=failure))
    assert step.commands == (m.AskPolicy(failure=failure, history=()),)
    assert step.state.running.alive == {0, 1, 2}
    restart = drive(m.DecisionMade(failure=failure, decision=Restart()), state=step.state)
    assert names(restart) == ["StopWorkers"]
    assert restart.state.ledger.restart_count == 1
    going_on = drive(m.DecisionMade(failure=failure, decision=Ignore()), state=step.state)
    assert isinstance(going_on.state, Running)
    assert going_on.state.alive == {0, 1, 2}


def test_hang_that_is_found_while_another_failure_is_looked_at_changes_nothing():
    for events in ([m.WorkerExited(exit=make_exit(1, 7))], [m.WorkerExited(exit=make_exit(1, -9))]):
        before = drive(*TO_RUNNING, *events).state
        step = drive(m.HangFound(failure=make_failure(0)), state=before)
        assert step.state is before
        assert step.commands == ()


def test_ignore_lets_the_others_run_on_and_finish():
    state = failed_with(Ignore()).state
    assert isinstance(state, Running)
    assert state.ignored == {1}
    step = drive(*(m.WorkerExited(exit=make_exit(r, 0)) for r in (0, 2)), state=state)
    assert isinstance(step.state, Stopping)
    assert step.state.then.outcome.exit_code == 0


def test_ignore_of_one_failure_examines_the_others_that_failed_meanwhile():
    failure = make_failure(1)
    step = drive(
        *TO_RUNNING, m.WorkerExited(exit=make_exit(1, 7)), m.WorkerExited(exit=make_exit(2, 8)),
        m.TimerFired(name="settle"), m.Examined(failure=failure), m.DecisionMade(failure=failure, decision=Ignore()),
    )  # fmt: skip
    assert names(step) == ["Examine"]
    assert [e.local_rank for e in step.state.exits] == [2]


def test_what_hung_and_was_ignored_may_end_in_any_way_later():
    failure = make_failure(1)
    hang = drive(*TO_RUNNING, m.HangFound(failure=failure), m.DecisionMade(failure=failure, decision=Ignore()))
    ended = drive(m.WorkerExited(exit=make_exit(1, -9)), state=hang.state)
    assert isinstance(ended.state, Running)
    assert names(ended) == []
    another = drive(m.WorkerExited(exit=make_exit(0, 3)), m.WorkerExited(exit=make_exit(1, -9)), state=hang.state)
    assert [exit.local_rank for exit in another.state.exits] == [0]


@pytest.mark.parametrize("rank", [1, None])
def test_an_ignored_straggler_runs_on_and_its_exit_counts_later(rank):
    failure = make_failure(rank, failure_class=FailureClass.STRAGGLER)
    step = drive(*TO_RUNNING, m.HangFound(failure=failure), m.DecisionMade(failure=failure, decision=Ignore()))
    assert isinstance(step.state, Running)
    assert (step.state.alive, step.state.ignored) == ({0, 1, 2}, set())
    assert step.state.ledger.history[-1].failure_class is FailureClass.STRAGGLER
    ended = drive(m.WorkerExited(exit=make_exit(1, -9)), state=step.state)
    assert [exit.local_rank for exit in ended.state.exits] == [1]


def test_stop_signal_drains_with_that_signal_and_a_second_one_kills_only_after_half_a_second():
    step = drive(*TO_RUNNING, m.StopRequested(signum=2), now_s=10.0)
    assert step.commands[0] == m.StopWorkers(signum=2, reason="stopped by signal 2", drain=True, planned=True)
    assert names(drive(m.StopRequested(signum=2), state=step.state, now_s=10.4)) == []
    assert names(drive(m.StopRequested(signum=2), state=step.state, now_s=10.5)) == ["KillWorkers"]
    end = drive(m.WorkersStopped(), m.RendezvousLeft(), state=step.state, now_s=11.0)
    assert end.state.outcome.exit_code == 130


BEFORE_A_ROUND = (m.StartRequested(control=True),)


@pytest.mark.parametrize(
    "state",
    [
        drive(*BEFORE_A_ROUND).state,
        drive(*BEFORE_A_ROUND, m.JoinAllowed()).state,
        drive(*BEFORE_A_ROUND, m.JoinAllowed(), m.RoundFormed(round=make_round())).state,
        drive(m.WorkersStopped(), state=failed_with(Restart(delay_s=2.0)).state).state,
    ],
    ids=lambda state: type(state).__name__,
)
def test_stop_signal_is_announced_where_no_worker_runs_too(state):
    step = drive(m.StopRequested(signum=15), state=state)
    assert isinstance(step.state, Leaving)
    assert step.commands[0] == m.AnnounceDrain(signum=15)
    again = drive(m.StopRequested(signum=15), state=step.state, now_s=9.0)
    assert "AnnounceDrain" not in names(again)


def test_drain_with_a_deadline_bounds_the_grace_period_and_a_later_one_only_shortens_it():
    step = drive(*TO_RUNNING, m.StopRequested(signum=15, grace_s=5.0), now_s=10.0)
    assert step.commands[0] == m.StopWorkers(
        signum=15, reason="stopped by signal 15", drain=True, grace_s=5.0, planned=True
    )
    again = drive(m.StopRequested(signum=15, grace_s=1.0), state=step.state, now_s=11.0)
    assert again.commands == (m.ShortenGrace(grace_s=1.0),)
    restarting = failed_with(Restart()).state
    told = drive(m.StopRequested(signum=15, grace_s=1.0), state=restarting)
    assert told.commands == (m.NoneMayLeave(), m.ShortenGrace(grace_s=1.0), m.AnnounceDrain(signum=15))


def test_restart_that_was_asked_for_begins_a_new_round_and_costs_nothing():
    step = drive(*TO_RUNNING, m.RestartRequested(reason="a restart was asked for"))
    assert names(step) == ["PrintLine", "StopWorkers"]
    step = drive(m.WorkersStopped(), m.JoinAllowed(), state=step.state)
    step = drive(m.RoundFormed(round=make_round(1)), m.StartAllowed(), state=step.state)
    assert (step.commands[0].restart_count, step.commands[0].membership_changes) == (0, 0)
    assert step.state.ledger.history == ()


def test_restart_that_was_asked_for_is_told_to_the_run():
    step = drive(m.StartRequested(control=True), *TO_RUNNING[1:], m.RestartRequested(reason="asked"))
    assert names(step) == ["RequestRestart", "PrintLine", "StopWorkers", "WatchRound"]
    # What the run then says is what is being done already.
    heard = drive(m.RoundChanged(change=Decided(decision=Restart(rule="asked"))), state=step.state)
    assert (heard.state.then, names(heard)) == (step.state.then, ["WatchRound"])
    # A verdict that came first wins.
    over = drive(m.RoundChanged(change=Decided(decision=Stop(reason="over"))), state=step.state)
    assert isinstance(over.state.then, End)


def test_restart_that_was_asked_for_elsewhere_is_said_and_costs_nothing():
    change = Decided(decision=Restart(rule="a restart was requested on node b"))
    step = drive(m.StartRequested(control=True), *TO_RUNNING[1:], m.RoundChanged(change=change))
    assert names(step) == ["PrintLine", "StopWorkers", "WatchRound"]
    assert "requested on node b" in step.commands[0].text
    assert (step.state.ledger.restart_count, step.state.ledger.history) == (0, ())


def test_restart_is_not_begun_where_no_worker_runs_or_a_failure_comes_first():
    asked = m.RestartRequested(reason="asked")
    deciding = drive(*TO_RUNNING, m.WorkerExited(exit=make_exit(1, 7))).state
    for state in (deciding, failed_with(Restart()).state, drive(m.StartRequested()).state):
        assert drive(asked, state=state).state is state
    waits = drive(
        m.StartRequested(control=True), *TO_RUNNING[1:], *(m.WorkerExited(exit=make_exit(r, 0)) for r in range(WORKERS))
    )
    assert drive(asked, state=waits.state) == Step(state=waits.state, reason="no worker of this node runs")


def test_stop_signal_during_a_restart_turns_it_into_an_end():
    stopping = failed_with(Restart()).state
    told = drive(m.StopRequested(signum=15), state=stopping)
    assert told.commands == (m.NoneMayLeave(), m.AnnounceDrain(signum=15))
    step = drive(m.WorkersStopped(), m.RendezvousLeft(), state=told.state)
    assert step.state.outcome.exit_code == 143


def test_stop_signal_when_all_workers_have_finished_announces_nothing():
    done = drive(*TO_RUNNING, *(m.WorkerExited(exit=make_exit(rank, 0)) for rank in range(WORKERS)))
    assert names(done) == ["StopWorkers"]
    assert names(drive(m.StopRequested(signum=15), state=done.state)) == []


def test_stop_signal_after_a_final_failure_keeps_the_failure():
    stopping = failed_with(Stop(reason="no budget")).state
    step = drive(m.StopRequested(signum=15), m.WorkersStopped(), m.RendezvousLeft(), state=stopping)
    assert step.state.outcome.exit_code == 7


@pytest.mark.parametrize("change", [NodesWaiting(count=1), MemberLost(node_id="b")])
def test_membership_change_begins_a_new_round_and_costs_no_restart(change):
    step = drive(*TO_RUNNING, m.RoundChanged(change=change), m.WorkersStopped(), m.JoinAllowed())
    step = drive(m.RoundFormed(round=make_round(1)), m.StartAllowed(), state=step.state)
    assert (step.commands[0].restart_count, step.commands[0].membership_changes) == (0, 1)


def test_newcomers_wait_once_workers_have_begun_to_finish():
    step = drive(*TO_RUNNING, m.WorkerExited(exit=make_exit(0, 0)), m.RoundChanged(change=NodesWaiting(count=1)))
    assert isinstance(step.state, Running)
    assert names(step) == ["WatchRound"]


@pytest.mark.parametrize(
    ("change", "state", "commands"),
    [
        (RendezvousClosed(), Running, []),
        (Suspended(reason="store unreachable"), Running, ["WatchRound"]),
        (Resumed(), Running, ["WatchRound"]),
        (Decided(decision=Restart()), Stopping, ["StopWorkers"]),
        (Decided(decision=Stop(reason="over")), Stopping, ["StopWorkers"]),
    ],
)
def test_other_round_changes(change, state, commands):
    step = drive(*TO_RUNNING, m.RoundChanged(change=change))
    assert isinstance(step.state, state)
    assert names(step) == commands


def test_failed_rendezvous_ends_with_its_exit_code_and_an_unneeded_node_with_zero():
    joining = drive(m.StartRequested(), m.JoinAllowed()).state
    assert drive(m.RendezvousFailed(summary="nobody came"), state=joining).state.outcome.exit_code == 4
    step = drive(m.RendezvousFailed(summary="unused spare", exit_code=0), state=joining)
    assert step.state.outcome.ending is AgentEnd.SUCCEEDED


def test_leaving_does_not_wait_for_ever():
    leaving = drive(m.StartRequested(), m.JoinAllowed(), m.StopRequested(signum=15)).state
    assert isinstance(leaving, Leaving)
    assert isinstance(drive(m.TimerFired(name="leave"), state=leaving).state, Ended)


class Histories(RuleBasedStateMachine):
    """Plays a loop that answers commands honestly, in random order, with failures, signals and membership changes."""

    control = gathers = stands_aside = False
    changes = (NodesWaiting(count=1), MemberLost(node_id="x"), Suspended(reason="s"), Resumed())

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.watching = False
        self.reported_done = False
        self.state = Created()
        self.alive = set()
        self.owed = []
        self.rounds = 0
        self.stops = 0
        self.stop_ladder = self.may_leave = False
        self.spawned_after_stop = False
        self.aside = False
        self.give(
            m.StartRequested(
                control=self.control,
                gathers=self.gathers,
                stop_signals=STOP_SIGNALS,
                stands_aside=self.stands_aside,
                join_timeout_s=30.0,
            )
        )

    def give(self, event):
        before = self.state
        self.event = event
        step = advance(before, event, now_s=self.now_s)
        rule_ = TABLE[type(before)][type(event)]
        if isinstance(rule_, Handled):
            assert type(step.state) in rule_.to, (before, event)
        else:
            assert step.state is before
        self.state = step.state
        if not isinstance(self.state, Deciding):
            # The loop drops late answers, of the policy and of an examination that waited for the run's word.
            self.owed = [owed for owed in self.owed if not isinstance(owed, (Failure, m.Examined))]
        for command in step.commands:
            self.perform(command)

    def perform(self, command):
        match command:
            case m.AskToJoin():
                self.owed.append(m.JoinAllowed())
            case m.StandAside():
                assert self.stands_aside
                assert not self.alive, "it has workers"
                self.watching, self.aside = False, True
            case m.JoinRendezvous():
                assert not self.alive, "two rounds at once"
                self.watching = self.aside = False
                self.owed.append(m.RoundFormed(round=make_round(self.rounds)))
                self.rounds += 1
            case m.AskToStart():
                self.owed.append(m.StartAllowed())
            case m.SpawnWorkers():
                assert not self.alive, "two rounds at once"
                assert not self.stops, "a spawn after a stop signal"
                self.alive = set(range(WORKERS))
                self.stop_ladder = self.reported_done = False
                self.owed.append(m.WorkersSpawned())
            case m.StopWorkers(may_leave=may_leave):
                assert not self.stop_ladder, "two stop orders at once"
                self.stop_ladder, self.may_leave = True, may_leave
            case m.NoneMayLeave():
                assert self.stop_ladder, "nothing to leave"
                self.may_leave = False
            case m.ShortenGrace():
                assert self.stop_ladder, "nothing to hurry"
            case m.PublishDecision() | m.OrderStop():
                assert not self.stop_ladder, "the run is told first"
            case m.ReportEvidence(final=final):
                assert not (final and self.alive), "not all has been seen"
            case m.DecideAlone():
                assert not self.alive
                self.owed.append(make_failure(0))
            case m.ReportDone():
                assert not self.alive
                self.reported_done = True
            case m.WatchRound():
                self.watching = True
            case m.Examine():
                assert self.state.exits
                self.owed.append(m.Examined(failure=make_failure(self.state.exits[0].local_rank)))
            case m.AskPolicy(failure=failure):
                self.owed.append(failure)
            case m.LeaveRendezvous():
                assert not self.alive, "left with workers alive"
                self.watching = False
                self.owed = [m.RendezvousLeft()]

    @precondition(lambda self: self.owed)
    @rule(
        decision=st.sampled_from([Restart(), Restart(delay_s=1.0), Stop(reason="r"), Ignore()]),
        refuses=st.sampled_from([False, False, False, True]),
    )
    def answer(self, decision, refuses):
        owed = self.owed.pop(0)
        if refuses and isinstance(owed, m.JoinAllowed):
            owed = m.JoinRefused(hook="gate", reason="hot")
        elif refuses and isinstance(owed, m.StartAllowed):
            owed = m.StartRefused(hook="gate", reason="hot")
        self.give(m.DecisionMade(failure=owed, decision=decision) if isinstance(owed, Failure) else owed)

    @precondition(lambda self: self.alive and not isinstance(self.state, Starting))
    @rule(data=st.data(), code=st.sampled_from([0, 0, 7, -9, -15, 143]))
    def worker_ends(self, data, code):
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(rank)
        self.give(m.WorkerExited(exit=make_exit(rank, code)))

    @precondition(lambda self: self.alive and isinstance(self.state, (Running, Deciding, Stopping)))
    @rule(data=st.data())
    def worker_hangs(self, data):
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.give(m.HangFound(failure=make_failure(rank, failure_class=FailureClass.HANG)))

    @precondition(lambda self: self.stop_ladder)
    @rule()
    def ladder_ends(self):
        self.alive.clear()
        self.stop_ladder = False
        self.give(m.WorkersStopped())

    @precondition(lambda self: isinstance(self.state, (Waiting, Refused)))
    @rule()
    def timer(self):
        self.now_s += 5.0
        self.give(m.TimerFired(name={Waiting: "backoff", Refused: "gate"}[type(self.state)]))

    @precondition(lambda self: self.aside and isinstance(self.state, (Refused, Gating)))
    @rule()
    def there_is_no_more_use_in_waiting(self):
        self.give(m.RendezvousFailed(summary="too few nodes", exit_code=1, refused=True))

    @rule(
        signum=st.sampled_from([2, 15]), later_s=st.sampled_from([0.1, 0.6]), grace_s=st.sampled_from([None, None, 1.0])
    )
    def stop(self, signum, later_s, grace_s):
        self.now_s += later_s
        self.stops += 1
        self.give(m.StopRequested(signum=signum, grace_s=grace_s))

    @rule()
    def restart_is_asked_for(self):
        restarts = self.restart_count()
        self.give(m.RestartRequested(reason="asked"))
        assert self.restart_count() == restarts

    def restart_count(self):
        return self.state.ledger.restart_count

    @precondition(lambda self: isinstance(self.state, (Running, Deciding, Stopping)) or self.watching)
    @rule(data=st.data())
    def round_changes(self, data):
        change = data.draw(st.sampled_from(self.changes))
        self.watching = False
        self.give(m.RoundChanged(change=change))

    @invariant()
    def workers_exist_only_where_the_state_says_so(self):
        if self.alive:
            assert isinstance(self.state, (Starting, Running, Deciding, Stopping))
        if isinstance(self.state, Ended) and self.stops and self.state.outcome.ending is AgentEnd.STOPPED:
            assert self.state.outcome.exit_code in (130, 143)

    @invariant()
    def something_is_always_on_its_way(self):
        if isinstance(self.state, (Gating, Joining, Preparing, Starting, Deciding, Leaving)):
            assert self.owed, self.state
        if isinstance(self.state, Refused):
            assert self.aside == self.stands_aside
        if isinstance(self.state, Stopping):
            assert self.stop_ladder

    @invariant()
    def workers_may_leave_only_if_a_round_can_follow(self):
        if isinstance(self.state, Stopping) and isinstance(self.state.then, End):
            assert not self.may_leave


class RunHistories(Histories):
    """The same with a rendezvous that decides for the whole run."""

    control = True
    changes = (
        RoundEnded(reason="a node was lost", lost=("b",)),
        RoundEnded(reason="cut off", stop_within_s=0.5),
        Decided(decision=Restart(), failure=make_failure(7)),
        Decided(decision=Restart(delay_s=2.0)),
        Decided(decision=Stop(reason="no budget"), failure=make_failure(7, exit_code=9)),
        Decided(decision=Stop(reason="too many changes")),
        Decided(decision=Stop(reason="all workers finished", outcome="done")),
        Suspended(reason="s"),
        Resumed(),
        RendezvousClosed(),
    )

    @invariant()
    def what_the_run_decides_can_be_heard(self):
        states = (Preparing, Starting, Running, Stopping)
        states = (*states, Awaiting)
        if isinstance(self.state, states) and self.state.ledger.control:
            assert self.watching, self.state

    @invariant()
    def nobody_waits_for_the_run_without_having_told_it(self):
        if isinstance(self.state, Running) and not self.state.alive:
            assert self.reported_done


class GatheringHistories(RunHistories):
    """The same where nodes are stopped first, and it is decided then; a node can wait beside a round."""

    gathers = stands_aside = True
    changes = (
        *RunHistories.changes,
        StopOrdered(reason="exit code 7", by="b"),
        StopOrdered(reason="exit code 7", by="b"),
        Undecided(reason="the store is away"),
        Undecided(reason="the store is gone", final=True),
    )

    @invariant()
    def nobody_acts_on_what_it_would_have_decided(self):
        if isinstance(self.state, Stopping) and isinstance(self.state.then, Await):
            assert self.state.incident is None


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestRunHistories = RunHistories.TestCase
TestRunHistories.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestGatheringHistories = GatheringHistories.TestCase
TestGatheringHistories.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
