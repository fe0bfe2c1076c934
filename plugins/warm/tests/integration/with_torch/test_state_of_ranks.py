"""The training state of real ranks over changes of their group: each run ends in the state of an undisturbed one."""

import random

import pytest

UNTIL = 8


@pytest.fixture
def undisturbed(ranks):
    """The digests of a run in which nothing happens."""

    def run(kind="replicated", size=2, until=UNTIL, **options):
        all_ranks = [ranks.new(kind, **options) for _ in range(size)]
        assert all(each["source"] == "start" for each in ranks.round(all_ranks))
        assert ranks.all(all_ranks, "train", until=until) == [{"step": until}] * size
        return ranks.all(all_ranks, "digest")

    return run


@pytest.mark.parametrize("die", ["before backward", "after backward", "in commit", "after commit"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_replaced_and_the_state_is_that_of_an_undisturbed_run(ranks, undisturbed, die, victim):
    expected = undisturbed(partner=True)
    env = {"APART": str(victim)}
    both = [ranks.new(env=env, partner=True) for _ in range(2)]
    ranks.round(both)
    both[1 - victim].begin("train", until=UNTIL)
    assert both[victim].ask("train", until=UNTIL, die_at=4, die=die, after=2) is None
    left = both[1 - victim].result()
    assert left["left"] in (4, 5, 6), left
    both[victim] = ranks.new(env=env, partner=True)
    synced = ranks.round(both)
    assert [each["source"] for each in synced] == ["memory"] * 2
    assert len({each["step"] for each in synced}) == 1
    assert [each["received"] for each in synced] == [rank == victim for rank in range(2)]
    assert ranks.all(both, "train", until=UNTIL) == [{"step": UNTIL}] * 2
    assert ranks.all(both, "digest") == expected


def test_a_cut_step_leaves_nothing_behind(ranks, undisturbed):
    expected = undisturbed()
    both = [ranks.new() for _ in range(2)]
    ranks.round(both)
    ranks.all(both, "train", until=3)
    both[0].ask("spoil")
    both[0].ask("restore")
    both[1].ask("spoil")
    ranks.all(both, "leave")
    assert [each["step"] for each in ranks.round(both)] == [3, 3]
    ranks.all(both, "train", until=UNTIL)
    assert ranks.all(both, "digest") == expected


def test_all_ranks_get_the_messages_of_all_whatever_their_lengths(ranks):
    three = [ranks.new() for _ in range(3)]
    ranks.round(three)
    for lengths in ([0, 7, 1016], [1016, 0, 1], [1017, 0, 2], [5, 5, 70_000]):
        messages = [letter * length for letter, length in zip("ABC", lengths, strict=True)]
        assert ranks.all(three, "gather", lengths=lengths) == [messages] * 3


def test_ranks_join_and_leave_and_all_have_the_newest_step(ranks):
    first, second, third = (ranks.new() for _ in range(3))
    ranks.round([first, second])
    ranks.all([first, second], "train", until=3)
    before = first.ask("digest")
    ranks.all([first, second], "leave")
    grown = [third, first, second]  # the newcomer is rank 0, and the others have other ranks
    synced = ranks.round(grown)
    assert [(each["source"], each["step"], each["received"]) for each in synced] == [
        ("memory", 3, True),
        ("memory", 3, False),
        ("memory", 3, False),
    ]
    assert ranks.all(grown, "digest") == [before] * 3
    ranks.all(grown, "train", until=5)
    ranks.all(grown, "leave")
    assert [each["step"] for each in ranks.round([second, third])] == [5, 5]
    ranks.all([second, third], "train", until=6)
    assert len(set(ranks.all([second, third], "digest"))) == 1
    # One that was away has an older step, and takes that of the others.
    ranks.all([second, third], "leave")
    synced = ranks.round([first, second, third])
    assert [(each["step"], each["received"]) for each in synced] == [(6, True), (6, False), (6, False)]


@pytest.mark.parametrize("partner", [False, True])
def test_a_round_that_ends_before_its_first_commit_leaves_what_it_began_with(ranks, partner):
    first, second, third = (ranks.new(partner=partner) for _ in range(3))
    ranks.round([first, second])
    ranks.all([first, second], "train", until=3)
    ranks.all([first, second], "leave")
    grown = [first, second, third]
    for _ in range(2):
        assert [(each.get("source"), each.get("step")) for each in ranks.round(grown)] == [("memory", 3)] * 3
        digests = ranks.all(grown, "digest")
        assert len(set(digests)) == 1
        ranks.all(grown, "leave")
    shrunk = [third, second]
    assert [(each.get("source"), each.get("step")) for each in ranks.round(shrunk)] == [("memory", 3)] * 2
    assert ranks.all(shrunk, "digest") == digests[1:]


def test_another_round_begins_before_one_of_fewer_ranks_has_committed(ranks):
    four = [ranks.new() for _ in range(4)]
    ranks.round(four)
    ranks.all(four, "train", until=3)
    before = four[0].ask("digest")
    ranks.all(four, "leave")
    newcomer = ranks.new()
    ranks.round([four[0], newcomer])
    ranks.all([four[0], newcomer], "leave")
    # Both have the commit of the four ranks, and one of them has received it.
    again = [four[0], newcomer, ranks.new(), ranks.new()]
    synced = ranks.round(again)
    assert [(each["source"], each["step"]) for each in synced] == [("memory", 3)] * 4
    assert ranks.all(again, "digest") == [before] * 4
    ranks.all(again, "train", until=5)
    assert len(set(ranks.all(again, "digest"))) == 1


def test_a_lost_node_takes_no_shard_with_it(ranks, undisturbed):
    expected = undisturbed("sharded", 4)
    nodes = [0, 0, 1, 1]
    four = [ranks.new("sharded") for _ in range(4)]
    ranks.round(four, nodes)
    for rank in four[:2]:
        rank.begin("train", until=UNTIL)
    for rank in four[2:]:
        rank.begin("train", until=UNTIL, die_at=4, die="after backward")
    assert [rank.result() for rank in four[2:]] == [None, None]
    assert all(rank.result()["left"] in (4, 5) for rank in four[:2])
    four = [ranks.new("sharded"), four[0], four[1], ranks.new("sharded")]  # with other ranks
    synced = ranks.round(four, nodes)
    assert {(each["source"], each["step"]) for each in synced} <= {("memory", 3), ("memory", 4)}
    assert len({each["step"] for each in synced}) == 1
    ranks.all(four, "train", until=UNTIL)
    assert ranks.all(four, "digest") == expected


@pytest.mark.parametrize("has_load", [False, True])
def test_a_sharded_state_whose_shards_do_not_fit_is_loaded_or_refused(ranks, has_load):
    options = {"loads": -1} if has_load else {}
    both = [ranks.new("sharded", **options) for _ in range(2)]
    assert [each["source"] for each in ranks.round(both)] == ["start"] * 2
    ranks.all(both, "train", until=3)
    ranks.all(both, "leave")
    three = [*both, ranks.new("sharded", **options)]
    if has_load:
        found = ranks.round(three)  # there is no checkpoint
        assert all("there is no checkpoint, either" in each["error"] for each in found)
        ranks.all(three, "has_checkpoint", step=7)
        found = ranks.round(three)
        assert [(each["source"], each["step"]) for each in found] == [("checkpoint", 7)] * 3
    else:
        found = ranks.round(three)
        assert all("its shards are those of 2 ranks, and now there are 3" in each["error"] for each in found)


def test_fsdp_goes_on_with_its_shards(ranks, undisturbed):
    expected = undisturbed("fsdp")
    both = [ranks.new("fsdp") for _ in range(2)]
    ranks.round(both, [0, 1])
    both[0].begin("train", until=UNTIL)
    assert both[1].ask("train", until=UNTIL, die_at=4, die="before backward") is None
    assert both[0].result()["left"] in (4, 5)
    both[1] = ranks.new("fsdp")
    assert [each["source"] for each in ranks.round(both, [0, 1])] == ["memory"] * 2
    ranks.all(both, "train", until=UNTIL)
    assert ranks.all(both, "digest") == expected


@pytest.mark.parametrize("until", [3, 4], ids=["one slot", "the other slot"])
def test_an_interrupt_with_two_copies_of_one_commit_leaves_the_one_of_this_place(ranks, until):
    first, second = (ranks.new("sharded", partner=False) for _ in range(2))
    ranks.round([first, second])
    ranks.all([first, second], "train", until=until)
    digests = ranks.all([first, second], "digest")
    ranks.all([first, second], "leave")
    swapped = [second, first]
    assert ranks.round(swapped, name="cut_round") == [{"cut": True}] * 2
    assert [(each.get("source"), each.get("step")) for each in ranks.round(swapped)] == [("memory", until)] * 2
    assert ranks.all(swapped, "digest") == digests
    ranks.all(swapped, "train", until=until + 2)
    digests = ranks.all(swapped, "digest")
    ranks.all(swapped, "leave")
    assert [each.get("step") for each in ranks.round([first, second])] == [until + 2] * 2
    assert ranks.all([first, second], "digest") == digests


def test_ranks_whose_states_differ_all_get_the_same_line(ranks):
    found = ranks.round([ranks.new(partner=True), ranks.new()])
    assert len({each["error"] for each in found}) == 1
    assert "a part of State is 'State' (sharded=None, partner=True" in found[0]["error"]
    found = ranks.round([ranks.new("sharded"), ranks.new("sharded", width=6)])
    assert len({each["error"] for each in found}) == 1
    assert (
        "state.model, at its first difference, is weight float32 [5, 5] on rank 0, and weight float32 [6, 5] on"
        in (found[0]["error"])
    )


def test_a_worker_that_is_started_anew_finds_the_last_commit_of_the_one_before(ranks, undisturbed, tmp_path):
    expected = undisturbed(size=1)
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    env = {"TRAINING_WARM_DIR": str(folder), "LOCAL_RANK": "0"}
    for die_at, die, step in ((2, "after commit", 3), (4, "in commit", 4), (6, "before backward", 6)):
        rank = ranks.new(env=env)
        ranks.round([rank])
        assert rank.ask("train", until=UNTIL, die_at=die_at, die=die, after=3) is None
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
        rank = ranks.new(env=env)
        assert ranks.round([rank]) == [{"source": "memory", "step": step, "received": False}]
        rank.end()
    rank = ranks.new(env=env)
    ranks.round([rank])
    rank.ask("train", until=UNTIL)
    assert [rank.ask("digest")] == expected


def test_a_rank_that_dies_while_it_receives_costs_nothing(ranks, undisturbed):
    expected = undisturbed()
    first, second = (ranks.new() for _ in range(2))
    ranks.round([first, second])
    ranks.all([first, second], "train", until=3)
    second.end()
    first.ask("leave")
    newcomer = ranks.new()
    newcomer.ask("die_while_receiving")
    survivor, dead = ranks.round([first, newcomer])
    assert dead is None
    assert "error" in survivor or survivor["step"] == 3
    first.ask("leave")
    both = [first, ranks.new()]
    assert [each["step"] for each in ranks.round(both)] == [3, 3]
    ranks.all(both, "train", until=UNTIL)
    # Without a partner, the random state of the lost rank is lost: the steps are the same, the losses are others.
    assert ranks.all(both, "digest") != expected
    assert len(set(ranks.all(both, "digest"))) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_that_are_killed_at_random_steps_end_as_an_undisturbed_run(ranks, undisturbed, seed):
    until, chance = 12, random.Random(seed)
    expected = undisturbed(until=until, partner=True)
    both = [ranks.new(partner=True) for _ in range(2)]
    step = ranks.round(both)[0]["step"]
    for _ in range(3):
        victim, die_at = chance.randrange(2), step + chance.randint(0, 2)
        die = chance.choice(["before backward", "after backward", "in commit", "after commit"])
        both[1 - victim].begin("train", until=until)
        assert both[victim].ask("train", until=until, die_at=die_at, die=die, after=chance.randint(0, 9)) is None
        assert "left" in both[1 - victim].result()
        both[victim] = ranks.new(partner=True)
        synced = ranks.round(both)
        assert [each["source"] for each in synced] == ["memory"] * 2
        step = synced[0]["step"]
        assert die_at - 1 <= step <= die_at + 1
    assert ranks.all(both, "train", until=until) == [{"step": until}] * 2
    assert ranks.all(both, "digest") == expected
