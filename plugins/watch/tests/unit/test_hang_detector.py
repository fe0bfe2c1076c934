"""Which workers hang: the pure judge, by tables and by properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic_watch.beat_file import OpenSection
from elastic_watch.hangs.detector import (
    Elsewhere,
    Late,
    Limits,
    Recovered,
    Sighting,
    Stall,
    begin,
    has_open_section,
    look,
    odd_ones_out,
    protect,
    silence,
    without,
)
from elastic_watch.hangs.peers import Others, behind, judged
from elastic_watch.hangs.steps import RankStep, RunSteps, node_steps

HANG = Limits(hang_s=10.0)
BOTH = Limits(hang_s=10.0, startup_s=30.0)


class Node:
    """Workers on a clock of their own, looked at as often as the agent would."""

    def __init__(self, limits=HANG, ranks=2):
        self.now_s, self.limits = 100.0, limits
        self.watch = begin(limits, range(ranks), now_s=self.now_s)
        self.seen = {rank: Sighting() for rank in range(ranks)}
        self.verdicts = []
        self.elsewhere = None

    def sees(self, rank, **changes):
        own = self.seen[rank]
        fields = {name: getattr(own, name) for name in own.__struct_fields__}
        self.seen[rank] = Sighting(**(fields | changes))

    def beats(self, *ranks, step=None):
        for rank in ranks:
            self.sees(rank, will_beat=True, beat_s=self.now_s, step=step)

    def look(self):
        self.watch, verdict = look(self.watch, self.seen, now_s=self.now_s, elsewhere=self.elsewhere)
        if verdict is not None:
            self.verdicts.append((round(self.now_s - 100.0, 6), verdict))

    def lives(self, seconds, *, beating=(), step=None):
        """Let time pass, `beating` ranks beating all along."""
        for _ in range(round(seconds / self.limits.look_s)):
            self.now_s += self.limits.look_s
            self.beats(*beating, step=step)
            self.look()

    @property
    def stalls(self):
        return [(at_s, verdict) for at_s, verdict in self.verdicts if isinstance(verdict, Stall)]

    def hung_at(self):
        return [at_s for at_s, stall in self.stalls if stall.hung]


def opened(since_s, limit_s, serial=1):
    return (OpenSection(serial=serial, name="checkpoint", since_s=since_s, limit_s=limit_s),)


def test_beating_workers_are_well():
    node = Node()
    node.lives(200, beating=(0, 1))
    assert node.verdicts == []


def test_rank_behind_the_others_is_warned_of_at_half_the_limit_and_hangs_at_the_limit():
    node = Node(ranks=4)
    node.beats(0, 1, 2, 3, step=119)
    node.look()
    node.beats(0, 1, 3, step=120)
    node.lives(10)
    (warned_s, warning), (hung_s, hang) = node.stalls
    assert (warned_s, hung_s) == (5.0, 10.0)
    assert not warning.hung
    assert hang.hung
    assert hang.behind == (2,)
    assert hang.suspects == (2,)
    assert hang.top_step == 120
    assert {each.local_rank: each.step for each in hang.late} == {0: 120, 1: 120, 2: 119, 3: 120}


def test_rank_that_stops_alone_is_to_blame_without_any_steps():
    node = Node()
    node.beats(0, 1)
    node.lives(10, beating=(0,))
    assert node.hung_at() == [10.0]
    assert node.stalls[-1][1].suspects == (1,)
    assert node.stalls[-1][1].top_step is None


def test_ranks_at_one_step_are_all_suspected():
    node = Node()
    node.beats(0, 1, step=7)
    node.lives(10)
    assert node.stalls[-1][1].suspects == (0, 1)
    assert node.stalls[-1][1].behind == ()


def test_going_on_after_a_warning_is_told_and_a_later_stall_is_warned_of_again():
    node = Node()
    node.beats(0, 1)
    node.lives(7)
    node.lives(3, beating=(0, 1))
    node.lives(6)
    assert [(at_s, type(verdict)) for at_s, verdict in node.verdicts] == [(5, Stall), (8, Recovered), (15, Stall)]


def test_hang_that_nobody_acts_on_is_told_again_after_another_limit():
    node = Node()
    node.beats(0, 1)
    node.lives(35)
    assert node.hung_at() == [10.0, 20.0, 30.0]


# --- sections


def test_open_section_protects_all_ranks_of_the_node_and_its_limit_ends_that():
    node = Node()
    node.beats(0, 1)
    node.sees(0, sections=opened(node.now_s, 50.0))
    node.lives(60)
    assert node.stalls[0][0] == 45.0
    assert node.hung_at()[0] == 50.0
    assert node.stalls[-1][1].section == "checkpoint"


def test_section_shorter_than_the_limit_takes_nothing_from_it():
    node = Node()
    node.beats(0, 1)
    node.sees(0, sections=opened(node.now_s, 2.0))
    node.lives(10)
    assert node.hung_at() == [10.0]


def test_sections_one_after_another_each_count_from_their_own_start():
    node = Node()
    node.beats(0, 1)
    for serial in range(1, 6):
        node.sees(0, sections=opened(node.now_s, 15.0, serial))
        node.lives(12)
    assert node.hung_at() == []


# --- start


def test_nobody_hangs_before_the_first_beat():
    node = Node()
    node.sees(0, will_beat=True, written=500, traffic=1)
    node.lives(1000)
    assert node.verdicts == []


def test_startup_timeout_ends_the_wait_for_the_first_beat():
    node = Node(BOTH)
    node.sees(0, will_beat=True, written=500, traffic=1)
    node.beats(1)
    node.lives(30, beating=(1,))
    assert [at_s for at_s, _ in node.stalls] == [15.0, 30.0]
    assert node.stalls[-1][1].late[0].begun is False
    assert node.stalls[-1][1].suspects == (0,)


def test_startup_timeout_alone_does_not_judge_what_comes_after_it():
    node = Node(Limits(startup_s=30.0))
    node.beats(0, 1)
    node.lives(300)
    assert node.verdicts == []


def test_section_before_the_first_beat_protects_too():
    node = Node(BOTH)
    node.sees(0, will_beat=True, sections=opened(node.now_s, 100.0))
    node.lives(99)
    assert node.hung_at() == []
    node.lives(1)
    assert node.hung_at() == [100.0]


# --- by output


def moves(node, rank, **changes):
    own = node.seen[rank]
    node.sees(rank, traffic=(own.traffic or 0) + 1, **changes)


def test_silent_node_is_judged_by_output_as_a_whole():
    node = Node()
    for rank in (0, 1):
        moves(node, rank, written=100 * (1 - rank))
    node.look()
    for _ in range(50):
        moves(node, 0, written=100)
        node.lives(1)
    assert node.verdicts == []
    node.lives(11)
    assert [at_s for at_s, _ in node.stalls] == [55.0, 60.0]
    assert not node.stalls[-1][1].by_beats
    assert node.stalls[-1][1].suspects == (0, 1)
    assert [(each.quiet_s, each.begun) for each in node.stalls[-1][1].late] == [(10.0, True), (10.0, True)]


def test_reading_is_a_sign_of_life_but_not_the_first_one():
    node = Node(BOTH)
    for _ in range(29):
        moves(node, 0, written=0)
        node.lives(1)
    assert node.hung_at() == []
    node.lives(1)
    assert node.hung_at() == [30.0]


def test_nobody_hangs_before_the_first_output():
    node = Node()
    node.sees(0, written=0, traffic=1)
    node.lives(1000)
    assert node.verdicts == []


def test_workers_that_nobody_can_see_are_not_judged():
    node = Node(BOTH)
    node.lives(1000)
    assert node.verdicts == []


def test_one_rank_that_beats_ends_judgement_by_output():
    node = Node()
    moves(node, 1, written=100)
    node.beats(0)
    node.lives(100, beating=(0,))
    assert node.verdicts == []


# --- the agent's own absence


def test_time_in_which_the_agent_was_stopped_does_not_count():
    node = Node()
    node.beats(0, 1)
    node.lives(2)
    node.now_s += 3600
    node.look()
    assert node.verdicts == []
    node.lives(6)
    assert node.hung_at() == [3608.0]  # of the gap, two looks' time counts


def test_beat_of_a_clock_that_is_not_ours_counts_as_now():
    node = Node()
    for n in range(100):
        node.sees(0, will_beat=True, beat_s=5.0 + n)
        node.sees(1, will_beat=True, beat_s=1e9 + n)
        node.lives(1)
    assert node.verdicts == []


def test_clock_stands_while_a_rank_is_debugged():
    node = Node()
    node.beats(0, 1)
    node.look()
    node.sees(0, held=True)
    node.lives(100)
    assert node.verdicts == []
    node.sees(0, held=False)
    node.lives(10)
    assert node.hung_at() == [110.0]


def test_clock_stands_while_all_of_several_workers_are_stopped():
    node = Node()
    node.beats(0, 1)
    node.look()
    for rank in (0, 1):
        node.sees(rank, stopped=True)
    node.lives(1000)
    assert node.verdicts == []
    assert node.watch.suspended
    for rank in (0, 1):
        node.sees(rank, stopped=False)
    node.lives(10)
    assert node.hung_at() == [1010.0]


def test_suspend_that_stops_the_agent_in_between_does_not_count():
    """As a scheduler does it: some workers, the agent, the other workers; and the other way round at the end."""
    node = Node()
    for _ in range(5):
        node.beats(0, 1)
        node.look()
        node.sees(0, stopped=True)
        node.lives(1)
        node.now_s += 3600.0  # the agent is stopped
        node.look()
        node.sees(1, stopped=True)
        node.lives(1)
        for rank in (0, 1):
            node.sees(rank, stopped=False)
        node.lives(0)
    assert node.verdicts == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_stopped_worker_is_a_hang(ranks):
    node = Node(ranks=ranks)
    node.beats(*range(ranks))
    node.look()
    node.sees(0, stopped=True)
    node.lives(10, beating=range(1, ranks))
    assert node.hung_at() == [10.0]
    assert node.stalls[-1][1].suspects == (0,)


@pytest.mark.parametrize("reason", ["held", "stopped"])
def test_other_nodes_wait_while_workers_are_debugged_or_suspended(reason):
    node, other = Node(), Node()
    for each in (node, other):
        each.beats(0, 1, step=4)
        each.look()
    for rank in (0, 1):
        node.sees(rank, **{reason: True})
    others = Others()
    for _ in range(200):
        node.lives(1)
        before = len(other.stalls)
        other.now_s += 1
        other.elsewhere = others.now(other.watch)
        other.look()
        for _, stall in other.stalls[before:]:
            assert not stall.hung
            quiet = silence(node.watch)
            seen = RunSteps(node_count=2, max_step=4, min_step=4, protected_s=quiet.protected_s)
            others.take(seen, other.watch)
            assert judged(stall, other.watch, others.now(other.watch)) is None
            other.watch = replace(other.watch, warned=False)
    assert len(other.stalls) > 10
    for rank in (0, 1):
        node.sees(rank, **{reason: False})
    node.look()
    assert silence(node.watch).protected_s == 0


def test_operation_that_a_stack_shows_protects_until_the_next_sign_of_life():
    node = Node()
    node.beats(0, 1)
    node.lives(5)
    node.watch = replace(protect(node.watch, 0, "torch.compile", 60.0), warned=False)
    node.lives(55)
    assert not any(stall.hung for _, stall in node.stalls)
    node.watch = protect(node.watch, 0, "torch.compile", 60.0)  # it counts from the first time
    node.lives(10)
    (hung_s,) = node.hung_at()
    assert hung_s == 65.0
    assert node.stalls[-1][1].section == "torch.compile"
    node.beats(0, 1)
    node.look()
    assert not has_open_section(node.watch)
    assert silence(node.watch).protected_s == 0


# --- other nodes


def test_rank_behind_another_node_is_behind():
    node = Node()
    node.beats(0, 1, step=119)
    node.elsewhere = Elsewhere(max_step=120, min_step=119)
    node.lives(10)
    assert node.stalls[-1][1].behind == (0, 1)


def test_node_waits_for_the_word_of_one_that_is_slower():
    node = Node()
    node.beats(0, 1, step=120)
    node.elsewhere = Elsewhere(max_step=120, min_step=119)
    node.lives(20)
    assert node.hung_at() == [15.0]


def test_section_elsewhere_protects_here():
    node = Node()
    node.beats(0, 1)
    node.elsewhere = Elsewhere(protected_s=6.0)
    node.lives(100)
    assert node.verdicts == []


def test_output_elsewhere_is_a_sign_of_life_here():
    node = Node()
    moves(node, 0, written=10)
    node.elsewhere = Elsewhere(quiet_s=1.0)
    node.lives(100)
    assert node.verdicts == []


def test_node_tells_how_far_its_ranks_are_and_for_how_long_they_are_silent():
    node = Node(ranks=3)
    node.beats(0, 2, step=120)
    node.beats(1, step=119)
    node.sees(1, sections=opened(node.now_s, 50.0))
    node.lives(4)
    sightings = {rank: watched.sighting for rank, watched in node.watch.workers.items()}
    steps = node_steps(node.watch, sightings, node_id="n1", ranks={0: 8, 1: 9, 2: 10})
    assert (steps.node_id, steps.ranks, steps.max_step, steps.min_step) == ("n1", (8, 9, 10), 120, 119)
    assert [(one.global_rank, one.step) for one in steps.behind] == [(9, 119)]
    assert steps.protected_s == pytest.approx(46.0)
    assert steps.quiet_s == pytest.approx(4.0)


# --- what other nodes say


def heard(node, **given):
    others = Others()
    others.take(RunSteps(node_count=2, **given), node.watch)
    return others


def test_what_was_heard_grows_old():
    node = Node(ranks=1)
    others = heard(node, protected_s=3.0, quiet_s=1.0, max_step=7)
    node.lives(2)
    now = others.now(node.watch)
    assert (now.protected_s, now.quiet_s, now.max_step) == (pytest.approx(1.0), pytest.approx(3.0), 7)


LATE = Late(local_rank=0, quiet_s=9.0, step=5, begun=True)


@pytest.mark.parametrize(
    ("stall", "given", "excused"),
    [
        (Stall(late=(LATE,), top_step=5), {}, False),
        (Stall(late=(LATE,), top_step=5), {"protected_s": 60.0}, True),
        (Stall(late=(LATE,), top_step=5, hung=True), {"protected_s": 60.0}, False),
        (Stall(late=(LATE,), top_step=5), {"quiet_s": 0.1}, False),
        (Stall(late=(LATE,), by_beats=False), {"quiet_s": 0.1}, True),
        (Stall(late=(LATE,), by_beats=False), {"quiet_s": 60.0}, False),
    ],
    ids=["nothing", "a section", "at the limit", "beats count here", "output there", "silence there"],
)
def test_reason_to_wait_may_be_on_another_node(stall, given, excused):
    node = Node(ranks=1)
    assert (judged(stall, node.watch, heard(node, **given).now(node.watch)) is None) == excused


def test_rank_is_behind_if_others_are_further_anywhere():
    node = Node(ranks=1)
    steps = {"max_step": 7, "min_step": 5, "behind": (
        RankStep(global_rank=0, step=5, node_id="a"), RankStep(global_rank=4, step=6, node_id="b"),
        RankStep(global_rank=5, step=6, node_id="b", waits=True),
        RankStep(global_rank=6, step=6, node_id="b", may_wait=True),
    )}  # fmt: skip
    stall = judged(Stall(late=(LATE,), top_step=5), node.watch, heard(node, **steps).now(node.watch))
    assert (stall.behind, stall.top_step) == ((0,), 7)
    assert [one.global_rank for one in behind(RunSteps(**steps), stall, own=[0])] == [4]


# --- properties


EVENTS = st.lists(
    st.tuples(st.sampled_from(["beat", "open", "close", "gap", "pass"]), st.integers(0, 2), st.floats(0.1, 30.0)),
    max_size=60,
)


@given(EVENTS)
def test_nobody_hangs_who_beat_less_than_a_limit_ago_or_has_an_open_section(events):
    """The judge's clock is never ahead of the host's: what is hung was silent for at least its limit."""
    node = Node(ranks=3)
    last, sections, serial = {}, {}, 0
    for what, rank, amount in events:
        if what == "beat":
            node.beats(rank, step=int(amount))
            last[rank] = node.now_s
        elif what == "open":
            serial += 1
            sections[rank] = (serial, node.now_s, amount)
        elif what == "close":
            sections.pop(rank, None)
        node.sees(
            rank,
            sections=opened(sections[rank][1], sections[rank][2], sections[rank][0]) if rank in sections else (),
        )
        node.now_s += 1.0 if what != "gap" else amount * 100
        before = len(node.verdicts)
        node.look()
        for _, verdict in node.verdicts[before:]:
            if isinstance(verdict, Stall) and verdict.hung:
                assert all(node.now_s > since + limit - 1e-6 for _, since, limit in sections.values())
                assert any(node.now_s - last[each.local_rank] >= 10 - 1e-6 for each in verdict.late)
            if isinstance(verdict, Stall):
                assert set(verdict.suspects) <= {each.local_rank for each in verdict.late} <= set(last)


@given(st.integers(1, 5), st.sampled_from([0.5, 1.0, 7.0, 600.0]))
def test_whoever_stops_for_good_is_found_within_a_look_of_the_limit(ranks, hang_s):
    node = Node(Limits(hang_s=hang_s), ranks=ranks)
    node.beats(*range(ranks), step=1)
    node.look()
    node.lives(hang_s + 2 * node.limits.look_s)
    assert len(node.hung_at()) == 1
    assert hang_s - 1e-6 <= node.hung_at()[0] <= hang_s + node.limits.look_s + 1e-6


def test_worker_that_has_ended_is_not_judged():
    node = Node()
    node.beats(0, 1)
    node.watch = without(node.watch, 1)
    node.lives(50, beating=(0,))
    assert node.verdicts == []


@pytest.mark.parametrize(
    ("places", "odd"),
    [
        ({0: "a:1", 1: "a:1", 2: "b:9"}, (2,)),
        ({0: "a:1", 1: "b:9"}, ()),
        ({0: "a:1", 1: "a:1"}, ()),
        ({0: "a:1", 1: "a:1", 2: ""}, ()),
        ({0: "a:1", 1: "a:1", 2: "", 3: "a:1", 4: "c:3"}, (4,)),
        ({0: "", 1: "", 2: "b:9"}, ()),
        ({}, ()),
    ],
)
def test_ranks_that_stand_elsewhere_than_most(places, odd):
    assert odd_ones_out(places) == odd
