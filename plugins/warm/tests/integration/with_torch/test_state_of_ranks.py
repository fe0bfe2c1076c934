"""The training state of real ranks over changes of their group: each run ends in the state of an undisturbed one."""

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
    both = [ranks.new(partner=True) for _ in range(2)]
    ranks.round(both)
    both[1 - victim].begin("train", until=UNTIL)
    assert both[victim].ask("train", until=UNTIL, die_at=4, die=die, after=2) is None
    left = both[1 - victim].result()
    assert left["left"] in (4, 5, 6), left
    both[victim] = ranks.new(partner=True)
    synced = ranks.round(both)
    assert [each["source"] for each in synced] == ["memory"] * 2
    assert len({each["step"] for each in synced}) == 1
    assert [each["received"] for each in synced] == [rank == victim for rank in range(2)]
    assert ranks.all(both, "train", until=UNTIL) == [{"step": UNTIL}] * 2
    assert ranks.all(both, "digest") == expected
