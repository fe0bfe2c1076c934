"""A hook that refuses: its node stays out and is asked again; nothing is decided, and nothing counted."""

import pytest

from elastic_core import messages as m
from elastic_core.agent.machine.states import Created, Gating, Joining, Leaving, Preparing, Refused, Running
from elastic_core.agent.machine.table import advance
from elastic_core.types import Decided, Failure, FailureClass, Restart, Round, RoundEnded, Stop

ROUND = Round(
    index=3, token=4, nonce="n", node_rank=0, node_count=2, local_world_size=1, base_rank=0, world_size=2,
    role="default", role_base_rank=0, role_world_size=2, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip
HOT = {"hook": "hook 'gate' (acme 1.0)", "reason": "GPU 3 is hot"}
STORE = m.StartRequested(control=True, gathers=True, stands_aside=True)
ALONE = m.StartRequested(join_timeout_s=30.0)
TO_START = (m.JoinAllowed(), m.RoundFormed(round=ROUND))
TIMER = m.TimerFired(name="gate")


def drive(*events, state=None, now_s=0.0):
    """Advance over events; return the last step."""
    state = Created() if state is None else state
    for event in events:
        step = advance(state, event, now_s=now_s)
        state = step.state
    return step


def names(step):
    return [type(command).__name__ for command in step.commands]


def pauses(begin, *before, refusal, times, spread=0.0):
    """Return how long each of `times` refusals is waited for, the hook asked at once when a wait is over."""
    step, now_s, found = drive(begin, *before), 0.0, []
    for _ in range(times):
        step = drive(refusal, state=step.state, now_s=now_s)
        if not isinstance(step.state, Refused):
            break
        (timer,) = [command for command in step.commands if isinstance(command, m.SetTimer)]
        found.append(timer.delay_s)
        now_s += timer.delay_s
        step = drive(TIMER, state=step.state, now_s=now_s)
    return found, step


def test_a_node_whose_join_is_refused_stands_aside_says_why_and_asks_again():
    step = drive(STORE, m.JoinRefused(**HOT))
    aside, line, timer = step.commands
    assert aside.absence.text == "hook 'gate' (acme 1.0) refused: GPU 3 is hot"
    assert "this node stays out: hook 'gate' (acme 1.0) refused: GPU 3 is hot" in line.text
    assert (timer.name, timer.delay_s) == ("gate", 2.0)
    asks = drive(TIMER, state=step.state, now_s=2.0)
    assert asks.commands == (m.AskToJoin(round_index=0),)
    again = drive(m.JoinRefused(**HOT), state=asks.state, now_s=2.0)
    assert names(again) == ["StandAside", "SetTimer"]  # people know it; the store has how long it lasts
    other = drive(m.JoinRefused(hook="hook 'gate' (acme 1.0)", reason="GPU 4 is hot"), state=asks.state, now_s=2.0)
    assert names(other) == ["StandAside", "PrintLine", "SetTimer"]


def test_a_node_whose_start_is_refused_leaves_its_round_and_asks_about_it_before_it_joins_another():
    step = drive(STORE, *TO_START, m.StartRefused(**HOT))
    assert names(step) == ["StandAside", "PrintLine", "SetTimer"]
    asks = drive(TIMER, state=step.state, now_s=2.0)
    assert asks.commands == (m.AskToJoin(round_index=4, refused=ROUND),)
    still = drive(m.JoinRefused(**HOT), state=asks.state, now_s=2.0)
    assert still.state.round == ROUND
    joins = drive(m.JoinAllowed(), state=asks.state, now_s=65.0)
    assert names(joins) == ["PrintLine", "JoinRendezvous"]
    assert joins.commands[0].text == "no hook refuses any more, after 1 min 5 s: this node joins"
    assert isinstance(joins.state, Joining)


def test_nothing_is_on_the_books_of_a_refusal():
    for before, refusal in (((), m.JoinRefused(**HOT)), (TO_START, m.StartRefused(**HOT))):
        ledger = drive(STORE, *before, refusal).state.ledger
        assert (ledger.restart_count, ledger.membership_changes, ledger.history) == (0, 0, ())


def test_a_hook_is_asked_again_less_and_less_often_and_each_node_at_other_times():
    refusal = m.JoinRefused(**HOT)
    found, _ = pauses(STORE, refusal=refusal, times=8)
    assert found == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    spread = m.StartRequested(control=True, gathers=True, stands_aside=True, spread=0.6)
    found, _ = pauses(spread, refusal=refusal, times=6)
    assert found == pytest.approx([1.6, 3.2, 6.4, 12.8, 25.6, 48.0])


@pytest.mark.parametrize(("wanted_s", "pause_s"), [(300.0, 300.0), (0.0, 1.0), (1e9, 3600.0)])
def test_a_hook_may_say_when_it_wants_to_be_asked_again(wanted_s, pause_s):
    for kind, before in ((m.JoinRefused, ()), (m.StartRefused, TO_START)):
        found, _ = pauses(STORE, *before, refusal=kind(**HOT, again_s=wanted_s), times=1)
        assert found == [pause_s]


def test_a_start_that_is_refused_round_after_round_is_asked_about_less_and_less_often_until_workers_run():
    step, found = drive(STORE), []
    for turn in range(3):
        step = drive(*TO_START, m.StartRefused(**HOT), state=step.state, now_s=100.0 * turn)
        found.append(step.commands[-1].delay_s)
        step = drive(TIMER, state=step.state, now_s=100.0 * turn)
    assert found == [2.0, 4.0, 8.0]
    runs = drive(*TO_START, m.StartAllowed(), m.WorkersSpawned(), state=step.state)
    assert isinstance(runs.state, Running)
    assert runs.state.ledger.gates.count == 0


@pytest.mark.parametrize("before", [(), TO_START], ids=["join", "start"])
def test_where_no_other_node_can_go_on_the_hook_is_asked_until_the_join_timeout(before):
    refusal = m.StartRefused(**HOT) if before else m.JoinRefused(**HOT)
    found, step = pauses(ALONE, *before, refusal=refusal, times=20)
    assert found == [2.0, 4.0, 8.0, 16.0]
    assert sum(found) == 30.0
    assert isinstance(step.state, Leaving)
    record = step.commands[0]
    assert record.failure.failure_class is FailureClass.HEALTH_CHECK
    assert record.failure.summary == "hook 'gate' (acme 1.0) refused: GPU 3 is hot"
    assert record.decision.reason == "asked 5 times in 30 s (--join-timeout)"
    assert step.state.outcome.exit_code == 1


def test_where_no_other_node_can_go_on_a_start_is_asked_about_in_its_own_round():
    step = drive(ALONE, *TO_START, m.StartRefused(**HOT), TIMER)
    assert isinstance(step.state, Preparing)
    assert step.commands == (m.AskToStart(round=ROUND, restart_count=0),)
    assert names(drive(m.StartAllowed(), state=step.state)) == ["SpawnWorkers"]


@pytest.mark.parametrize("asking", [False, True])
def test_a_run_that_fails_for_want_of_the_refused_node_fails_as_a_health_check(asking):
    state = drive(STORE, m.JoinRefused(**HOT), *([TIMER] if asking else [])).state
    assert isinstance(state, Gating if asking else Refused)
    step = drive(m.RendezvousFailed(summary="b is out: hot", exit_code=1, refused=True), state=state)
    (record,) = [command for command in step.commands if isinstance(command, m.RecordIncident)]
    assert (record.failure.failure_class, record.failure.exit_code) == (FailureClass.HEALTH_CHECK, 1)
    ends = drive(m.RendezvousFailed(summary="all workers finished", exit_code=0), state=state)
    assert ends.state.outcome.exit_code == 0


def test_a_node_that_waits_beside_its_round_is_told_nothing_of_it():
    state = drive(STORE, *TO_START, m.StartRefused(**HOT)).state
    for change in (RoundEnded(reason="b left"), Decided(decision=Stop(reason="enough")), Decided(decision=Restart())):
        step = drive(m.RoundChanged(change=change), state=state)
        assert (step.state, step.commands) == (state, ())


def test_a_stop_signal_ends_the_waiting():
    step = drive(STORE, m.JoinRefused(**HOT), m.StopRequested(signum=15))
    assert names(step) == ["AnnounceDrain", "CancelTimer", "CancelRendezvous", "SetTimer", "LeaveRendezvous"]
    assert step.state.outcome.exit_code == 143


def test_a_node_without_a_place_ends_with_what_the_run_has_failed_of():
    failure = Failure(
        failure_class=FailureClass.EXIT, summary="exit code 7", node_id="a", round_index=4, at_s=9.0, uptime_s=8.0,
        exit_code=7,
    )  # fmt: skip
    decision = Stop(reason="no budget", rule="max-restarts")
    decided = Decided(decision=decision, failure=failure, evidence="{}")
    over = m.RendezvousFailed(summary="run 'r' has failed", exit_code=7, decided=decided)
    joining = drive(STORE, m.JoinAllowed()).state
    for state in (joining, drive(STORE, m.JoinRefused(**HOT)).state):
        step = drive(over, state=state)
        (record,) = [command for command in step.commands if isinstance(command, m.RecordIncident)]
        assert (record.failure, record.decision, record.evidence) == (failure, decision, "{}")
        assert step.state.outcome.exit_code == 7
