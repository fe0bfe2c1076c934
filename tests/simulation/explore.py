"""Every schedule of a small scope: two or three members, one store, at most two faults on a grid of times.

Nothing here is drawn: messages take the same time, whoever may choose takes the middle or the first. The faults are
what differs: each of a kind, about somebody, from a moment on, for a while. The first falls at each phase of a renewal
period, the second at each step after it until a lease after the first can have healed. `explore` plays them scope by
scope, the smaller ones first, and says how far it came.
"""

import itertools
import random
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from functools import partial
from typing import Any

from elastic_core.types import Record
from simulation.checks import Violation
from simulation.network import Cut
from simulation.scenario import Scenario
from simulation.simulator import Simulation

LEASE_S = 2.0
PERIOD_S = LEASE_S / 3
BEGIN_S = 3.0
"""When the first fault falls: the round stands by then."""
LENGTHS = (0.6, 1.3, 2.6)
"""How long a fault lasts, in leases: less than one, more than one, and more than one after another has healed."""

LATE = 0.25
"""How late datagrams are, in leases, while they are."""


class Steady(random.Random):
    """Chance without any: the middle of each range, and the first of all there is."""

    def random(self) -> float:
        """Return the middle."""
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2

    def randint(self, a: int, b: int) -> int:
        """Return the least."""
        return a

    def choice(self, seq: Any) -> Any:
        """Return the first."""
        return seq[0]

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        """Return the first ones."""
        return list(population)[:k]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Leave the order as it is."""


class Away(Record, frozen=True, kw_only=True):
    """Some hosts do not reach the store, and some pairs not each other."""

    hosts: frozenset[str]
    pairs: frozenset[frozenset[str]]
    refuses: bool = False

    def from_store(self, name: str) -> bool:
        """Return whether a host is one of them."""
        return name.partition("#")[0] in self.hosts

    def between(self, one: str, other: str) -> bool:
        """Return whether they are such a pair."""
        return frozenset((one.partition("#")[0], other.partition("#")[0])) in self.pairs


class Fault(Record, frozen=True, kw_only=True):
    """One fault. `kind`: `away`, `refused`, `parted`, `alone`, `crash`, `power`, `stopped`, `late`.

    `hosts` is whom it is about, `at_s` when, in seconds after the first moment, and `length_s` how long it lasts: of a
    crash, until the node is back (0: never).
    """

    kind: str
    hosts: tuple[str, ...]
    at_s: float
    length_s: float


Schedule = tuple[Fault, ...]


class Scope(Record, frozen=True, kw_only=True):
    """What is played: how many members, of which so many are in the round, how many faults, and on which grid."""

    members: int
    largest: int
    faults: int
    phases: int
    steps: int

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"{self.members} members in rounds of at most {self.largest}, {self.faults} faults, "
            f"{self.phases} phases, {self.steps} steps a lease"
        )

    def schedules(self) -> Iterator[Schedule]:
        """Return all of its schedules."""
        names = [f"n{number}" for number in range(1, self.members + 1)]
        if not self.faults:
            yield ()
            return
        for phase in range(self.phases):
            for first in _faults(names, phase * PERIOD_S / self.phases):
                if self.faults == 1:
                    yield (first,)
                    continue
                last = int((first.length_s / LEASE_S + 1) * self.steps)
                for step in range(last + 1):
                    for second in _faults(names, first.at_s + step * LEASE_S / self.steps):
                        if step or (first.kind, first.hosts) <= (second.kind, second.hosts):
                            yield first, second


SCOPES = (
    Scope(members=2, largest=2, faults=0, phases=1, steps=1),
    Scope(members=2, largest=2, faults=1, phases=4, steps=1),
    Scope(members=3, largest=3, faults=1, phases=4, steps=1),
    Scope(members=3, largest=2, faults=1, phases=4, steps=1),
    Scope(members=2, largest=2, faults=2, phases=1, steps=1),
    Scope(members=2, largest=2, faults=2, phases=1, steps=2),
    Scope(members=3, largest=2, faults=2, phases=1, steps=1),
    Scope(members=3, largest=3, faults=2, phases=1, steps=1),
    Scope(members=2, largest=2, faults=2, phases=2, steps=4),
    Scope(members=3, largest=2, faults=2, phases=2, steps=2),
    Scope(members=3, largest=3, faults=2, phases=2, steps=2),
    Scope(members=2, largest=2, faults=2, phases=4, steps=8),
    Scope(members=3, largest=2, faults=2, phases=2, steps=4),
    Scope(members=3, largest=3, faults=2, phases=2, steps=4),
)
"""From the smallest to what takes days."""


def _faults(names: Sequence[str], at_s: float) -> Iterator[Fault]:
    """Return all faults that may begin at a moment."""
    some = [*((name,) for name in names), *itertools.combinations(names, 2)]
    some = [*dict.fromkeys([*some, tuple(names)])]
    for length in LENGTHS:
        make = partial(Fault, at_s=at_s, length_s=length * LEASE_S)
        yield from (make(kind="away", hosts=hosts) for hosts in some)
        yield from (make(kind="alone", hosts=(name,)) for name in names)
        yield from (make(kind="parted", hosts=pair) for pair in itertools.combinations(names, 2))
        yield from (make(kind="stopped", hosts=(name,)) for name in names)
    yield Fault(kind="late", hosts=tuple(names), at_s=at_s, length_s=LENGTHS[-1] * LEASE_S)
    yield Fault(kind="refused", hosts=tuple(names), at_s=at_s, length_s=LENGTHS[-1] * LEASE_S)
    for name in names:
        for kind in ("crash", "power"):
            yield Fault(kind=kind, hosts=(name,), at_s=at_s, length_s=0.0)
            yield Fault(kind=kind, hosts=(name,), at_s=at_s, length_s=0.5)


class Explored(Simulation):
    """One schedule of a scope."""

    def __init__(self, scope: Scope, schedule: Schedule) -> None:
        scenario = Scenario(
            nodes=scope.members,
            min_nodes=1,
            max_nodes=scope.largest,
            ttl_s=LEASE_S,
            first_call_s=0.3,
            last_call_s=0.1,
            calm_s=BEGIN_S,
            outage_grace_s=8 * LEASE_S,
        )
        super().__init__(0, scenario, rng=Steady())
        self._schedule = schedule

    def _plan_faults(self) -> float:
        for fault in self._schedule:
            self.net.at(BEGIN_S + fault.at_s, partial(self._strike, fault))
        return BEGIN_S + max((fault.at_s + fault.length_s for fault in self._schedule), default=0.0) + LEASE_S

    def _strike(self, fault: Fault) -> None:
        self.checks.said(self.net.now_s, "FAULT", f"{fault.kind} {fault.hosts} for {fault.length_s:.2f} s")
        hosts, names = frozenset(fault.hosts), {member.name for member in self.members}
        pairs: dict[str, frozenset[frozenset[str]]] = {
            "away": frozenset(),
            "refused": frozenset(),
            "parted": frozenset({hosts}),
            "alone": frozenset(frozenset((name, other)) for name in hosts for other in names - hosts),
        }
        if fault.kind in pairs:
            cut = Away(
                hosts=frozenset() if fault.kind == "parted" else hosts,
                pairs=pairs[fault.kind],
                refuses=fault.kind == "refused",
            )
            self._cut(cut, fault.length_s)
            return
        if fault.kind == "late":
            self.net.late_s = LATE * LEASE_S
            self.net.after(fault.length_s, partial(setattr, self.net, "late_s", 0.0))
            return
        victim = next((one for one in self.members if one.name in hosts and one.live), None)
        if victim is None:
            return
        if fault.kind == "stopped":
            if not victim.paused:
                victim.paused = True
                self.net.after(fault.length_s, victim.resume)
            return
        victim.crash(guarded=fault.kind == "crash")
        if fault.length_s:
            self.net.after(fault.length_s, partial(self.arrive, victim.name))

    def _cut(self, cut: Cut, length_s: float) -> None:
        self.net.cuts.append(cut)
        self.net.disturb()

        def heal() -> None:
            self.net.cuts.remove(cut)
            self.net.disturb()

        self.net.after(length_s, heal)


def play(scope: Scope, schedule: Schedule) -> None:
    """Play one schedule.

    Raises:
        Violation: an invariant does not hold; its text has the schedule and the last that happened.
    """
    simulation = Explored(scope, schedule)
    try:
        simulation.run()
    except AssertionError as err:
        invariant = err.invariant if isinstance(err, Violation) else "the machine is total"
        trace = "\n".join(f"{at_s:9.4f} {who:>8} {what}" for at_s, who, what in simulation.checks.trace)
        raise Violation(invariant, f"{err}\n{trace}\n{scope}\n{schedule}") from err


class Found(Record, frozen=True, kw_only=True):
    """How far an exploration came: the scopes that were played wholly, and what was begun last."""

    schedules: int
    scopes: tuple[Scope, ...]
    begun: Scope | None = None
    begun_share: float = 0.0

    def __str__(self) -> str:
        """Return it for people."""
        lines = [f"{self.schedules} schedules; all of:", *(f"  {scope}" for scope in self.scopes)]
        if self.begun is not None:
            lines.append(f"  and {self.begun_share:.0%} of: {self.begun}")
        return "\n".join(lines)


def explore(scopes: Sequence[Scope], goes_on: Callable[[], bool]) -> Found:
    """Play all schedules, scope by scope, while `goes_on` says so.

    Raises:
        Violation: an invariant does not hold.
    """
    count, whole = 0, list[Scope]()
    for scope in scopes:
        total = sum(1 for _ in scope.schedules())
        for number, schedule in enumerate(scope.schedules()):
            if not goes_on():
                return Found(schedules=count, scopes=tuple(whole), begun=scope, begun_share=number / total)
            play(scope, schedule)
            count += 1
        whole.append(scope)
    return Found(schedules=count, scopes=tuple(whole))
