"""The limit that a run learns from its steps, by tables and by properties."""

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_watch.beat_file import OpenSection
from elastic_watch.hangs import detector
from elastic_watch.hangs.auto_limit import NO_STEPS_S, AutoLimit
from elastic_watch.hangs.detector import Elsewhere, Limits, Sighting, Stall
from elastic_watch.hangs.learning import MOST_DOUBLED_S, Rule

RULE = Rule()
KNOWN = RULE.warm_up + RULE.enough
"""The number of steps after which the limit is known."""


class Run:
    """The workers of a node over several rounds, checked as often as the agent does it."""

    def __init__(self, *, world_size=2, ranks=2, with_steps=True):
        self.now_s, self.with_steps = 1000.0, with_steps
        self.lines, self.verdicts = [], []
        self.auto = AutoLimit(self.lines.append)
        self.begins(world_size, ranks)

    def begins(self, world_size=2, ranks=2):
        """Start the workers of a round."""
        limits = self.auto.begin(Limits(), world_size)
        self.watch = detector.begin(limits, range(ranks), now_s=self.now_s)
        self.seen = {rank: Sighting() for rank in range(ranks)}
        self.step, self.next_look_s = 0, self.now_s
        self.elsewhere = None

    @property
    def limit_s(self):
        return self.watch.limits.hang_s

    @property
    def stalls(self):
        return [each for each in self.verdicts if isinstance(each, Stall)]

    def passes(self, seconds):
        """Let time pass, with checks."""
        end_s = self.now_s + seconds
        while self.next_look_s <= end_s:
            self.now_s = self.next_look_s
            before = self.watch
            after, verdict = detector.look(before, self.seen, now_s=self.now_s, elsewhere=self.elsewhere)
            self.watch = self.auto.learn(before, after, self.elsewhere)
            self.next_look_s += self.watch.limits.look_s
            if verdict is not None:
                self.verdicts.append(verdict)
        self.now_s = end_s

    def steps(self, *times_s, late=()):
        """Begin a step that takes each of these times, on all ranks except `late`."""
        for time_s in times_s:
            self.step += 1
            for rank in self.seen:
                if rank not in late:
                    self.sees(rank, will_beat=True, beat_s=self.now_s, step=self.step if self.with_steps else None)
            self.passes(time_s)

    def sees(self, rank, **changes):
        own = self.seen[rank]
        self.seen[rank] = Sighting(**({name: getattr(own, name) for name in own.__struct_fields__} | changes))

    def opens(self, rank, limit_s=7200.0):
        self.sees(rank, sections=(OpenSection(serial=1, name="save", since_s=self.now_s, limit_s=limit_s),))

    def closes(self, rank):
        self.sees(rank, sections=())


# --- when it is known


def test_no_limit_before_enough_steps_and_then_five_times_the_longest():
    run = Run()
    run.steps(*[90.0] * KNOWN)
    assert run.limit_s == 0
    run.steps(100.0)
    assert run.limit_s == 450.0
    assert run.lines == [
        (
            "--hang-timeout auto: no limit until workers have reported 20 steps (heartbeat, should_stop); none at all "
            "without steps"
        ),
        "--hang-timeout auto: the limit is 450 s; the longest step took at most 90 s",
    ]
    run.steps(1.0)
    assert run.limit_s == 500.0
    assert len(run.lines) == 2  # it has not grown much


def test_short_steps_have_the_floor():
    run = Run()
    run.steps(*[0.2] * 100)
    assert run.limit_s == RULE.floor_s == 300.0


def test_first_steps_of_a_round_are_not_learnt():
    run = Run()
    run.steps(1900.0, *[60.0] * (RULE.warm_up - 1), *[61.0] * (RULE.enough + 1))
    assert run.limit_s == 5 * 61.0


def test_a_hang_in_the_first_steps_of_the_first_round_is_not_found():
    run = Run()
    run.steps(1.0, 1.0)
    run.passes(3000)
    assert run.verdicts == []


def test_heartbeats_without_steps_are_enough():
    run = Run(with_steps=False)
    run.steps(*[80.0] * (KNOWN + 1))
    assert run.limit_s == 400.0


def test_a_hang_is_found_at_the_limit():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.steps(400.0 + RULE.look_s, late=(1,))
    warning, hang = run.stalls
    assert (warning.hung, hang.hung) == (False, True)
    assert hang.behind == (1,)


def test_a_longer_step_raises_the_limit_and_a_line_reports_it():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1), 390.0, 80.0)
    assert run.limit_s == 5 * 390.0
    assert run.lines[-1] == "--hang-timeout auto: the limit is now 1950 s; the longest step took at most 390 s"


def test_without_steps_a_line_reports_once_that_there_is_no_limit():
    run = Run()
    run.passes(NO_STEPS_S - 2)
    assert len(run.lines) == 1
    run.passes(NO_STEPS_S)
    assert run.lines[1:] == [
        (
            "--hang-timeout auto has no limit: no worker has reported a step for 600 s after the start. Try: "
            "heartbeat(step=…) or should_stop(step=…) in the script, or --hang-timeout 30m"
        )
    ]


# --- what is not learnt from


def test_a_step_with_a_section_is_not_learnt_on_any_rank():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.opens(0)
    run.passes(1200)
    run.closes(0)
    run.steps(80.0, 80.0)
    assert (run.limit_s, run.verdicts) == (400.0, [])


def test_a_step_during_a_section_on_another_node_is_not_learnt():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.elsewhere = Elsewhere(protected_s=7200.0)
    run.passes(1200)
    run.elsewhere = None
    run.steps(80.0, 80.0)
    assert run.limit_s == 400.0


def test_time_in_which_the_agent_or_the_workers_are_stopped_is_not_learnt():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.now_s += 7200.0
    run.next_look_s = run.now_s
    run.passes(0)
    for rank in run.seen:
        run.sees(rank, stopped=True)
    run.passes(3600)
    for rank in run.seen:
        run.sees(rank, stopped=False)
    run.steps(1.0)
    assert run.limit_s <= 5 * (80.0 + 4 * RULE.look_s)
    assert run.stalls == []


# --- over rounds


def test_next_round_of_the_same_size_has_the_limit_after_its_warm_up():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.begins()
    assert run.limit_s == RULE.unsure_s
    run.steps(800.0, *[5.0] * RULE.warm_up, 5.0)
    assert (run.limit_s, run.verdicts) == (400.0, [])


def test_first_step_of_a_later_round_has_a_generous_limit():
    run = Run()
    run.steps(*[80.0] * (KNOWN + 1))
    run.begins()
    run.steps(RULE.unsure_s + 2 * RULE.fast_look_s)
    assert [stall.hung for stall in run.stalls] == [False, True]


def test_another_world_size_is_learnt_anew():
    run = Run(world_size=8)
    run.steps(*[80.0] * (KNOWN + 1))
    run.begins(world_size=2)
    run.steps(*[320.0] * KNOWN)
    assert run.limit_s == RULE.unsure_s
    run.steps(320.0)
    assert run.limit_s == 5 * 320.0
    assert run.stalls == []
    run.begins(world_size=8)
    run.steps(*[80.0] * (RULE.warm_up + 2))
    assert run.limit_s == 400.0


def test_a_round_that_fails_in_its_first_steps_leaves_no_limit():
    run = Run()
    run.steps(1.0, 1.0)
    run.begins()
    assert run.limit_s == 0


def test_a_reported_hang_doubles_the_limit_up_to_a_bound():
    run = Run()
    run.steps(*[1.0] * (KNOWN + 5))
    found = []
    for _ in range(4):
        run.auto.after_hang()
        run.begins()
        run.steps(*[1.0] * (KNOWN + 5))
        found.append(run.limit_s)
    assert found == [600.0, 1200.0, MOST_DOUBLED_S, MOST_DOUBLED_S]
    assert "the limit was 300 s; it is 600 s now" in run.lines[2]
    assert "the limit was 1800 s; it stays" in run.lines[-1]


def test_a_rank_that_ends_early_does_not_keep_the_round_in_its_warm_up():
    run = Run()
    run.steps(1.0, 1.0)
    run.watch = detector.without(run.watch, 1)
    run.steps(*[1.0] * (KNOWN + 5))
    assert run.limit_s == RULE.floor_s


# --- properties

USUAL = st.floats(0.05, 40.0)
RARE = st.floats(1.0, 400.0)


@settings(max_examples=25)
@given(st.lists(st.one_of(USUAL, USUAL, USUAL, USUAL, RARE), min_size=4, max_size=14), st.sampled_from([0.3, 1.0, 7.0]))
def test_no_warning_for_a_step_of_half_the_factor_and_never_less_than_the_floor(times_s, usual_s):
    """The limit never fires on a step of at most K/2 times the longest one so far, whatever the steps are."""
    run = Run()
    run.steps(*[usual_s] * (KNOWN + 1))
    longest_s = usual_s
    for time_s in times_s:
        before = len(run.stalls)
        run.steps(time_s)
        assert run.limit_s == 0 or run.limit_s >= max(RULE.floor_s, RULE.factor * longest_s) - 1e-6
        if time_s <= max(RULE.factor * longest_s, RULE.floor_s) / 2 - RULE.look_s:
            assert run.stalls[before:] == []
        longest_s = max(longest_s, time_s)
        run.steps(2 * RULE.look_s)


@settings(max_examples=20)
@given(st.lists(st.floats(0.05, 60.0), min_size=22, max_size=30), st.integers(1, 3))
def test_the_limit_follows_the_longest_step_within_one_check(times_s, ranks):
    """Steps are not taken to be longer than they are by more than the interval between checks."""
    run = Run(ranks=ranks)
    run.steps(*times_s, 20.0, 20.0)
    if run.limit_s:
        most_s = max(*times_s, 20.0) + RULE.look_s
        assert RULE.floor_s <= run.limit_s <= max(RULE.floor_s, RULE.factor * most_s) + 1e-6
