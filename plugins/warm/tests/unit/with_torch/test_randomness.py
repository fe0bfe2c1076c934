"""Generators that are seeded from numbers: the same numbers on every build of torch, and nothing else is done."""

import random

import numpy as np
import pytest
import torch

from elastic_warm.randomness import seed_anew


def drawn():
    return random.random(), np.random.random(), torch.rand(()).item()


@pytest.fixture
def seeds(monkeypatch):
    """The seeds that torch notes for all kinds of devices."""
    seeds = []
    seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda number: (seeds.append(number), seed(number)))
    return seeds


@pytest.mark.parametrize("kind", [None, "cuda"])
def test_numbers_follow_from_the_parts_alone(monkeypatch, seeds, kind):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: kind and torch.device(kind))
    seed_anew(1, 2)
    first = drawn()
    seed_anew(1, 3)
    other = drawn()
    seed_anew(1, 2)
    assert drawn() == first
    assert not set(first) & set(other)
    assert len(seeds) == (3 if kind else 0)  # a device may be used first later, and the stack is noted for that


def test_a_build_with_devices_draws_the_same_numbers_on_the_processor(monkeypatch):
    found = []
    for kind in (None, "cuda"):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda kind=kind: kind and torch.device(kind))
        seed_anew(7)
        found.append(drawn())
    assert found[0] == found[1]


def test_torch_without_accelerators_seeds_all_devices(monkeypatch, seeds):
    monkeypatch.delattr(torch, "accelerator")  # before 2.6
    seed_anew(1)
    assert len(seeds) == 1
