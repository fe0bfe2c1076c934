"""Tensors as arguments and results of functions that are workers."""

import pytest

import function_samples as samples
from function_kit import run


@pytest.fixture
def tensor():
    import torch

    return torch.ones(1000).share_memory_()  # its descriptor was there before


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_tensors_are_shared_on_the_way_in_and_copied_on_the_way_out(tensor, group, method):
    (returned,) = run(group(samples.doubled, tensor, method=method)).values()
    assert returned.sum() == 2000
    assert tensor.sum() == 2000  # in place, in shared memory
