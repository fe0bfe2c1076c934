"""Stragglers in simulated trainings: who is named, from which measure, and that nothing healthy is named."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_watch.stragglers.exchange import (
    MAX_BYTES,
    Conclusion,
    concluded,
    pack,
    pack_conclusion,
    unpack,
    unpack_conclusion,
)
from elastic_watch.stragglers.lasting import MOST, after_window
from elastic_watch.stragglers.measures import between_reports, intervals, since, until_first_collective
from elastic_watch.stragglers.scores import NodeWork, Slow, Work, slow_among_nodes, slow_ranks, summarized
from elastic_watch.stragglers.texts import began as began_text
from elastic_watch.stragglers.window import NodeWindow, Past, Window, is_whole, judge
from straggler_schedules import Training, follow

KINDS = ["collectives", "reports", "none"]


def training(kind, count, work, **more):
    sync, report = ("none", "after") if kind == "none" else ("collective", "before" if kind == "reports" else "after")
    return Training(count, work, sync=sync, report=report, **more)


def noisy(seed, *, base=0.05, slow=(), factor=1.8, data=0.2, pauses=0.03, saves=True, heavy=False):
    """Own work with steps that depend on data, pauses of the garbage collector, first steps and saves of rank 0."""
    random = Random(seed)

    def work(rank, step):
        took = base * (random.lognormvariate(0, 0.6) if heavy else 1 + data * random.random())
        took *= 30 if step < 2 else 1
        if random.random() < pauses:
            took += 3 * base
        if saves and rank == 0 and step % 50 == 49:
            took += 40 * base
        return took * (factor if rank in slow else 1)

    return work


def named(began):
    return sorted({rank for window in began for rank in window})


# --- who is named


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_slow_is_named_and_no_other(kind, count, seed):
    run = training(kind, count, noisy(seed, slow={1}), seed=seed)
    began, change = follow(run, windows=6, steps=40, recorder=kind == "collectives")
    assert named(began) == [1]
    assert began[:2] == [[], []]  # it must last
    (straggler,) = change.stragglers
    assert 1.4 < 1 / straggler.slow.score < 2.4


@pytest.mark.parametrize("kind", KINDS)
def test_two_slow_ranks_of_eight_are_both_named(kind):
    run = training(kind, 8, noisy(5, slow={2, 7}), seed=5)
    assert named(follow(run, windows=6, steps=40, recorder=kind == "collectives")[0]) == [2, 7]


def test_reports_after_the_synchronisation_show_nothing_without_collectives():
    run = training("collectives", 4, noisy(1, slow={1}), seed=1)
    began, _ = follow(run, windows=6, steps=40, recorder=False)
    assert named(began) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_becomes_slow_and_recovers_begins_and_ends(kind):
    normal, slow = noisy(3), noisy(3, slow={1})
    run = training(kind, 4, normal, seed=3)
    begins = [follow(run, windows=5, steps=40, recorder=kind == "collectives")]
    run.work = slow
    begins.append(follow(run, windows=5, steps=40, recorder=kind == "collectives"))
    run.work = normal
    begins.append(follow(run, windows=5, steps=40, recorder=kind == "collectives"))
    assert [named(began) for began, _ in begins] == [[], [1], []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1.1, 1.2])
def test_a_little_slower_is_no_straggler(kind, factor):
    run = training(kind, 4, noisy(2, slow={1}, factor=factor), seed=2)
    assert named(follow(run, windows=8, steps=40, recorder=kind == "collectives")[0]) == []


def test_milliseconds_are_never_reported():
    run = training("collectives", 4, noisy(2, base=0.001, slow={1}, factor=4.0), seed=2)
    assert named(follow(run, windows=8, steps=40)[0]) == []


@pytest.mark.parametrize("constant", [False, True])
def test_independent_ranks_with_different_starts_are_not_late(constant):
    """The later rank reports every step later, and no rank waits for it."""
    random = Random(4)
    for noise in (0.0, 1e-5, 1e-3):
        run = training(
            "none", 4, lambda *_, n=noise: 0.1 + (0 if constant else n * random.random()), offsets=[0, 0, 0.04, 0]
        )
        assert named(follow(run, windows=8, steps=40)[0]) == []


def test_one_long_pause_of_an_independent_rank_does_not_last():
    run = training("none", 4, lambda rank, step: 0.1 + 0.001 * ((rank + step) % 3) + 90 * ((rank, step) == (1, 60)))
    assert named(follow(run, windows=8, steps=40)[0]) == []


# --- no false alarm


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS),
    recorder=st.booleans(),
    waits=st.booleans(),
    base=st.sampled_from([0.002, 0.004, 0.02]),
    heavy=st.booleans(),
)
def test_64_ranks_on_two_processors_cause_no_alarm(seed, kind, recorder, waits, base, heavy):
    work = noisy(seed, base=base, heavy=heavy, saves=False)
    run = training(kind, 64, work, seed=seed, cores=2)
    assert named(follow(run, windows=5, steps=16, recorder=recorder, waits=waits)[0]) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS),
    recorder=st.booleans(),
    count=st.integers(2, 6),
    steps=st.integers(12, 60),
    heavy=st.booleans(),
    data=st.floats(0, 2),
)
def test_healthy_ranks_cause_no_alarm(seed, kind, recorder, count, steps, heavy, data):
    random = Random(seed)
    offsets = [random.random() * 0.2 for _ in range(count)]
    run = training(kind, count, noisy(seed, heavy=heavy, data=data), seed=seed, offsets=offsets)
    assert named(follow(run, windows=8, steps=steps, recorder=recorder)[0]) == []


def test_waiting_for_a_processor_is_excused_only_if_others_wait_too():
    pieces = {0: (0.1,) * 10, 1: (0.1,) * 10, 2: (0.2,) * 10}

    def slow(waits):
        works = summarized(pieces, step_s=0.2, waits=waits)
        return [(each.rank, each.waits) for each in slow_ranks(works, step_s=0.2, past={})]

    assert slow({}) == [(2, 0.0)]
    assert slow({0: 0.3, 1: 0.3, 2: 0.8}) == []
    assert slow({0: 0.3, 1: 0.3, 2: 0.3}) == [(2, 0.0)]
    assert slow({0: 0.0, 1: 0.01, 2: 0.5}) == [(2, pytest.approx(0.495))]


def test_ranks_with_different_work_must_be_slower_than_before():
    works = [Work(rank=rank, own_s=0.2 if rank == 3 else 0.1, low_s=0.2, error_s=0.0) for rank in range(4)]
    assert [each.rank for each in slow_ranks(works, step_s=0.2, past={})] == [3]
    assert slow_ranks(works, step_s=0.2, past={}, needs_past=True) == ()
    assert slow_ranks(works, step_s=0.2, past={3: 0.19}, needs_past=True) == ()
    (found,) = slow_ranks(works, step_s=0.2, past={3: 0.1}, needs_past=True)
    assert (found.rank, found.past_s) == (3, 0.1)


# --- measures


def test_own_work_until_the_first_collective():
    steps = [(0, 0), (1, 100), (2, 200), (3, 300)]
    arrivals = [("a", 1, 30), ("b", 1, 60), ("a", 2, 140), ("a", 3, 330)]
    assert until_first_collective(steps, arrivals) == (30e-9, 40e-9)
    assert intervals([(0, 0), (10, 10**9), (12, 2 * 10**9)]) == (0.1, 0.5)
    assert since(steps, 150) == [(1, 100), (2, 200), (3, 300)]
    assert since(steps, 999) == [(3, 300)]


def test_a_wait_shows_in_the_reports_only_if_it_varies():
    """With times that never vary, waiting and beginning later look the same: nothing is concluded."""
    exact = {rank: [(step, step * 10**9 + rank * 10**8) for step in range(60)] for rank in range(2)}
    assert between_reports(exact) == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_own_work_between_collectives_is_the_ratio_of_the_work(asynchronous):
    """Ten collectives of one backward pass, which ranks enter without waiting for the others, or with."""
    times, now = {0: [], 1: []}, [0.0, 0.0]
    for step in range(30):
        for bucket in range(10):
            for rank, factor in ((0, 1.0), (1, 1.8)):
                now[rank] += factor * (0.05 if bucket == 0 else 0.01)
                times[rank].append(("0", step * 10 + bucket + 1, int(now[rank] * 1e9)))
            if bucket == 9 or not asynchronous:
                now = [max(now)] * 2
    judged = judge(Window(node_id="a", arrivals=times), Past())
    (slow,) = judged.slow
    assert (slow.rank, 1 / slow.score) == (1, pytest.approx(1.8, rel=0.05))


def test_a_window_is_whole_with_enough_steps_and_collectives():
    steps = {0: [(n, n) for n in range(9)], 1: [(n, n) for n in range(9)]}
    arrivals = {0: [("a", n, n) for n in range(16)], 1: [("a", n, n) for n in range(15)]}
    assert is_whole(steps, {})
    assert not is_whole({**steps, 1: [(0, 0)]}, {})
    assert is_whole({0: steps[0], 1: []}, {})  # it reports none
    assert not is_whole(steps, arrivals)
    assert is_whole({0: [(n, n) for n in range(65)]}, arrivals)
    assert not is_whole({}, arrivals)
    assert is_whole({}, {0: arrivals[0]})
    assert not is_whole({}, {})


# --- several nodes


def windows(node_count, per_node, seconds, *, spread=0.01, seed=0, offset_s=0.0):
    """Return the windows of nodes whose ranks report after the synchronisation. Each node has its own clock."""
    random, found = Random(seed), {}
    for index in range(node_count):
        steps, arrivals = {}, {}
        for local in range(per_node):
            rank, clock = index * per_node + local, int(offset_s * index * 1e9)
            steps[rank] = [(step, clock + step * 10**9) for step in range(40)]
            arrivals[rank] = [
                ("0", step, clock + step * 10**9 + int((seconds(index, rank) + spread * random.random()) * 1e9))
                for step in range(40)
            ]
        found[f"n{index}"] = judge(Window(node_id=f"n{index}", steps=steps, arrivals=arrivals), Past()).shared
    return found


def conclude(found, past=None):
    return concluded({node: pack(window) for node, window in found.items()}, past or Past())


def test_a_rank_and_a_node_are_named_among_nodes():
    rank = conclude(windows(4, 4, lambda _, rank: 0.5 if rank == 6 else 0.25))
    assert [(each.rank, each.node_id) for each in rank.slow] == [(6, "n1")]
    node = conclude(windows(4, 4, lambda index, _: 0.5 if index == 2 else 0.25))
    assert [(each.rank, each.node_id) for each in node.slow] == [(None, "n2")]
    alone = conclude(windows(4, 1, lambda index, _: 0.5 if index == 2 else 0.25))
    assert [(each.rank, each.node_id) for each in alone.slow] == [(2, "n2")]
    two = conclude(windows(2, 8, lambda index, _: 0.5 if index == 1 else 0.25))
    assert [(each.rank, each.node_id) for each in two.slow] == [(None, "n1")]
    assert conclude(windows(4, 4, lambda *_: 0.25)).slow == ()


@settings(max_examples=20, deadline=None)
@given(st.floats(-1e6, 1e6), st.integers(0, 99))
def test_an_offset_of_the_clocks_changes_nothing(offset_s, seed):
    offset_s += 1e6  # the times of a clock are not negative
    same = conclude(windows(3, 2, lambda *_: 0.25, seed=seed, offset_s=offset_s))
    assert same.slow == ()
    slow = conclude(windows(3, 2, lambda _, rank: 0.5 if rank == 3 else 0.25, seed=seed, offset_s=offset_s))
    assert [each.rank for each in slow.slow] == [3]


def test_a_straggler_that_its_node_knows_is_passed_on():
    found = windows(2, 2, lambda *_: 0.25)
    known = (Slow(rank=1, node_id="n0", own_s=2.0, others_s=1.0),)
    found["n0"] = NodeWindow(intervals=found["n0"].intervals, works=found["n0"].works, known=known)
    assert conclude(found).slow == known


def test_a_thousand_ranks_fit_and_are_judged_fast():
    found = windows(125, 8, lambda _, rank: 0.5 if rank in (77, 900) else 0.25)
    assert max(len(pack(window)) for window in found.values()) < 1024
    conclusion = conclude(found)
    assert sorted(each.rank for each in conclusion.slow) == [77, 900]
    assert len(pack_conclusion(conclusion)) < 4096


def test_the_largest_window_fits():
    work = Work(rank=10**6, own_s=10**6, low_s=10**6, error_s=10**6, waits=1.0, excused_s=10**6)
    many = NodeWork(node_id="n", works=(work,) * 300, step_s=10**6)
    slow = (Slow(rank=10**6, node_id="n" * 200, own_s=1 / 3, others_s=1 / 7, past_s=1 / 9, waits=1 / 3),) * 90
    assert len(pack(NodeWindow(intervals=many, works=many, known=slow))) <= MAX_BYTES
    assert len(pack_conclusion(Conclusion(slow=slow[:16], count=90))) <= MAX_BYTES


GOOD = pack(windows(1, 2, lambda *_: 0.25)["n0"])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_other_content_is_rejected(data):
    good = GOOD
    for content in (data, good[:-1] + data, data + good[3:], good.replace(b"25", data, 1)):
        try:
            window = unpack("n0", content)
        except ValueError:
            assert concluded({"n0": content}, Past()) == Conclusion()
        else:
            assert len(window.works.works) <= 64
    with pytest.raises(ValueError, match="expected at most"):
        unpack("n", b" " * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match="Expected"):
        unpack_conclusion(b"1")


def test_a_slow_node_waits_for_processors():
    nodes = [
        NodeWork(
            node_id=node,
            works=tuple(Work(rank=rank, own_s=own, low_s=own, error_s=0.0) for rank in ranks),
            step_s=1.0,
            waits=waits,
        )
        for node, ranks, own, waits in (("a", (0, 1), 0.3, 0.0), ("b", (2, 3), 0.7, 0.5), ("c", (4, 5), 0.3, 0.01))
    ]
    (slow,) = slow_among_nodes(nodes, past={2: 0.3, 3: 0.31})
    assert (slow.rank, slow.node_id, slow.waits, slow.past_s) == (None, "b", 0.5, pytest.approx(0.305))
    (straggler,) = after_window(
        after_window(after_window({}, [slow], begun_s=0).followed, [slow], begun_s=9).followed, [slow], begun_s=9
    ).stragglers
    assert began_text(straggler, now_s=180.0) == (
        "node b is slow: the own work of all its ranks takes 2.33 times the median of the other nodes, for 3 min; "
        "before, it took 0.305 s instead of 0.7 s; it waits for a processor 50% of the time"
    )


# --- windows in a row


def test_stragglers_begin_after_three_windows_and_end_after_two_without():
    def slow(*ranks):
        return [Slow(rank=rank, own_s=2.0, others_s=1.0) for rank in ranks]

    followed, seen = {}, []
    for ranks in ([1], [1, 2], [2], [1, 2], [1, 2], [1], [1, 2], [1], [], [1], [], []):
        change = after_window(followed, slow(*ranks), begun_s=0.0)
        followed = change.followed
        seen.append(
            ([each.slow.rank for each in change.began], [each.slow.rank for each in change.ended],
             sorted(each.slow.rank for each in change.stragglers))
        )  # fmt: skip
    assert seen == [
        ([], [], []), ([], [], []), ([], [], []), ([2], [], [2]), ([], [], [2]), ([1], [], [1, 2]),
        ([], [], [1, 2]), ([], [], [1, 2]), ([], [2], [1]), ([], [], [1]), ([], [], [1]), ([], [1], []),
    ]  # fmt: skip
    assert followed == {}
    many = after_window({}, slow(*range(200)), begun_s=0.0)
    assert len(many.followed) == MOST
