"""Sharded states whose ranks or meshes change: all tensors as a whole keep their bits, and no step is lost."""

import pytest

UNTIL = 9


def synced(found):
    """Check that all ranks have the state from memory; return the step."""
    assert [each.get("source") for each in found] == ["memory"] * len(found), found
    (step,) = {each["step"] for each in found}
    return step


def whole(ranks, all_ranks):
    (digest,) = set(ranks.all(all_ranks, "whole"))
    return digest


def test_fsdp_goes_on_with_fewer_and_with_more_ranks(ranks):
    """A node is lost; a rank is left alone; ranks join; and half of them are copies of the other half."""
    four = [ranks.new("fsdp") for _ in range(4)]
    ranks.round(four, [0, 0, 1, 1])
    ranks.all(four, "train", until=3)
    before = whole(ranks, four)
    for rank in four[:2]:
        rank.begin("train", until=UNTIL)
    for rank in four[2:]:
        rank.begin("train", until=UNTIL, die_at=3, die="before backward")
    assert [rank.result() for rank in four[2:]] == [None, None]
    assert all(rank.result()["left"] == 3 for rank in four[:2])
    two = [four[1], four[0]]  # with other ranks
    assert synced(ranks.round(two)) == 3
    assert whole(ranks, two) == before
    ranks.all(two, "train", until=5)
    before = whole(ranks, two)
    ranks.all(two, "leave")
    assert synced(ranks.round(two[:1])) == 5  # with the copy that it keeps for the other one
    assert whole(ranks, two[:1]) == before
    ranks.all(two, "leave")
    three = [ranks.new("fsdp"), *two]
    ranks.all(three, "limit", size=40)
    found = ranks.round(three)
    assert synced(found) == 5
    assert found[0]["received"]
    assert whole(ranks, three) == before
    ranks.all(three, "train", until=7)
    before = whole(ranks, three)
    ranks.all(three, "leave")
    four = [*three, ranks.new("fsdp")]
    ranks.all(four, "limit", size=100)  # the same on all
    assert synced(ranks.round(four, mesh=[2, 2])) == 7
    assert whole(ranks, four) == before
    assert ranks.all(four, "train", until=UNTIL) == [{"step": UNTIL}] * 4


LAYOUTS = [
    {"mesh": [2, 2], "placements": ["R", "S1"], "order": [0, 2, 1, 3]},
    {"mesh": [2, 2], "placements": ["S0", "S1"]},
    {"mesh": [2, 2], "placements": ["T0", "S0"]},  # as FSDP over TP
    {"mesh": [2, 2], "placements": ["S0", "S0"], "order": [3, 2, 1, 0]},
    {},
]


def test_any_division_becomes_any_other_one(ranks):
    four = [ranks.new("placed", partner=False) for _ in range(4)]
    ranks.round(four)
    ranks.all(four, "train", until=2)
    before = whole(ranks, four)
    for number, layout in enumerate(LAYOUTS):
        ranks.all(four, "leave")
        ranks.all(four, "limit", size=[16 << 20, 20][number % 2])
        four = [four[2], four[0], four[3], four[1]]
        random = [rank.ask("random") for rank in four]
        assert synced(ranks.round(four, **layout)) == 2
        assert ranks.all(four, "has_its_parts") == [True] * 4
        assert sorted(rank.ask("random") for rank in four) == sorted(random), "it goes with the number of the rank"
    assert whole(ranks, four) == before
    assert ranks.all(four, "train", until=3) == [{"step": 3}] * 4


def test_a_copy_of_a_lost_rank_is_as_good_as_its_partner(ranks):
    layout = {"mesh": [2, 2], "placements": ["R", "S0"]}
    four = [ranks.new("placed", partner=False) for _ in range(4)]
    ranks.round(four, **layout)
    ranks.all(four, "train", until=2)
    before = whole(ranks, four)
    ranks.all(four, "leave")
    four[3].end()
    four[3] = ranks.new("placed", partner=False)
    assert synced(ranks.round(four, **layout)) == 2
    assert whole(ranks, four) == before


def test_a_rank_that_dies_while_shards_travel_costs_nothing(ranks):
    three = [ranks.new("placed", partner=True) for _ in range(3)]
    ranks.round(three, [0, 1, 2])
    ranks.all(three, "train", until=2)
    before = whole(ranks, three)
    ranks.all(three, "leave")
    newcomer = ranks.new("placed", partner=True)
    newcomer.ask("die_while_shards_travel")
    *_, dead = ranks.round([*three, newcomer], [0, 1, 2, 3])
    assert dead is None
    ranks.all(three, "leave")
    assert synced(ranks.round(three[1:], [1, 2])) == 2
    assert whole(ranks, three[1:]) == before


def test_state_of_an_optimizer_that_is_the_same_on_all_ranks_fits_any_division(ranks):
    two = [ranks.new("fsdp", optimizer="rows") for _ in range(2)]
    ranks.round(two)
    ranks.all(two, "train", until=2)
    before = whole(ranks, two)
    for more in (0, 1):  # the same division first
        ranks.all(two, "leave")
        two += [ranks.new("fsdp", optimizer="rows") for _ in range(more)]
        assert synced(ranks.round(two)) == 2
        assert whole(ranks, two) == before
    assert ranks.all(two, "train", until=3) == [{"step": 3}] * 3


def test_what_is_each_rank_s_own_is_not_divided_though_it_is_sharded(ranks):
    three = [ranks.new("fsdp", sharded=True, loads=1) for _ in range(3)]
    ranks.round(three)
    ranks.all(three, "train", until=3)
    ranks.all(three, "leave")
    found = ranks.round(three[:2])
    assert [(each.get("source"), each.get("step")) for each in found] == [("checkpoint", 1)] * 2, found


def test_a_mesh_that_covers_some_of_the_new_ranks_only_is_one_line(ranks):
    four = [ranks.new("placed") for _ in range(4)]
    ranks.round(four[:2])
    ranks.all(four[:2], "train", until=1)
    ranks.all(four[:2], "leave")
    found = ranks.round(four, mesh=[2, 2], of=1)
    assert all("over a mesh of (2,) now, and not over all 4 ranks" in each["error"] for each in found), found


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (
            {"mesh": [2, 1], "placements": ["S0", "R"]},
            {"mesh": [1, 2], "placements": ["R", "S0"]},
            None,
        ),
        ({}, {"mesh": [2], "placements": ["R"]}, "state.model['even'] is sharded in one of both"),
    ],
)
def test_what_can_not_be_divided_anew_is_one_line(ranks, first, second, line):
    two = [ranks.new("placed") for _ in range(2)]
    ranks.round(two, **first)
    ranks.all(two, "train", until=1)
    ranks.all(two, "leave")
    found = ranks.round(two, **second)
    if line is None:
        assert synced(found) == 1
    else:
        assert all("its shards are divided in another way than now; " + line in each["error"] for each in found), found
