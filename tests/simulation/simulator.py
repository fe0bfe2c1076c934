"""Whole runs of many members against a simulated store, in virtual time, from one seed.

What cannot hold, and is therefore not played:

- A store that loses a round of which no living node knew: its token may come again, with another nonce, and on an
  emptied store newcomers begin another run. Tokens are checked to rise beyond all that anybody alive has run. So no
  store forgets while members are parted from it, each of which may train on and be all that knows of its round.
- A request that arrives more than a lease after it was given up, or two copies of one that are applied at different
  times without an error in between: sockets that are closed and one connection a client rule both out.

What cannot hold, and is counted (`Report.twofold`): that one round trains while partitions, in which datagrams do not
pass either, last longer than the grace that the user gave an outage.
"""

import random
from collections.abc import Callable

from msgspec.structs import replace

from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    DrainOrder,
    RosterEntry,
    RoundDocument,
    decode,
    encode,
)
from elastic_core.rendezvous.member.duty import ended
from elastic_core.rendezvous.member.state import Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from simulation.checks import TRACE_LENGTH, Checks, Report, Violation
from simulation.faults import Faults
from simulation.member import SimulatedMember
from simulation.network import Network
from simulation.scenario import Scenario, scenario_of

SETTLE_S = 300.0
"""How long after the last fault all must have found their places.

Nodes that were lost wait as spares before, and members of a round of which nobody is alive are waited for as long as
the grace."""
MOST_STEPS = 400_000
STOP_LATENCIES = 12
"""How many messages one after another an order to stop may take at the most, to all nodes that hear anything."""


def simulate(seed: int, scenario: Scenario | None = None, *, verbose: bool = False) -> Report:
    """Return what happened.

    Raises:
        Violation: an invariant does not hold; its text has the seed and the last that happened.
    """
    simulation = Simulation(seed, scenario if scenario is not None else scenario_of(seed), verbose=verbose)
    try:
        return simulation.run()
    except (Violation, AssertionError) as err:
        invariant = err.invariant if isinstance(err, Violation) else "the machine is total"
        trace = "\n".join(f"{at_s:9.4f} {who:>8} {what}" for at_s, who, what in simulation.checks.trace)
        text = f"{err}\n{trace}\nseed {seed}, {simulation.scenario}"
        raise Violation(invariant, text) from err


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, scenario: Scenario, *, verbose: bool = False, rng: random.Random | None = None
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.verbose = verbose
        self.rng = random.Random(seed) if rng is None else rng
        self.checks = Checks(scenario, trace_length=None if verbose else TRACE_LENGTH)
        self.net = Network(scenario, self.rng, self.checks)
        self.faults = Faults(self)
        self.members: list[SimulatedMember] = []
        self.checks.alive = lambda name: any(one.live for one in self.members if one.incarnation == name)
        self.finishing = False
        self.ordered: set[str] = set()
        """The incarnations that somebody outside wants to end; an empty one: all."""
        self.steps = 0
        self._numbers = 0

    def arrive(self, name: str = "") -> None:
        """Let a node begin, again if it has a name already."""
        self._numbers += 1
        name = name or f"n{self._numbers}"
        self.checks.said(self.net.now_s, "FAULT", f"{name} arrives")
        self.members.append(SimulatedMember(self, name, self._numbers))

    def member_of(self, entry: RosterEntry) -> SimulatedMember | None:
        """Return the node that an entry of a roster means."""
        return next((member for member in self.members if member.incarnation == entry.incarnation), None)

    def order(self, incarnation: str) -> bool:
        """Write into the store that a member is to end, empty: that all are; return whether that can be done now."""
        found = self.net.store.load(CONTROL_KEY, now_s=self.net.now_s)
        if found is None or self.net.paused or self.net.down:
            return False
        control = decode(found.value, ControlDocument)
        order = DrainOrder(incarnation=incarnation, node=incarnation.partition("#")[0], by="somebody")
        if control.verdict is not None or order in control.drains:
            return False
        written = encode(replace(control, drains=(*control.drains, order)))
        self.net.swap(self.net.store, self.net.now_s, CONTROL_KEY, written, found.version, 3600.0)
        self.net.noticed()
        self.ordered.add(incarnation)
        return True

    def run(self) -> Report:
        """Let it happen: a beginning, faults, calm, and an end."""
        for _ in range(self.scenario.nodes):
            self.net.after(self.rng.uniform(0, 0.5), self.arrive)
        self._until(self.scenario.calm_s)
        forming = {member.incarnation: member.operations for member in self.members}
        if self.scenario.forming_only:
            self._await("every member finds its place", self._settled)
            return self._report(forming)
        self._until(self._plan_faults())
        self._await("every member finds its place", self._settled)
        self.finishing = True
        for member in self.members:
            member.finish(self.rng.uniform(0, 5))
        self._await("every member hears the verdict", self._over)
        return self._report(forming)

    def _plan_faults(self) -> float:
        """Put the faults on the calendar; return when the last of them will be over."""
        return self.faults.plan()

    def starting(self, member: SimulatedMember) -> None:
        """Take note that workers start on a node: that may cost agents there their processor time."""
        self.faults.starting(member)

    def stop_posted(self, poster: SimulatedMember, round_: RoundDocument) -> None:
        """Judge, a moment from now, that all who could hear of it have been told to stop."""
        calm_s = self.net.now_s - self.scenario.ttl_s  # what was lost before that has been noticed since
        within_s = STOP_LATENCIES * self.scenario.latency_s

        def judge() -> None:
            if not poster.live or not self.net.calm(poster.line, calm_s):
                return
            for member in self.members:
                if member.trains(round_) and self.net.calm(member.line, calm_s):
                    self.checks.fail("a stop is prompt", f"{member.incarnation} trains on after {within_s:.2f} s")

        self.net.after(within_s, judge)

    def _until(self, time_s: float) -> None:
        due: list[bool] = []
        self.net.at(time_s, lambda: due.append(True))
        while not due:
            self._turn()

    def _turn(self) -> None:
        if not self.net.turn() or self.steps > MOST_STEPS:
            raise Violation("operations are bounded", f"{self.steps} steps in {self.net.now_s:.1f} s")

    def _await(self, invariant: str, holds: Callable[[], bool]) -> None:
        end_s = self.net.now_s + SETTLE_S
        while not holds():
            if self.net.now_s > end_s:
                raise Violation(invariant, "; ".join(self._told(member) for member in self.members if member.live))
            self._until(self.net.now_s + 0.5)

    def _told(self, member: SimulatedMember) -> str:
        state = member.state
        mine = (state.mine.token, state.mine.nonce) if state.mine is not None else None
        return f"{member.incarnation} {state.want} {mine} seen {state.run.seen_token} does {member.operation}"

    # --- where everybody is

    def _settled(self) -> bool:
        control, round_ = self._documents()
        live = [member for member in self.members if member.live]
        if self._disobeyed(control, live):
            return False
        runs = round_ is not None and control is not None and round_.epoch == control.epoch
        current = round_ if runs and control is not None and round_ is not None and not ended(control, round_) else None
        if control is None or control.verdict is not None or len(live) < self.scenario.min_nodes:
            return all(self._waits(member) or self._at_home(member, current) for member in live)
        return current is not None and all(self._at_home(member, current) for member in live)

    def _disobeyed(self, control: ControlDocument | None, live: list[SimulatedMember]) -> bool:
        """Return whether somebody goes on who is to end, by an order that the store has not lost."""
        if self.checks.forgotten or control is None or not self.ordered:
            return False
        return any(control.stop_order is not None or member.incarnation in self.ordered for member in live)

    def _waits(self, member: SimulatedMember) -> bool:
        return member.state.want is Want.JOIN and member.workers is None

    def _at_home(self, member: SimulatedMember, round_: RoundDocument | None) -> bool:
        state = member.state
        if round_ is None:
            return False
        if member.incarnation not in round_.incarnations:
            return state.want is Want.JOIN and state.waiting.spare
        mine = state.mine
        return state.want is Want.RUN and mine is not None and (mine.token, mine.nonce) == (round_.token, round_.nonce)

    def _documents(self) -> tuple[ControlDocument | None, RoundDocument | None]:
        store, now_s = self.net.store, self.net.now_s
        control, round_ = store.load(CONTROL_KEY, now_s=now_s), store.load(ROUND_KEY, now_s=now_s)
        return (
            decode(control.value, ControlDocument) if control is not None else None,
            decode(round_.value, RoundDocument) if round_ is not None else None,
        )

    def _over(self) -> bool:
        live = [member for member in self.members if member.live]
        if len(live) < self.scenario.min_nodes and all(self._waits(member) for member in live):
            return True  # they would wait for more nodes until their time is over
        return not live

    def _report(self, forming: dict[str, int]) -> Report:
        rounds = self.checks.rounds
        last = rounds[self.checks.last] if self.checks.last is not None else None
        return Report(
            seed=self.seed,
            rounds=len(rounds),
            restarts=last.restarts if last is not None else 0,
            changes=last.changes if last is not None else 0,
            operations={member.incarnation: member.operations for member in self.members},
            forming=forming,
            outcomes=dict(self.checks.outcomes),
            seconds=self.net.now_s,
            steps=self.steps,
            decided=self.checks.decided,
            saved=len(self.checks.saves),
            asked=len(self.checks.questions),
            concluded=len(self.checks.concluded_as),
            twofold=len(self.checks.twofold),
        )
