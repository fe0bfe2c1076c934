"""What is held before the stop ladder, and how it ends: on a clock that the test moves."""

import pytest

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.stop_ladder import ANSWER_S, MOST_HOLD_S, StopLadder

PLANNED = m.StopWorkers(signum=15, reason="b joined", planned=True)


class Timer:
    def __init__(self, at_s, call):
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self):
        self.cancelled = True


class Node:
    """A node's workers, its clock, and what hooks and people get."""

    def __init__(self, *, grace_s=30.0, option_s=0.0, **holds):
        self.now_s, self.alive, self.raised_s = 100.0, frozenset({0, 1}), {}
        self.stops, self.moments, self.lines, self.timers, self.killed, self.forbidden = [], [], [], [], 0, 0
        self.ladder = StopLadder(
            workers=self,
            log=self,
            feed=self,
            longest_grace_s=grace_s,
            longest_option_s=option_s,
            ask_holds=lambda answer: answer(holds),
            call_later=self.call_later,
            now_s=lambda: self.now_s,
        )

    def call_later(self, delay_s, call):
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def pass_time(self, seconds):
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.at_s <= self.now_s and not timer.cancelled]:
            self.timers.remove(timer)
            timer.call()

    def stop(self, signum, *, grace_s, may_leave=False, planned=False):
        self.stops.append((signum, grace_s))
        self.may_leave = may_leave, planned

    def forbid_leaving(self):
        self.forbidden += 1

    def kill(self):
        self.killed += 1

    def notice(self, text):
        self.lines.append(text)

    def publish(self, moment):
        self.moments.append(type(moment))


@pytest.mark.parametrize(
    ("command", "holds"),
    [
        (m.StopWorkers(signum=15, reason="a worker failed"), {"save": 5.0}),
        (PLANNED, {}),
        (PLANNED, {"save": 0.0}),
        (m.StopWorkers(signum=15, reason="cut off", planned=True, grace_s=0.0), {"save": 5.0}),
    ],
)
def test_stop_that_nobody_may_or_wants_to_hold_begins_at_once(command, holds):
    node = Node(**holds)
    node.ladder.stop(command, 3)
    assert node.stops == [(15, 30.0 if command.grace_s is None else 0.0)]
    assert node.moments == [moments.WorkersStopping]


def test_stop_of_workers_that_have_ended_is_not_held():
    node = Node(save=5.0)
    node.alive = frozenset()
    node.ladder.stop(PLANNED, 3)
    assert len(node.stops) == 1


def test_planned_stop_is_held_until_every_hook_that_holds_it_lets_go():
    node = Node(save=5.0, log=2.0)
    node.ladder.stop(PLANNED, 3)
    assert (node.stops, node.moments) == ([], [moments.StopPlanned])
    node.ladder.release("somebody else")
    node.ladder.release("save")
    assert node.stops == []
    node.pass_time(1.0)
    node.ladder.release("log")
    assert node.stops == [(15, 30.0)]
    node.ladder.release("log")
    node.pass_time(60.0)
    assert len(node.stops) == 1


def test_hook_that_never_lets_go_holds_it_for_its_time():
    node = Node(save=5.0, log=2.0)
    node.ladder.stop(PLANNED, 3)
    node.pass_time(4.9)
    assert node.stops == []
    node.pass_time(0.1)
    assert node.stops == [(15, 30.0)]


def test_nothing_is_held_for_workers_that_have_all_ended():
    node = Node(save=5.0)
    node.ladder.stop(PLANNED, 3)
    node.alive = frozenset({1})
    node.ladder.worker_ended()
    assert node.stops == []
    node.alive = frozenset()
    node.ladder.worker_ended()
    assert len(node.stops) == 1


def test_who_has_a_deadline_saves_within_it_too():
    node = Node(save=20.0)
    node.ladder.stop(m.StopWorkers(signum=15, reason="drain", drain=True, planned=True, grace_s=8.0), 3)
    assert node.lines == ["SIGTERM: stopping 2 workers, at most 8 s; a second signal kills"]
    node.pass_time(6.0)
    node.ladder.release("save")
    assert node.stops == [(15, 2.0)]


def test_drain_says_how_long_it_may_take_in_all():
    node = Node(save=20.0)
    node.ladder.stop(m.StopWorkers(signum=2, reason="stopped by signal 2", drain=True, planned=True), 3)
    assert node.lines == ["SIGINT: stopping 2 workers, at most 50 s; a second signal kills"]
    node.pass_time(5.0)
    node.ladder.announce_drain(15)
    assert node.lines[1] == "SIGTERM: stopping 2 workers, at most 45 s; a second signal kills"
    node.ladder.release("save")
    assert node.stops == [(2, 30.0)]


def test_lease_that_ends_ends_the_hold():
    node = Node(save=20.0)
    node.ladder.stop(PLANNED, 3)
    node.ladder.shorten(1.5, at_once=True)
    assert node.stops == [(15, 1.5)]
    node.ladder.release("save")
    assert len(node.stops) == 1


def test_deadline_that_comes_while_workers_save_leaves_them_the_time_until_then():
    node = Node(save=20.0)
    node.ladder.stop(PLANNED, 3)
    node.pass_time(5.0)
    node.ladder.shorten(60.0, at_once=False)
    node.pass_time(14.0)
    assert node.stops == []
    node.pass_time(1.0)
    assert node.stops == [(15, 30.0)]


def test_deadline_that_comes_before_the_save_timeout_ends_the_hold():
    node = Node(save=20.0)
    node.ladder.stop(PLANNED, 3)
    node.ladder.shorten(4.0, at_once=False)
    node.pass_time(3.0)
    assert node.stops == []
    node.ladder.release("save")
    assert node.stops == [(15, 1.0)]
    node.pass_time(60.0)
    assert len(node.stops) == 1


def test_second_signal_kills_those_that_save():
    node = Node(save=20.0)
    node.ladder.stop(PLANNED, 3)
    node.ladder.kill()
    node.pass_time(60.0)
    assert (node.killed, node.stops) == (1, [])


class Late(Node):
    """A node whose hooks answer when the test has them answer."""

    def __init__(self, **more):
        super().__init__(**more)
        self.answers = []
        self.ladder._ask_holds = self.answers.append


DRAIN = m.StopWorkers(signum=15, reason="stopped by signal 15", planned=True, drain=True)


def test_a_stop_waits_for_the_answer_of_hooks_and_no_longer():
    node = Late()
    node.ladder.stop(DRAIN, 3)
    node.pass_time(ANSWER_S - 0.1)
    assert (node.stops, node.lines) == ([], [])
    node.pass_time(0.2)
    assert node.stops == [(15, 30.0)]
    assert node.lines == ["SIGTERM: stopping 2 workers, at most 30 s; a second signal kills"]
    node.answers[0]({"save": 5.0})  # too late
    assert len(node.stops) == 1
    assert node.moments == [moments.Draining, moments.WorkersStopping]


def test_a_second_signal_kills_while_hooks_have_not_answered():
    node = Late()
    node.ladder.stop(DRAIN, 3)
    node.pass_time(1.0)
    node.ladder.kill()
    node.answers[0]({"save": 5.0})
    node.pass_time(60.0)
    assert (node.killed, node.stops) == (1, [])
    assert node.lines[-1] == "second signal: killing the workers"
    assert moments.Draining in node.moments


def test_the_whole_grace_period_is_left_after_a_late_answer():
    node = Late()
    node.ladder.stop(DRAIN, 3)
    node.pass_time(4.0)
    node.answers[0]({"save": 5.0})
    assert node.lines == ["SIGTERM: stopping 2 workers, at most 35 s; a second signal kills"]
    node.pass_time(5.0)
    assert node.stops == [(15, 30.0)]


def test_what_a_lost_lease_leaves_is_not_prolonged_by_a_late_answer():
    node = Late()
    node.ladder.stop(PLANNED, 3)
    node.pass_time(1.0)
    node.ladder.shorten(3.0, at_once=False)
    node.pass_time(1.0)
    node.answers[0]({"save": 500.0})
    node.pass_time(2.1)
    assert node.stops == [(15, 0.0)]
    again = Late()
    again.ladder.stop(PLANNED, 3)
    again.ladder.shorten(3.0, at_once=True)
    again.answers[0]({"save": 500.0})
    assert again.stops == [(15, 3.0)]


def test_a_stop_of_workers_that_end_before_hooks_have_answered_goes_on():
    node = Late()
    node.ladder.stop(DRAIN, 3)
    node.alive = frozenset()
    node.ladder.worker_ended()
    node.answers[0]({"save": 5.0})
    assert len(node.stops) == 1


def test_a_hold_without_end_is_bounded_by_name():
    node = Node(grace_s=3.0, save=1e9)
    node.ladder.stop(DRAIN, 3)
    assert node.lines == [
        "hook 'save': hold_s is 1e+09; it holds this stop for 3600 s at most",
        "SIGTERM: stopping 2 workers, at most 3603 s (held by hook 'save'); a second signal kills",
    ]
    node.pass_time(MOST_HOLD_S)
    assert node.stops == [(15, 3.0)]


def test_a_longer_time_that_an_option_of_a_hook_was_given_is_held_in_full():
    node = Node(grace_s=3.0, option_s=7200.0, save=7200.0)
    node.ladder.stop(DRAIN, 3)
    assert node.lines == ["SIGTERM: stopping 2 workers, at most 7203 s (held by hook 'save'); a second signal kills"]
    node.pass_time(7199.0)
    assert node.stops == []
    node.pass_time(1.0)
    assert node.stops == [(15, 3.0)]


def test_a_grace_period_that_is_longer_allows_a_longer_hold():
    node = Node(grace_s=7200.0, save=7200.0)
    node.ladder.stop(DRAIN, 3)
    assert node.lines == ["SIGTERM: stopping 2 workers, at most 14400 s; a second signal kills"]
