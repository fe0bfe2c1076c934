"""`ElasticSampler`: every index once an epoch, in one order, however often the world size changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.api import ConfigError
from elastic_train import ElasticSampler

SIZES = st.integers(1, 7)


class World:
    """All ranks of a run that stops and goes on with other numbers of them."""

    def __init__(self, length, **options):
        self.length = length
        self.options = options
        self.state = None

    def run(self, world_size, steps, *, batch_size=1, ahead=0):
        """Return what is consumed, step by step; each rank's loader has drawn so many batches more."""
        ranks = [
            ElasticSampler(self.length, batch_size=batch_size, rank=rank, world_size=world_size, **self.options)
            for rank in range(world_size)
        ]
        for sampler in ranks if self.state else ():
            sampler.load_state_dict(self.state)
        consumed = []
        while len(consumed) < steps:
            epoch = ranks[0].epoch
            lengths = {len(sampler) for sampler in ranks}
            drawn = [list(sampler) for sampler in ranks]
            assert {len(batches) for batches in drawn} == lengths  # no rank waits for another's last batch
            for batches in list(zip(*drawn, strict=True))[: steps - len(consumed)]:
                consumed.append((epoch, [index for batch in batches for index in batch]))
                for sampler in ranks:
                    sampler.advance()
            assert len({(sampler.epoch, sampler.position) for sampler in ranks}) == 1
        self.state = ranks[-1].state_dict()
        return consumed


@given(
    length=st.integers(1, 60),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    runs=st.lists(st.tuples(SIZES, st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=6),
)
def test_each_index_comes_once_an_epoch_in_one_order(length, shuffle, seed, runs):
    world = World(length, shuffle=shuffle, seed=seed)
    whole = [index for batch in ElasticSampler(length, shuffle=shuffle, seed=seed) for index in batch]
    epochs = {}
    for world_size, steps, batch_size in runs:
        for epoch, indices in world.run(world_size, steps, batch_size=batch_size):
            seen = epochs.setdefault(epoch, [])
            new = set(indices)
            assert new.isdisjoint(seen)
            # Twice in a step only where fewer were left than there are ranks.
            assert len(new) == len(indices) or (len(indices) == world_size and len(new) == length - len(seen))
            assert len(indices) <= (batch_size + 1) * world_size
            seen.extend(new)
            if epoch == 0:
                assert set(seen) == set(whole[: len(seen)])  # always the beginning of the one order
    last = max(epochs)
    for epoch, seen in epochs.items():
        assert epoch == last or sorted(seen) == list(range(length))
    assert sorted(epochs) == list(range(last + 1))


@given(length=st.integers(8, 60), batch_size=st.integers(1, 4), world_size=st.integers(1, 2), seed=st.integers(0, 3))
def test_what_is_dropped_is_less_than_a_step(length, batch_size, world_size, seed):
    world = World(length, last="drop", seed=seed)
    steps = length // (batch_size * world_size)
    consumed = world.run(world_size, steps, batch_size=batch_size)
    assert {epoch for epoch, _ in consumed} == {0}
    assert all(len(set(indices)) == len(indices) == batch_size * world_size for _, indices in consumed)
    assert (world.state["epoch"], world.state["position"]) == (1, 0)


def test_the_order_is_that_of_torchs_sampler():
    from torch.utils.data.distributed import DistributedSampler

    ours = [index for (index,) in ElasticSampler(20, seed=3, rank=1, world_size=2)]
    theirs = DistributedSampler(range(20), num_replicas=2, rank=1, seed=3)
    assert ours == list(theirs)
    sampler = ElasticSampler(20, seed=3, rank=1, world_size=2)
    sampler.set_epoch(5)
    theirs.set_epoch(5)
    assert [index for (index,) in sampler] == list(theirs)


def test_a_seed_has_its_order_and_an_epoch_its_own():
    first, again, other = (ElasticSampler(50, seed=seed) for seed in (1, 1, 2))
    assert list(first) == list(again) != list(other)
    before = list(first)
    first.set_epoch(0)
    assert list(first) == before
    first.set_epoch(1)
    assert list(first) != before


def test_what_a_loader_has_drawn_ahead_does_not_count():
    sampler = ElasticSampler(10, batch_size=2, shuffle=False)
    drawn = iter(sampler)
    assert [next(drawn) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    sampler.advance()
    state = sampler.state_dict()
    assert (state["epoch"], state["position"], len(sampler)) == (0, 2, 4)
    resumed = ElasticSampler(10, batch_size=3, shuffle=False)
    resumed.load_state_dict(state)
    assert list(resumed) == [[2, 3, 4], [5, 6, 7], [8, 9]]
    assert next(drawn) == [8, 9]  # the loop that goes on is not disturbed


def test_a_state_at_the_end_of_an_epoch_is_that_of_the_next():
    sampler = ElasticSampler(4, batch_size=2)
    for _ in sampler:
        sampler.advance()
    assert (sampler.epoch, sampler.position) == (1, 0)
    sampler.set_epoch(1)  # as loops do that know of torch's
    assert len(list(sampler)) == 2


def test_the_last_batches_are_shared():
    def batches(length, world_size):
        return [
            list(ElasticSampler(length, batch_size=2, shuffle=False, rank=r, world_size=world_size)) for r in (0, 1)
        ]

    assert batches(7, 2) == [[[0, 2], [4, 6]], [[1, 3], [5]]]
    assert batches(5, 2) == [[[0, 2, 4]], [[1, 3]]]  # one is too few for both: no rank has a batch more
    assert batches(1, 2) == [[[0]], [[0]]]


def test_a_loop_that_counts_nothing_is_one_line(caplog):
    sampler = ElasticSampler(4, batch_size=2)
    for _ in sampler:
        sampler.state_dict()
        sampler.advance()
    sampler.state_dict()
    assert caplog.text == ""
    for _ in sampler:
        sampler.state_dict()
    sampler.state_dict()
    sampler.state_dict()
    assert caplog.text.count("has ended and counted no batch. Try: advance() after each") == 1


def test_a_loop_whose_batches_are_all_drawn_ahead_counts_them_later(caplog):
    sampler = ElasticSampler(4, batch_size=2)
    for _ in list(sampler):
        sampler.advance()
        sampler.state_dict()
    assert caplog.text == ""


@pytest.mark.parametrize(("name", "value"), [("length", 9), ("seed", 1), ("shuffle", False)])
def test_a_state_of_other_data_is_refused(name, value):
    sampler = ElasticSampler(8)
    with pytest.raises(ConfigError, match=rf"this ElasticSampler has {name} .*, the state .* Try: the same data"):
        sampler.load_state_dict(sampler.state_dict() | {name: value})
    assert sampler.position == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": 0}, "data=0"),
        ({"data": iter([1])}, "expected a data set with a length"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"last": "keep"}, "expected 'share' or 'drop'"),
        ({"last": "drop", "batch_size": 9}, "8 samples are no batch of 9 for each of 1 ranks"),
        ({"rank": 2, "world_size": 2}, r"rank=2\); expected 0 to 1"),
    ],
)
def test_arguments_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        ElasticSampler(**({"data": 8} | arguments))


def test_the_place_comes_from_the_variables(monkeypatch):
    for name, value in {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    sampler = ElasticSampler([0] * 9, shuffle=False)
    assert (sampler.rank, sampler.world_size, list(sampler)) == (2, 3, [[2], [5], [8]])
