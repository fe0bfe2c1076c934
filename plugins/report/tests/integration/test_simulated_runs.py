"""Runs of many nodes in the simulator of the rendezvous: the states of all nodes are the sum of their presences."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from elastic_core.api.feed import RunEvent
from elastic_core.rendezvous.member.state import Want
from elastic_plugin_kit import sample_round
from elastic_report.ledger.accounting import Accounting
from elastic_report.ledger.document import Line, RoundLine
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Tally
from simulation.member import SimulatedMember
from simulation.scenario import scenario_of
from simulation.simulator import Simulation

SEEDS = 25
FIRST_S = 10_000.0
"""The nodes' clocks are off by random times; those of an accounting begin above zero."""


class Recorded:
    """The accounting of one simulated agent, and its presence."""

    def __init__(self, member: SimulatedMember) -> None:
        self.offset_s = FIRST_S - member.local_s
        self.began_s = self.now_s = FIRST_S
        self.accounting = Accounting(started_s=self.began_s, started_ns=10**18)
        self.lines: list[Line] = []
        self.state = ""
        self.rounds = 0
        self.over = False

    def add(self, member: SimulatedMember, name: str, values: dict[str, Any]) -> None:
        if self.over:
            return
        self.now_s = member.local_s + self.offset_s
        at_ns = 10**18 + round((self.now_s - self.began_s) * 1e9)
        self.accounting.observe(RunEvent(name=name, at_s=self.now_s, at_ns=at_ns, values=values))
        if self.accounting.wants_progress:
            self.accounting.read({}, self.now_s, final=True)
        self.lines += self.accounting.take()

    def step(self, member: SimulatedMember, state: str, event: str = "X", **values: Any) -> None:
        if state != self.state or values:
            self.state = state
            entered = {"event": event, "state": state, "state_reason": "", "entered": True}
            self.add(member, "step", entered | values)

    def start(self, member: SimulatedMember) -> None:
        round_ = sample_round(index=self.rounds, local_world_size=1)
        self.rounds += 1
        self.step(member, "preparing", "RoundFormed", round=round_)
        self.add(member, "round_joined", {"round": round_, "members": ()})
        self.add(member, "workers_started", {"round": round_, "pids": (1,)})

    def observe(self, member: SimulatedMember) -> None:
        runs = getattr(member, "state", None) is not None and member.state.want is Want.RUN
        if member.workers is not None:
            self.step(member, "running" if runs else "stopping")
        else:
            self.step(member, "deciding" if runs else "joining")
        if member.ending:
            self.close(member)

    def close(self, member: SimulatedMember) -> None:
        if not self.over:
            self.now_s = member.local_s + self.offset_s
            self.accounting.close({}, self.now_s)
            self.lines += self.accounting.take()
            self.over = True


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[SimulatedMember, Recorded]:
    """The accountings of all agents that a simulation has."""
    found: dict[SimulatedMember, Recorded] = {}

    def wrap(name: str, before: Callable[[Recorded, SimulatedMember], None] | None = None) -> None:
        original = getattr(SimulatedMember, name)

        def wrapped(member: SimulatedMember, *args: Any, **given: Any) -> Any:
            made = found.setdefault(member, Recorded(member))
            result = original(member, *args, **given)
            if before is not None and member.workers is not None:
                before(made, member)
            made.observe(member)
            return result

        monkeypatch.setattr(SimulatedMember, name, wrapped)

    wrap("_start", Recorded.start)
    for name in ("_join", "_go", "_halt", "_kill", "_end", "crash", "_told"):
        wrap(name)
    return found


def test_the_states_of_all_nodes_are_the_sum_of_their_presences(recorded):
    states: Counter[S] = Counter()
    agents = rounds = 0
    for seed in range(SEEDS):
        recorded.clear()
        simulation = Simulation(seed, scenario_of(seed))
        simulation.run()
        present_s = counted_s = 0.0
        for member, made in recorded.items():
            made.close(member)
            tally = Tally()
            for line in made.lines:
                tally.add(line)
            totals = tally.totals()
            assert totals.present_s == pytest.approx(made.now_s - made.began_s, abs=1e-6), (seed, member.incarnation)
            counted_s += totals.present_s
            present_s += made.now_s - made.began_s
            states.update(totals.states)
            rounds += sum(isinstance(line, RoundLine) for line in made.lines)
        agents += len(recorded)
        assert counted_s == pytest.approx(present_s, abs=1e-4)
    assert agents > 2 * SEEDS
    assert rounds > 2 * SEEDS
    assert {S.RENDEZVOUS, S.PRODUCTIVE, S.STOPPING} <= set(states)
