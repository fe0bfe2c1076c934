"""Small scopes wholly: every schedule of at most two faults. With SIMULATE_SEEDS as many as ten minutes allow."""

import itertools
import os
import time

import pytest
from msgspec.structs import replace

from elastic_core.rendezvous.member import forming
from elastic_core.rendezvous.member.state import NEVER_S, State
from simulation.checks import Violation
from simulation.explore import BEGIN_S, SCOPES, Explored, Fault, Scope, explore, play

LONG_S = 600.0 if "SIMULATE_SEEDS" in os.environ else 0.0
"""How long to explore, in seconds."""
SMALL = (SCOPES[0], Scope(members=2, largest=2, faults=1, phases=1, steps=1))
SPARE = Scope(members=3, largest=2, faults=1, phases=1, steps=1)
BOTH_AWAY = Fault(kind="away", hosts=("n1", "n2"), at_s=0.0, length_s=5.2)
"""The two that train are away for all but the spare."""


@pytest.mark.timeout(60 + 2 * LONG_S)
def test_all_schedules_of_small_scopes_go_well(capsys):
    if not LONG_S:
        found = explore(SMALL, lambda: True)
        assert found.scopes == SMALL
        return
    end_s = time.monotonic() + LONG_S
    found = explore(SCOPES, lambda: time.monotonic() < end_s)
    with capsys.disabled():
        print(f"\nexplored: {found}")
    assert found.scopes


def test_the_same_schedule_tells_the_same_story():
    def told():
        simulation = Explored(SPARE, (BOTH_AWAY,))
        simulation.run()
        return list(simulation.checks.trace)

    assert told() == told()


def test_a_scope_has_each_schedule_once():
    for scope in SCOPES[:6]:
        schedules = list(scope.schedules())
        assert len(set(schedules)) == len(schedules)
        assert all(len(schedule) == scope.faults for schedule in schedules)


def test_exploration_says_how_far_it_came():
    turns = itertools.count()
    found = explore(SMALL, lambda: next(turns) < 3)
    assert (found.schedules, found.scopes, found.begun) == (3, SMALL[:1], SMALL[1])
    assert str(found).startswith("3 schedules; all of:\n  2 members in rounds of at most 2, 0 faults")


def test_two_that_are_away_together_train_on_while_a_spare_reaches_the_store():
    simulation = Explored(SPARE, (BOTH_AWAY,))
    simulation.run()
    back_s = BEGIN_S + BOTH_AWAY.length_s
    ends = [at_s for at_s, _, what in simulation.checks.trace if "no workers" in what or "told" in what]
    assert min(ends) > back_s


def without_waiting(patch):
    patch.setattr(forming, "silent_until_s", lambda view, memory, current: view.now_s)


def without_end(patch):
    patch.setattr(State, "fence_s", property(lambda self: NEVER_S))
    patch.setattr(State, "cut_s", property(lambda self: NEVER_S))


DEFECTS = {
    "a spare waits for nobody": (without_waiting, SPARE, (BOTH_AWAY,)),
    "a lease that ends stops nothing": (without_end, SPARE, (replace(BOTH_AWAY, kind="alone", hosts=("n1",)),)),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name, monkeypatch):
    mutate, scope, schedule = DEFECTS[name]
    play(scope, schedule)
    mutate(monkeypatch)
    with pytest.raises(Violation, match="one round trains"):
        play(scope, schedule)
