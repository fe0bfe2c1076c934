"""The stop ladder on a clock that the test moves."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.processes import ladder as la
from elastic_core.processes.ladder import advance

TERM, INT, KILL = int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGKILL)
STRAY = la.Found(pid=900, pgid=900, start_ticks=1)


class Play:
    """Gives events to the ladder and keeps what it commands."""

    def __init__(self, *leaders, group=True):
        self.state = la.LadderState()
        self.now_s = 100.0
        for pid in leaders:
            self.give(la.LeaderStarted(pid=pid, group=group))

    def give(self, event, *, after_s=0.0):
        self.now_s += after_s
        step = advance(self.state, event, now_s=self.now_s)
        self.state = step.state
        return list(step.actions)

    def wake(self):
        assert self.state.due_s is not None
        self.now_s = max(self.now_s, self.state.due_s)
        return self.give(la.Woke())

    def stop(self, grace_s=30.0, signum=TERM, *, may_leave=False):
        return self.give(la.StopBegun(signum=signum, grace_s=grace_s, may_leave=may_leave))


def to_leader(pid, signum, group=True):
    return la.SignalLeader(pid=pid, signum=signum, group=group)


def test_all_workers_are_signalled_at_once_and_killed_when_the_grace_period_ends():
    play = Play(1, 2)
    assert play.stop(grace_s=30) == [to_leader(1, TERM), to_leader(2, TERM)]
    assert play.state.due_s == 130
    assert play.give(la.Woke(), after_s=29.9) == []
    assert play.wake() == [to_leader(1, KILL), to_leader(2, KILL)]


def test_the_ladder_ends_when_two_looks_find_nothing():
    play = Play(1, 2)
    play.stop()
    assert play.give(la.LeaderEnded(pid=1)) == []
    assert play.give(la.LeaderEnded(pid=2)) == [la.Look()]
    assert play.give(la.Looked()) == []
    assert play.state.due_s == play.now_s
    assert play.wake() == [la.Look()]
    assert play.give(la.Looked()) == [la.Finished()]
    assert play.state == la.LadderState()


def test_a_stop_with_no_worker_left_only_sweeps():
    assert Play().stop() == [la.Look()]


def test_a_worker_with_the_terminal_is_signalled_alone():
    play = Play(1, group=False)
    assert play.stop() == [to_leader(1, TERM, group=False)]
    assert play.give(la.LeaderEnded(pid=1, remnants=True)) == [la.Look()]


# --- workers that may leave


def test_workers_that_may_leave_get_no_signal_and_the_stop_ends_without_them():
    play = Play(1, 2)
    assert play.stop(may_leave=True) == []
    assert play.give(la.LeaderLeft(pid=1)) == []
    assert play.give(la.LeaderLeft(pid=2)) == [la.Look()]
    play.give(la.Looked())
    play.wake()
    assert play.give(la.Looked()) == [la.Finished()]


def test_a_worker_that_stays_is_signalled_at_once_and_keeps_its_grace_period():
    play = Play(1, 2, 3)
    play.stop(grace_s=30, may_leave=True)
    assert play.give(la.LeadersStay(pids=frozenset({1, 3})), after_s=2.0) == [to_leader(1, TERM), to_leader(3, TERM)]
    assert play.give(la.LeadersStay(pids=frozenset({1}))) == []
    play.give(la.LeaderLeft(pid=2))
    assert play.wake() == [to_leader(1, KILL), to_leader(3, KILL)]
    assert play.now_s == 130


def test_a_worker_that_answers_nothing_is_signalled_after_half_of_the_time():
    play = Play(1)
    play.stop(grace_s=30, may_leave=True)
    assert play.state.due_s == 115
    assert play.give(la.Woke(), after_s=14.9) == []
    assert play.wake() == [to_leader(1, TERM)]
    assert play.wake() == [to_leader(1, KILL)]
    assert play.now_s == 130


def test_one_without_a_grace_period_has_no_time_to_leave():
    play = Play(1)
    assert play.stop(grace_s=0, may_leave=True) == []
    assert play.wake() == [to_leader(1, KILL)]
    assert play.now_s == 100


@pytest.mark.parametrize("order", [la.KillOrdered(), la.StopBegun(signum=TERM, grace_s=1.0), la.LeadersStay()])
def test_a_kill_less_time_or_the_end_of_the_run_ends_the_leaving(order):
    play = Play(1, 2)
    play.stop(may_leave=True)
    play.give(la.LeaderLeft(pid=2))
    signum = KILL if isinstance(order, la.KillOrdered) else TERM
    assert play.give(order) == [to_leader(1, signum)]
    assert play.give(la.LeadersStay()) == []


def test_more_time_does_not_end_the_leaving():
    play = Play(1)
    play.stop(grace_s=10, may_leave=True)
    assert play.stop(grace_s=60) == []
    assert play.state.due_s == 105


def test_what_a_worker_leaves_behind_when_it_ends_while_it_may_leave_gets_the_signal_first():
    play = Play(1, 2)
    play.stop(may_leave=True)
    assert play.give(la.LeaderEnded(pid=1, remnants=True)) == [la.SignalRemnants(pgid=1, signum=TERM)]


def test_a_worker_may_end_while_it_leaves():
    play = Play(1, 2)
    play.stop(may_leave=True)
    assert play.give(la.LeaderEnded(pid=1)) == []
    assert play.give(la.LeadersStay(pids=frozenset({1}))) == []
    assert play.give(la.LeaderLeft(pid=2)) == [la.Look()]


# --- kill


def test_kill_cuts_the_grace_period_short():
    play = Play(1, 2)
    play.stop()
    play.give(la.LeaderEnded(pid=1, remnants=True), after_s=0.1)
    assert play.give(la.KillOrdered()) == [to_leader(2, KILL), la.SignalRemnants(pgid=1, signum=KILL)]
    assert play.give(la.KillOrdered()) == []
    assert play.give(la.LeaderEnded(pid=2, remnants=True)) == [la.SignalRemnants(pgid=2, signum=KILL), la.Look()]
    assert play.give(la.Looked(found=(STRAY,))) == [la.SignalStray(found=STRAY, signum=KILL)]


def test_kill_without_a_stop_is_a_stop():
    assert Play(1).give(la.KillOrdered()) == [to_leader(1, KILL)]
    assert Play(1).stop(signum=KILL) == [to_leader(1, KILL)]


def test_a_second_stop_shortens_and_never_lengthens():
    play = Play(1)
    play.stop(grace_s=30)
    assert play.stop(grace_s=60) == []
    assert play.state.due_s == 130
    assert play.stop(grace_s=5) == []
    assert play.state.due_s == 105


@pytest.mark.parametrize(("grace_s", "kill_after_s"), [(30, 1.0), (0.25, 0.25)])
def test_children_of_a_worker_that_ended_during_the_stop_get_little_time(grace_s, kill_after_s):
    play = Play(1, 2)
    play.stop(grace_s=grace_s)
    assert play.give(la.LeaderEnded(pid=1, remnants=True)) == []  # the group had the signal with its leader
    assert play.state.due_s == play.now_s + kill_after_s
    assert la.SignalRemnants(pgid=1, signum=KILL) in play.wake()


def test_children_of_a_worker_that_fails_are_ended_while_the_others_run_on():
    play = Play(1, 2)
    assert play.give(la.LeaderEnded(pid=1, remnants=True)) == [la.SignalRemnants(pgid=1, signum=TERM)]
    assert play.wake() == [la.SignalRemnants(pgid=1, signum=KILL)]
    assert play.now_s == 101
    assert play.state.due_s is None
    assert play.state.leaders == (la.Leader(pid=2),)


def test_strays_get_term_once_then_kill_after_a_second():
    play = Play(1)
    play.stop()
    play.give(la.LeaderEnded(pid=1))
    began_s = play.now_s
    assert play.give(la.Looked(found=(STRAY,))) == [la.SignalStray(found=STRAY, signum=TERM)]
    while play.now_s < began_s + 1:
        assert play.wake() == [la.Look()]
        actions = play.give(la.Looked(found=(STRAY,)))
    assert actions == [la.SignalStray(found=STRAY, signum=KILL)]
    assert play.now_s < began_s + 1.2
    late = la.Found(pid=901, pgid=901)
    play.wake()
    assert play.give(la.Looked(found=(late,))) == [la.SignalStray(found=late, signum=KILL)]


def test_a_remnant_seen_by_a_look_is_not_signalled_twice():
    play = Play(1)
    play.give(la.LeaderEnded(pid=1, remnants=True))
    play.stop()
    assert play.give(la.Looked(found=(la.Found(pid=5, pgid=1),))) == []


def test_a_pid_with_another_start_is_another_process():
    play = Play()
    play.stop()
    play.give(la.Looked(found=(STRAY,)))
    again = la.Found(pid=STRAY.pid, pgid=STRAY.pgid, start_ticks=2)
    assert play.give(la.Looked(found=(again,))) == [la.SignalStray(found=again, signum=TERM)]


def test_a_worker_that_kill_does_not_end_is_given_up_and_the_stop_goes_on():
    play = Play(1, 2)
    play.stop(grace_s=1)
    play.wake()
    play.give(la.LeaderEnded(pid=2))
    assert play.wake() == [la.GiveUpLeader(pid=1), la.Look()]
    assert play.now_s == 101 + la.GIVE_UP_S
    assert [found.pid for found in play.state.abandoned] == [1]
    play.give(la.Looked())
    play.wake()
    assert play.give(la.Looked()) == [la.Finished()]
    assert [found.pid for found in play.state.abandoned] == [1]  # the next round's looks must not wait for it either


def test_a_stray_that_kill_does_not_end_is_given_up():
    play = Play()
    play.stop()
    seen = play.give(la.Looked(found=(STRAY,)))
    while not any(isinstance(action, la.GiveUpStray) for action in seen):
        seen = play.wake()
        seen += play.give(la.Looked(found=(STRAY,)))
    assert play.now_s < 100 + 1 + la.GIVE_UP_S + 1
    assert play.state.abandoned == (STRAY,)


def test_a_fork_bomb_does_not_hold_the_stop_for_ever():
    play = Play()
    play.stop()
    pid, actions = 1000, []
    while la.Finished() not in actions:
        pid += 1
        actions = play.give(la.Looked(found=(la.Found(pid=pid, pgid=pid),)))
        if la.Finished() not in actions:
            play.wake()
    assert play.now_s < 100 + 1 + 2 * la.GIVE_UP_S + 1


def test_a_look_that_answers_too_late_is_ignored():
    play = Play(1)
    assert play.give(la.Looked(found=(STRAY,))) == []
    play.stop()
    assert play.give(la.Looked(found=(STRAY,))) == []


@settings(max_examples=200)
@given(st.data())
def test_every_stop_ends_in_bounded_time_whatever_the_processes_do(data):
    """Workers and strays end when they like or never; nothing is signalled that is known to be gone."""
    count = data.draw(st.integers(0, 4))
    play = Play(*range(1, count + 1))
    alive = set(range(1, count + 1))
    strays = {la.Found(pid=p, pgid=p) for p in data.draw(st.sets(st.integers(100, 103)))}
    grace_s = data.draw(st.floats(0, 60))
    may_leave = data.draw(st.booleans())
    todo, ended = play.stop(grace_s=grace_s, may_leave=may_leave), False
    leaving = set(alive) if may_leave else set()
    ordered_s = play.now_s
    killed = set()
    for _ in range(5000):
        for action in todo:
            match action:
                case la.SignalLeader(pid=pid, signum=signum):
                    assert pid in alive
                    leaving.discard(pid)
                    assert signum == TERM or play.now_s >= ordered_s + grace_s or killed == {"asked"}
                case la.Finished():
                    ended = True
                case _:
                    pass
        if ended:
            break
        if la.Look() in todo:
            assert not alive
            for stray in sorted(strays, key=lambda s: s.pid):
                if data.draw(st.booleans()):
                    strays.discard(stray)
            hidden = {found.pid for found in play.state.abandoned}
            todo = play.give(la.Looked(found=tuple(s for s in strays if s.pid not in hidden)))
            continue
        if alive and data.draw(st.booleans()):
            pid = data.draw(st.sampled_from(sorted(alive)))
            alive.discard(pid)
            if pid in leaving and data.draw(st.booleans()):
                todo = play.give(la.LeaderLeft(pid=pid))
                continue
            todo = play.give(la.LeaderEnded(pid=pid, remnants=data.draw(st.booleans())))
        elif not killed and data.draw(st.integers(0, 9)) == 0:
            killed.add("asked")
            todo = play.give(la.KillOrdered())
        elif leaving and data.draw(st.booleans()):
            todo = play.give(la.LeadersStay(pids=frozenset({min(leaving)})))
        else:
            todo = play.wake()
            alive -= {action.pid for action in todo if isinstance(action, la.GiveUpLeader)}
    assert ended
    assert play.now_s <= ordered_s + grace_s + 1 + 4 * la.GIVE_UP_S
    assert play.state.order is None
    assert play.state.leaders == ()
