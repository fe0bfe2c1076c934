"""The invariants bite: each deliberate defect is found within some hundred seeds, by an invariant that it breaks."""

import pytest

from simulation.checks import Violation
from simulation.mutations import MUTATIONS, scenario_for
from simulation.simulator import simulate

MOST_SEEDS = 300


def first_violation(scenario):
    for seed in range(MOST_SEEDS):
        try:
            simulate(seed, scenario_for(seed, scenario))
        except Violation as found:
            return found
    return None


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_defect_is_found(name, monkeypatch):
    mutate, invariants, scenario = MUTATIONS[name]
    mutate(monkeypatch)
    found = first_violation(scenario)
    assert found is not None
    assert found.invariant in invariants, str(found)


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_it_the_same_runs_go_well(name):
    for seed in range(3):
        simulate(seed, scenario_for(seed, MUTATIONS[name][2]))
