"""The agreement on the state of a round, for any set of copies and any ranks that are gone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_warm.agreement import Copy, Key, Report, Source, agree, partners_of, start_of
from elastic_warm.state_errors import StateError


def copy(serial, owner, size, *, common=True, needed=False, generation=1, step=None, digest="d", **divided):
    key = Key(generation, serial, serial if step is None else step)
    return Copy(key, owner, size, common, needed, digest if common else "", **divided)


class Group:
    """A group of ranks that commit in step, each with a partner that keeps a copy, and what is left when some die."""

    def __init__(self, size, nodes, *, needed, partner):
        self.size = size
        self.partners = partners_of(nodes) if partner else None
        self.needed = needed
        self.held = [[] for _ in range(size)]

    def commit(self, rank, serial):
        """A rank replaces the older of its two commits."""
        own = [each for each in self.held[rank] if each.has_common]
        kept = [each for each in self.held[rank] if not each.has_common]
        self.held[rank] = [*own[-1:], copy(serial, rank, self.size, needed=self.needed), *kept]

    def send(self, rank, serial):
        if self.partners is not None:
            to = self.partners[rank]
            own = [each for each in self.held[to] if each.has_common]
            kept = [each for each in self.held[to] if not each.has_common]
            self.held[to] = [*own, *kept[-1:], copy(serial, rank, self.size, common=False, needed=self.needed)]


@st.composite
def cut_runs(draw):
    """A group that trains until some ranks die, at any point of a commit; and the order of ranks in the next group."""
    nodes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    group = Group(len(nodes), nodes, needed=draw(st.booleans()), partner=draw(st.booleans()))
    last = draw(st.integers(1, 4))
    for serial in range(1, last + 1):
        for rank in range(group.size):
            group.commit(rank, serial)
        for rank in range(group.size):
            group.send(rank, serial)
    # The next commit, cut: no rank begins it before all have confirmed the last one.
    begun = draw(st.sets(st.integers(0, group.size - 1)))
    for rank in begun:
        if draw(st.booleans()):
            group.commit(rank, last + 1)
        else:  # torn: the older one is gone, and no new one is there
            kept = [each for each in group.held[rank] if not each.has_common]
            group.held[rank] = [each for each in group.held[rank] if each.has_common][-1:] + kept
    for rank in range(group.size):
        if any(each.key.serial == last + 1 for each in group.held[rank]) and draw(st.booleans()):
            group.send(rank, last + 1)
    dead = draw(st.sets(st.integers(0, group.size - 1), max_size=group.size - 1))
    alive = draw(st.permutations([rank for rank in range(group.size) if rank not in dead]))
    newcomers = draw(st.integers(0, 2)) if draw(st.booleans()) else len(dead)
    places = draw(st.permutations([*alive, *([None] * newcomers)]))
    reports = [
        Report(number, 0 if rank is None else 1, rank is None, copies=() if rank is None else tuple(group.held[rank]))
        for number, rank in enumerate(places)
    ]
    return group, last, dead, nodes, places, reports


@given(cut_runs())
def test_the_newest_step_of_which_all_is_alive_is_chosen_and_never_a_mix(run):
    group, *_, reports = run
    held = [(rank, each) for rank, report in enumerate(reports) for each in report.copies]

    def is_whole(key):
        mine = [(rank, each) for rank, each in held if each.key == key]
        owners = {each.owner for _, each in mine}
        fits = len(reports) == group.size and owners >= set(range(group.size))
        return any(each.has_common for _, each in mine) and (fits or not group.needed)

    whole = sorted((key for key in {each.key for _, each in held} if is_whole(key)), reverse=True)
    if not whole:
        with pytest.raises(StateError, match="step"):
            agree(reports)
        assert agree([replace(report, can_load=True) for report in reports]).source is Source.CHECKPOINT
        return
    plan = agree(reports)
    assert plan.source is Source.MEMORY
    assert plan.key in whole
    assert plan.generation == 2
    if plan.key != whole[0]:  # one step is given up only for the own parts that the newer one lacks
        assert not plan.lost
        assert plan.key.serial == whole[0].serial - 1
    of_key = [(rank, each) for rank, each in held if each.key == plan.key]
    assert any(rank == plan.sender and each.has_common for rank, each in of_key)
    have = {rank for rank, each in of_key if each.has_common}
    assert set(plan.receivers) == set(range(len(reports))) - have
    for move in plan.moves:
        assert move.receiver == move.owner
        assert any(rank == move.holder and each.owner == move.owner for rank, each in of_key)
    for rank in range(len(reports)):
        there = any(holder == rank and each.owner == rank for holder, each in of_key)
        moved = any(move.receiver == rank for move in plan.moves)
        assert there + moved + (rank in plan.lost) == 1 or rank >= group.size


@given(cut_runs())
def test_one_lost_node_loses_nothing_if_its_partners_are_elsewhere(run):
    group, last, dead, nodes, _, reports = run
    lost_nodes = {nodes[rank] for rank in dead}
    if group.partners is None or len(reports) != group.size or len(lost_nodes) > 1:
        return
    if any(nodes[group.partners[rank]] == nodes[rank] for rank in dead):
        return
    plan = agree(reports)
    assert plan.key.serial >= last
    assert plan.lost == ()


class Shards:
    """A group whose state is sharded tensors, over all ranks or in several copies, and what is left when some die."""

    def __init__(self, nodes, *, copies, last, fits):
        self.size = len(nodes)
        self.share_count = self.size // copies
        self.last = last
        partners = partners_of(nodes)
        self.held = [[] for _ in nodes]
        for serial in (last - 1, last):
            for rank in range(self.size):
                divided = {"share": rank % self.share_count, "share_count": self.share_count}
                self.held[rank].append(copy(serial, rank, self.size, needed=True, fits=fits, **divided))
                self.held[partners[rank]].append(copy(serial, rank, self.size, needed=True, common=False, **divided))


@st.composite
def changed_groups(draw):
    """A group that is confirmed, then loses ranks and gets others, under other numbers."""
    copies = draw(st.sampled_from([1, 1, 2]))
    nodes = draw(st.lists(st.integers(0, 2), min_size=2, max_size=6).filter(lambda each: len(each) % copies == 0))
    group = Shards(nodes, copies=copies, last=draw(st.integers(1, 3)), fits=draw(st.booleans()))
    dead = draw(st.sets(st.integers(0, group.size - 1), max_size=group.size - 1))
    alive = [rank for rank in range(group.size) if rank not in dead]
    places = draw(st.permutations([*alive, *([None] * draw(st.integers(0, 3)))]))
    layouts = ["a"] * len(places)
    if len(places) > 1 and draw(st.integers(0, 9)) == 0:
        layouts[-1] = "b"
    reports = [
        Report(
            number, 1, rank is None, can_load=True, layout=layouts[number],
            copies=() if rank is None else tuple(group.held[rank]),
        )
        for number, rank in enumerate(places)
    ]  # fmt: skip
    return group, dead, nodes, places, reports


@given(changed_groups())
def test_shards_of_which_all_are_alive_are_divided_anew_for_any_number_of_ranks(run):
    group, _, _, places, reports = run
    plan = agree(reports)
    held = [(rank, each) for rank, report in enumerate(reports) for each in report.copies]
    newest = [(rank, each) for rank, each in held if each.key.serial == group.last]
    owners = {each.owner for _, each in newest}
    whole = len({each.share for _, each in newest}) == group.share_count
    fits = group.size == len(places) and all(each.fits for _, each in newest)
    as_before = fits and len(owners) == group.size
    if not whole or (not as_before and len({report.layout for report in reports}) > 1):
        assert plan.source is Source.CHECKPOINT
        assert len(plan.notes) == 2
        assert ("no rank has the shard of" in plan.notes[0]) == (not whole)
        return
    assert plan.source is Source.MEMORY
    assert plan.anew == (not as_before)
    if plan.key.serial != group.last:
        assert not plan.lost
    of_key = [(rank, each) for rank, each in held if each.key == plan.key]
    have = {rank for rank, each in of_key if each.has_common}
    assert plan.sender in have
    assert set(plan.receivers) == set(range(len(reports))) - have
    for move in plan.moves:  # what is a rank's alone goes to the rank of the same number
        assert move.receiver == move.owner < len(places)
        assert any(rank == move.holder and each.owner == move.owner for rank, each in of_key)
    assert agree(list(reports)) == plan


@given(changed_groups())
def test_one_lost_node_loses_no_shard_however_many_ranks_are_left(run):
    group, dead, nodes, _, reports = run
    partners = partners_of(nodes)
    if len({nodes[rank] for rank in dead}) > 1 or any(nodes[partners[rank]] == nodes[rank] for rank in dead):
        return
    if len({report.layout for report in reports}) == 1:
        assert agree(reports).key.serial == group.last


def test_what_can_not_be_divided_anew_is_left_with_a_line_that_names_why():
    def notes(size, *copies, layouts=("a",)):
        places = range(size)
        reports = [
            Report(rank, 1, can_load=True, layout=layouts[rank % len(layouts)], copies=copies if rank == 0 else ())
            for rank in places
        ]
        plan = agree(reports)
        assert plan.source is Source.CHECKPOINT
        (note,) = plan.notes
        return note

    shards = {"needed": True, "share_count": 1}
    whole = copy(4, 0, 1, needed=True)
    assert notes(2, whole) == (
        "step 4: its shards are those of 1 ranks, and now there are 2; "
        "only sharded tensors over all ranks can be divided anew"
    )
    other = copy(4, 0, 1, share=0, fits=False, obstacle="state.model['w'] is on the moon", **shards)
    assert notes(2, other).endswith("and now there are 2; state.model['w'] is on the moon")
    assert notes(1, other) == (
        "step 4: its shards are divided in another way than now; state.model['w'] is on the moon"
    )
    assert notes(2, copy(4, 0, 1, share=0, **shards), layouts=("a", "b")).endswith(
        "ranks differ in how they divide the state now"
    )
    assert notes(1, copy(4, 0, 2, share=0, needed=True, share_count=2)) == "step 4: no rank has the shard of rank 1"


def test_copies_of_one_step_without_shards_may_be_of_groups_of_other_sizes():
    """A newcomer has received it into a larger group, and no one has committed since."""
    reports = [Report(0, 2, False, copies=(copy(3, 0, 1),)), Report(1, 2, False, copies=(copy(3, 1, 2),))]
    plan = agree(reports)
    assert (plan.source, plan.receivers, plan.moves, plan.anew) == (Source.MEMORY, (), (), False)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_partners_are_a_permutation_and_on_other_nodes_where_that_is_possible(nodes):
    partners = partners_of(nodes)
    assert sorted(partners) == list(range(len(nodes)))
    if len(nodes) > 1:
        assert all(partner != rank for rank, partner in enumerate(partners))
    if max(nodes.count(node) for node in nodes) * 2 <= len(nodes):
        assert all(nodes[partner] != nodes[rank] for rank, partner in enumerate(partners))


def test_a_later_agreement_beats_a_greater_step():
    """A rank that was away has trained on from an agreement that the others have left."""
    away = Report(0, 1, False, copies=(copy(9, 0, 2, generation=1),))
    others = Report(1, 2, False, copies=(copy(5, 0, 1, generation=2),))
    plan = agree([away, others])
    assert plan.key == Key(2, 5, 5)
    assert plan.receivers == (0,)
    assert plan.generation == 3


def test_ranks_that_counted_their_commits_differently_have_different_commits():
    reports = [
        Report(0, 1, False, copies=(copy(3, 0, 2, step=30),)),
        Report(1, 1, False, copies=(copy(3, 1, 2, step=3),)),
    ]
    plan = agree(reports)
    assert plan.key == Key(1, 3, 30)
    assert plan.receivers == (1,)


def test_copies_of_one_commit_with_other_structures_are_an_error():
    reports = [
        Report(0, 1, False, copies=(copy(3, 0, 2),)),
        Report(1, 1, False, copies=(copy(3, 1, 2, digest="other"),)),
    ]
    with pytest.raises(StateError, match=r"^rank 1 has another structure of the state of step 3 than rank 0\. Try: "):
        agree(reports)


def test_without_any_copy_all_begin_with_rank_0_or_with_the_checkpoint():
    fresh = [Report(rank) for rank in range(3)]
    plan = agree(fresh)
    assert (plan.source, plan.sender, plan.receivers, plan.generation) == (Source.START, 0, (1, 2), 1)
    loading = [Report(rank, can_load=True) for rank in range(3)]
    plan = agree(loading)
    assert plan.source is Source.CHECKPOINT
    assert start_of(loading, plan).source is Source.START
    changed = [Report(0, can_load=True), Report(1, can_load=True, pristine=False)]
    with pytest.raises(StateError, match="there is no checkpoint, either"):
        start_of(changed, agree(changed))
    with pytest.raises(StateError, match="no rank has a copy of the state, and training has changed it"):
        agree([replace(report, can_load=False) for report in changed])


def test_a_generation_is_later_than_those_of_commits_that_were_found_in_files():
    found = copy(100, 0, 1, generation=5)
    plan = agree([Report(0, copies=(found,), generation=0)])
    assert (plan.source, plan.key, plan.generation) == (Source.MEMORY, found.key, 6)
