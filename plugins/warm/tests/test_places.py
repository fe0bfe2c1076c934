"""The machine of a worker that may be kept: every wait has a limit, and each process goes down the ladder once."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elastic_warm import places as p
from elastic_warm.places import Phase, advance


class Play:
    """Gives events to the machine, and keeps its state and timer."""

    def __init__(self):
        self.state, self.timer_s = p.WorkerState(), None

    def give(self, event):
        step = advance(self.state, event)
        self.state = step.state
        if not step.same_timer:
            self.timer_s = step.timer_s
        return list(step.actions)

    def report(self, kind, round_=0, **more):
        return self.give(p.Reported(kind=kind, round=round_, **more))

    def ask(self, round_=0, within_s=5.0, *, planned=False):
        return self.give(p.LeaveWanted(round=round_, within_s=within_s, planned=planned))

    def until(self, phase):
        """Bring a worker to a phase by the usual way."""
        self.report("hello", version=1)
        if phase is not Phase.OUTSIDE:
            self.report("entered")
            self.report("stepped")
        if phase in (Phase.ASKED, Phase.KEPT, Phase.PLACED):
            self.ask()
        if phase in (Phase.KEPT, Phase.PLACED):
            self.report("left")
        if phase is Phase.PLACED:
            self.give(p.PlaceGiven(round=1, within_s=5.0))
        assert self.state.phase is phase
        return self


def at(phase):
    return Play().until(phase)


def test_the_way_from_one_round_to_the_next():
    play = at(Phase.INSIDE)
    (sent,) = play.ask(planned=True)
    assert sent.message == {"kind": "leave", "round": 0, "within_s": 5.0, "planned": True}
    assert play.timer_s == 5.0
    assert play.report("left") == [p.HasLeft()]
    assert (play.state.phase, play.timer_s) == (Phase.KEPT, p.LONGEST_KEPT_S)
    assert play.give(p.PlaceGiven(round=1, within_s=5.0)) == []
    assert (play.state.phase, play.state.round, play.timer_s) == (Phase.PLACED, 1, 5.0)
    assert play.report("taken", 1) == []
    assert (play.state.phase, play.timer_s) == (Phase.INSIDE, None)


def test_a_worker_without_a_step_is_not_asked():
    play = Play()
    play.report("hello", version=1)
    play.report("entered")
    assert play.ask() == [p.Refused(reason="it has not completed a step")]


def test_one_that_completes_no_step_in_two_rounds_is_started_anew():
    play = at(Phase.PLACED)
    play.report("taken", 1)
    assert len(play.ask(1)) == 1, "the round before had a step"
    play.report("left", 1)
    play.give(p.PlaceGiven(round=2, within_s=5.0))
    play.report("taken", 2)
    assert play.ask(2) == [p.Refused(reason="it has completed no step in 2 rounds")]
    again = at(Phase.PLACED)
    again.report("taken", 1)
    again.report("stepped", 1)
    assert again.state.idle_rounds == 0


def test_one_that_a_signal_has_stopped_is_not_asked():
    wanted = p.LeaveWanted(round=0, within_s=5.0, planned=False, stopped=True)
    assert at(Phase.INSIDE).give(wanted) == [p.Refused(reason="it is stopped by a signal")]


@pytest.mark.parametrize("phase", [Phase.OUTSIDE, Phase.PLACED])
def test_one_outside_of_its_function_is_not_asked(phase):
    (refused,) = at(phase).ask(1)
    assert isinstance(refused, p.Refused)


def test_the_returned_and_the_unknown_need_no_line():
    play = at(Phase.INSIDE)
    play.report("returned")
    assert play.ask() == [p.Refused()]
    assert at(Phase.INSIDE).ask(7) == [p.Refused()], "another round"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (p.Reported(kind="stays", round=0, reason="thread 'loader' still runs"), "thread 'loader' still runs"),
        (p.Reported(kind="stays", round=0), "it gives no reason"),
        (p.Reported(kind="returned", round=0), "its function has returned"),
        (p.Late(), "it has not left in time"),
        (p.Disconnected(), "its connection has ended"),
    ],
)
def test_one_that_was_asked_and_stays_is_stopped_with_its_round_once(event, reason):
    play = at(Phase.ASKED)
    assert play.give(event) == [p.Stays(reason=reason)]
    assert play.give(event) in ([], [p.Kill()])
    assert play.report("left") == [], "it was signalled"


def test_a_report_of_another_round_counts_for_nothing():
    play = at(Phase.ASKED)
    assert play.report("left", 1) == []
    assert play.report("stays", 1) == []
    assert play.state.phase is Phase.ASKED
    assert play.timer_s == 5.0


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        (p.Disconnected(), Phase.KEPT),
        (p.Late(), Phase.KEPT),
        (p.Reported(kind="entered", round=1), Phase.KEPT),
        (p.Reported(kind="returned", round=0), Phase.KEPT),
        (p.PlaceRefused(reason="the command has changed"), Phase.KEPT),
        (p.Late(), Phase.PLACED),
    ],
)
def test_a_kept_worker_that_does_anything_else_is_killed(event, phase):
    play = at(phase)
    assert [type(action) for action in play.give(event)] == [p.Kill]
    assert play.state.phase is Phase.ENDING


def test_the_end_of_the_run_ends_a_kept_worker_and_kills_it_later():
    play = at(Phase.KEPT)
    assert play.give(p.EndWanted()) == [p.Send(message={"kind": "end"})]
    assert play.timer_s == p.END_S
    assert play.give(p.Late()) == [p.Kill()]
    for phase in (Phase.OUTSIDE, Phase.INSIDE, Phase.ASKED, Phase.PLACED):
        assert at(phase).give(p.EndWanted()) == [], "the stop sequence ends it"


def test_an_error_that_is_held_is_known():
    play = at(Phase.ASKED)
    play.report("held", error="RuntimeError: Connection closed by peer")
    assert play.state.held == "RuntimeError: Connection closed by peer"
    assert play.timer_s == 5.0
    play.report("left")
    play.give(p.PlaceGiven(round=1, within_s=1.0))
    assert play.state.held == ""


def test_another_version_of_the_protocol_has_no_part():
    play = Play()
    play.report("hello", version=2)
    play.report("entered")
    assert play.ask() == [p.Refused()]


class Histories(RuleBasedStateMachine):
    """Plays an agent that keeps to its part, and a worker that does what it likes."""

    def __init__(self):
        super().__init__()
        self.play = Play()
        self.index = 0
        self.stopping = self.waits = self.kept = self.gone = False

    def give(self, event):
        for action in self.play.give(event):
            match action:
                case p.HasLeft():
                    assert self.waits, "left without a request"
                    self.waits, self.kept = False, True
                case p.Stays():
                    assert self.waits, "it was not waited for"
                    self.waits, self.gone = False, True
                case p.Kill():
                    assert self.kept or self.gone or self.play.state.phase is Phase.ENDING
                    self.gone, self.kept = True, False
                case p.Refused():
                    assert self.stopping
                    self.gone = True
                case p.Send(message={"kind": "leave"}):
                    assert self.stopping
                    self.waits = True

    @rule(
        kind=st.sampled_from(["hello", "entered", "stepped", "returned", "held", "left", "stays", "taken", "?"]),
        shift=st.sampled_from([0, 0, 0, -1, 1]),
        version=st.sampled_from([1, 1, 1, 2]),
    )
    def report(self, kind, shift, version):
        self.give(p.Reported(kind=kind, round=self.index + shift, version=version))

    @precondition(lambda self: not self.stopping and not self.kept and not self.gone)
    @rule(within_s=st.floats(0, 10))
    def round_stops(self, within_s):
        self.stopping = True
        self.give(p.LeaveWanted(round=self.index, within_s=within_s, planned=False))
        assert self.waits or self.gone

    @precondition(lambda self: self.kept)
    @rule()
    def next_round(self):
        self.index += 1
        self.stopping = self.kept = False
        self.give(p.PlaceGiven(round=self.index, within_s=1.0))

    @precondition(lambda self: self.play.timer_s is not None)
    @rule()
    def timer(self):
        self.play.timer_s = None
        self.give(p.Late())
        assert not self.waits, "a wait without end"

    @rule(event=st.sampled_from([p.Disconnected(), p.EndWanted(), p.PlaceRefused(reason="x")]))
    def other(self, event):
        self.give(event)

    @invariant()
    def every_wait_has_a_limit(self):
        if self.waits or self.play.state.phase in (Phase.ASKED, Phase.PLACED):
            assert self.play.timer_s is not None
        if self.kept and self.play.state.phase is not Phase.ENDING:
            assert self.play.state.phase is Phase.KEPT
            assert self.play.timer_s is not None

    @invariant()
    def one_that_is_stopped_is_never_kept(self):
        assert not (self.gone and self.waits)
        if self.gone:
            assert self.play.state.phase not in (Phase.ASKED, Phase.KEPT)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
