"""Going on with a data set where it was left, as torch does it and where torch does not."""

import pytest

from elastic_core.compat.elastic.utils.data import CyclingIterator


def test_epochs_follow_one_another():
    begun = []

    def epoch(number):
        begun.append(number)
        return iter([f"{number}a", f"{number}b"])

    cycle = CyclingIterator(3, epoch, start_epoch=1)
    assert [(item, cycle.epoch) for item in cycle] == [("1a", 1), ("1b", 1), ("2a", 2), ("2b", 2)]
    assert begun == [1, 2]
    with pytest.raises(StopIteration):
        next(cycle)


def test_empty_epochs_are_passed_over_however_many_they_are():
    assert list(CyclingIterator(5000, lambda number: [7] if number == 4999 else [])) == [7]
    assert list(CyclingIterator(n=1, generator_fn=lambda _: [])) == []


@pytest.mark.parametrize(("size", "replicas", "start"), [(10, 2, 0), (11, 4, 3), (7, 1, 6), (16, 3, 5)])
def test_the_shares_are_torchs(size, replicas, start):
    from torch.distributed.elastic.utils.data import ElasticDistributedSampler as Torchs

    from elastic_core.compat.elastic.utils.data import ElasticDistributedSampler

    for rank in range(replicas):
        theirs = Torchs(range(size), num_replicas=replicas, rank=rank, start_index=start)
        ours = ElasticDistributedSampler(range(size), num_replicas=replicas, rank=rank, start_index=start)
        for epoch in (0, 3):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs) == len(list(ours))


def test_what_torchs_sampler_has_not():
    from elastic_core.compat.elastic.utils.data import ElasticDistributedSampler

    in_order = [ElasticDistributedSampler(range(6), 2, rank, 2, shuffle=False) for rank in (0, 1)]
    assert [list(each) for each in in_order] == [[2, 4], [3, 5]]
    in_order[0].set_start_index(0)
    assert list(in_order[0]) == [0, 2, 4]
    seeded = [list(ElasticDistributedSampler(range(99), 1, 0, seed=seed)) for seed in (0, 1, 1)]
    assert seeded[0] != seeded[1] == seeded[2]
    many = [list(ElasticDistributedSampler(range(5), 7, rank, start_index=3, shuffle=False)) for rank in range(7)]
    assert many == [[3], [4], [3], [4], [3], [4], [3]]  # more ranks than twice what is left


@pytest.mark.parametrize("start", [-1, 5, 6])
def test_indices_from_which_nothing_is_left(start):
    from elastic_core.compat.elastic.utils.data import ElasticDistributedSampler

    with pytest.raises(ValueError, match=f"start_index={start}"):
        ElasticDistributedSampler(range(5), 1, 0, start)


def test_a_data_set_needs_a_length():
    from elastic_core.compat.elastic.utils.data import ElasticDistributedSampler

    with pytest.raises(TypeError, match="length"):
        ElasticDistributedSampler(iter(()), 1, 0)
