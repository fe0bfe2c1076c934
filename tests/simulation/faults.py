"""The faults of a simulated run: when, what, to whom. All chance is the simulation's own."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.rendezvous.member.state import Want
from simulation import scenario as s
from simulation.network import Cut, Split, Victim

if TYPE_CHECKING:
    from simulation.member import SimulatedMember
    from simulation.simulator import Simulation

STARVED_LEASES = 20
"""For how many leases a run on hosts without processor time is watched: until the lease is as long as is needed."""
STALLS = 3
"""How often workers that start stall the agents of their hosts, at the most."""


class Faults:
    """Does harm to one simulation."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._net = world.net
        self._rng = world.rng
        self._scenario = world.scenario
        self._clear_s = 0.0
        self._starved: frozenset[str] = frozenset()
        self._stall_s = 0.0

    def plan(self) -> float:
        """Put the faults on the calendar; return when the last of them will be over."""
        scenario, net = self._scenario, self._net
        net.at(scenario.calm_s, lambda: setattr(net, "noisy", True))
        kinds = sorted(scenario.faults - {s.MESSAGES})
        end_s = scenario.calm_s + scenario.fault_s
        for _ in range(scenario.count if kinds else 0):
            net.at(self._rng.uniform(scenario.calm_s, end_s), partial(self._strike, self._rng.choice(kinds)))
        longest_s = 3 * scenario.ttl_s
        split_s = scenario.split_s if {s.SPLIT, s.UNHEARD} & set(kinds) else 0.0
        starved_s = STARVED_LEASES * scenario.ttl_s if s.STARVED in kinds else 0.0
        net.at(end_s + longest_s + split_s, self._quiet)
        return end_s + 2 * longest_s + split_s + starved_s

    def _quiet(self) -> None:
        self._net.noisy = False
        self._net.disturb()

    def _strike(self, kind: str) -> None:
        strikes: dict[str, Callable[[], None]] = {
            s.STORE_PAUSE: self._store_pause,
            s.STORE_DOWN: self._store_down,
            s.STORE_FULL: self._store_full,
            s.STORE_EMPTIED: self._store_emptied,
            s.STORE_BACK: self._store_back,
            s.PARTITION: self._partition,
            s.SPLIT: partial(self._split, opened=False),
            s.UNHEARD: partial(self._split, opened=True),
            s.SIGSTOP: self._sigstop,
            s.CRASH: partial(self._crash, guarded=True),
            s.POWER: partial(self._crash, guarded=False),
            s.ARRIVAL: self._world.arrive,
            s.DEPARTURE: self._departure,
            s.FAILURE: self._failure,
            s.FAILURES: self._failures,
            s.LEADER: self._leader,
            s.FINISH: self._finish,
            s.DOOR: self._door,
            s.BLACKOUT: self._blackout,
            s.STARVED: self._starve,
            s.REFUSAL: self._refusal,
            s.ORDER: self._order,
            s.STOPPED: self._stopped,
        }
        strikes[kind]()

    def _note(self, what: str) -> None:
        self._world.checks.said(self._net.now_s, "FAULT", what)

    def _someone(self, *, spare: int = 0) -> "SimulatedMember | None":
        """Return a live member; None: there are too few to lose one."""
        members = [member for member in self._world.members if member.live]
        return self._rng.choice(members) if len(members) > spare else None

    # --- the store

    def _store_pause(self) -> None:
        if self._net.paused or self._net.down:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"the store pauses for {length_s:.2f} s")
        self._net.paused = True
        self._net.after(length_s, self._net.resume)

    def _store_down(self) -> None:
        if self._net.paused or self._net.down:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"the store is down for {length_s:.2f} s")
        self._go_down(length_s)

    def _store_full(self) -> None:
        net = self._net
        if net.full:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"the store is full for {length_s:.2f} s")
        net.full = True
        net.disturb()

        def room() -> None:
            net.full = False
            net.disturb()
            self._note("the store has room")

        net.after(length_s, room)

    def _go_down(self, length_s: float) -> None:
        net = self._net
        net.down = True
        net.hang_up()

        def up() -> None:
            net.down = False
            net.disturb()
            self._note("the store is back")

        net.after(length_s, up)

    def _door(self) -> None:
        if self._net.paused or self._net.down:
            return
        length_s = self._rng.uniform(1.1, 2.5) * self._scenario.ttl_s
        newcomers = self._rng.randint(1, 3)
        self._note(f"the store is down for {length_s:.2f} s, and {newcomers} come meanwhile")
        self._go_down(length_s)
        for _ in range(newcomers):
            self._net.after(self._rng.uniform(0.9, 1.05) * length_s, self._world.arrive)

    def _blackout(self) -> None:
        members = [member for member in self._world.members if member.live]
        for member in members:
            self._net.after(self._rng.uniform(0, 0.2), partial(member.crash, guarded=False))
        for _ in range(max(len(members), self._scenario.min_nodes)):
            self._net.after(self._rng.uniform(0.5, 2 * self._scenario.ttl_s), self._world.arrive)

    def _store_emptied(self) -> None:
        if self._net.paused or self._net.down:
            return
        self._note("the store loses everything")
        self._net.store.empty(f"b{self._net.now_s:.3f}")
        self._world.checks.forgotten = True
        self._go_down(self._rng.uniform(0.01, 2.0))

    def _store_back(self) -> None:
        snapshot = self._net.store.copy()
        lost_s = self._rng.uniform(0.01, s.LOST_WRITES_S)

        def back() -> None:
            if self._net.paused or self._net.down:
                return
            self._note(f"a failover loses {lost_s:.2f} s of writes")
            self._net.store = snapshot
            self._world.checks.forgotten = True
            self._go_down(self._rng.uniform(0.01, 2.0))

        self._net.after(lost_s, back)

    # --- members

    def _partition(self) -> None:
        victim = self._someone(spare=1)
        if victim is None or self._net.now_s < self._clear_s:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._clear_s = self._net.now_s + length_s
        alone = self._rng.random() < 0.5
        cut = Victim(name=victim.incarnation, refuses=self._rng.random() < 0.4, alone=alone)
        self._cut(cut, length_s)

    def _cut(self, cut: Cut, length_s: float) -> None:
        net = self._net
        net.cuts.append(cut)
        away = [one.incarnation for one in self._world.members if one.live and cut.from_store(one.incarnation)]
        self._note(f"for {length_s:.2f} s {away} do not reach the store: {cut}")

        def heal() -> None:
            net.cuts.remove(cut)
            self._note(f"healed: {cut}")
            for member in self._world.members:
                if cut.from_store(member.incarnation):
                    member.line.disturbed_s = net.now_s

        net.after(length_s, heal)

    def _split(self, *, opened: bool) -> None:
        """Part the hosts, now or then again before the last such fault has healed.

        Half the time the members of the round are on one side, without the store, but for a few, and half of these
        times some of them are there longer than the others.
        """
        rng, length_s = self._rng, self._rng.uniform(0.2, self._scenario.split_s)
        self._net.disturb()
        if rng.random() < 0.5:
            self._cut(self._drawn_split(opened=opened), length_s)
            return
        away = [name for name in self._trained() if rng.random() < 0.9]
        self._cut(self._aimed(away, opened=opened), length_s)
        if rng.random() < 0.5 and away:
            later = rng.sample(away, rng.randint(1, len(away)))
            longer_s = length_s + rng.uniform(0.2, 3.0) * self._scenario.ttl_s
            parted = self._aimed(later, opened=opened or rng.random() < 0.7)
            self._cut(parted, min(longer_s, self._scenario.split_s))

    def _trained(self) -> list[str]:
        """Return the hosts where workers run."""
        return sorted({member.name for member in self._world.members if member.live and member.workers is not None})

    def _aimed(self, away: list[str], *, opened: bool) -> Split:
        placed = {member.name: 0 for member in self._world.members} | dict.fromkeys(away, 1)
        return Split(
            seed=self._rng.getrandbits(32),
            groups=1,
            without_store=frozenset({1}),
            holes=0.0,
            refuses=self._rng.random() < 0.4,
            open=opened,
            placed=placed,
        )

    def _drawn_split(self, *, opened: bool) -> Split:
        rng, groups = self._rng, self._rng.randint(1, 4)
        return Split(
            seed=rng.getrandbits(32),
            groups=groups,
            without_store=frozenset(group for group in range(groups) if rng.random() < 0.6),
            holes=rng.choice((0.0, 0.0, 0.1, 0.4)),
            refuses=rng.random() < 0.4,
            open=opened,
        )

    def _sigstop(self) -> None:
        victim = self._someone()
        if victim is None or victim.paused:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"{victim.incarnation} stops for {length_s:.2f} s")
        victim.paused = True
        self._net.after(length_s, victim.resume)

    def _starve(self) -> None:
        """From now on some hosts, or all, have too few processors for workers that start, or have just started."""
        rng, names = self._rng, sorted({member.name for member in self._world.members if member.live})
        if self._starved or not names:
            return
        self._starved = frozenset(rng.sample(names, rng.randint(1, len(names))) if rng.random() < 0.5 else names)
        self._stall_s = rng.uniform(0.5, 2.0) * self._scenario.ttl_s
        self._note(f"workers that start on {sorted(self._starved)} stall agents there for {self._stall_s:.2f} s")
        begun = next((one for one in self._world.members if one.live and one.workers is not None), None)
        if begun is not None:
            self.starting(begun)

    def starting(self, member: "SimulatedMember") -> None:
        """Stall all agents of the starved hosts a few times, as workers start on one of them."""
        if member.name not in self._starved:
            return
        begin_s = 0.0
        for _ in range(self._rng.randint(1, STALLS)):
            begin_s += self._rng.uniform(0.01, 1.0)
            length_s = self._rng.uniform(0.5, 1.0) * self._stall_s
            self._net.after(begin_s, partial(self._stall, length_s))
            begin_s += length_s

    def _stall(self, length_s: float) -> None:
        victims = [one for one in self._world.members if one.name in self._starved and one.live and not one.paused]
        for victim in victims:
            victim.paused = True
            self._net.after(length_s, victim.resume)
        if victims:
            self._note(f"{[victim.incarnation for victim in victims]} get no turn for {length_s:.2f} s")

    def _crash(self, *, guarded: bool) -> None:
        victim = self._someone(spare=1)
        if victim is None:
            return
        victim.crash(guarded=guarded)
        if self._rng.random() < 0.7:
            self._net.after(self._rng.uniform(0.1, 8), partial(self._world.arrive, victim.name))

    def _departure(self) -> None:
        victim = self._someone(spare=1)
        if victim is not None:
            self._note(f"{victim.incarnation} is told to stop")
            victim.depart()

    def _order(self) -> None:
        victim = self._someone(spare=1)
        if victim is not None and self._world.order(victim.incarnation):
            self._note(f"{victim.incarnation} is to leave")

    def _stopped(self) -> None:
        if self._world.order(""):
            self._note("the run is to end")

    def _failure(self) -> None:
        victim = self._someone()
        if victim is not None:
            self._note(f"workers of {victim.incarnation} fail")
            victim.fail()

    def _failures(self) -> None:
        members = [member for member in self._world.members if member.live]
        for victim in self._rng.sample(members, min(len(members), self._rng.randint(2, 4))):
            collateral = self._rng.random() < 0.5
            self._net.after(self._rng.uniform(0, 0.4), partial(self._fail, victim, collateral=collateral))

    def _fail(self, victim: "SimulatedMember", *, collateral: bool) -> None:
        self._note(f"workers of {victim.incarnation} {'lose a peer' if collateral else 'fail'}")
        victim.fail(collateral=collateral)

    def _leader(self) -> None:
        members = [member for member in self._world.members if member.live and member.state.lease.seat is not None]
        if len(members) < 2:
            return
        first = min(members, key=lambda member: getattr(member.state.lease.seat, "number", 0))
        self._fail(self._rng.choice(members), collateral=self._rng.random() < 0.3)
        guarded = self._rng.random() < 0.7

        def crash() -> None:
            if first.live:
                first.crash(guarded=guarded)
                self._net.after(self._rng.uniform(0.1, 8), partial(self._world.arrive, first.name))

        self._net.after(self._rng.uniform(0.1, 2.5), crash)

    def _refusal(self) -> None:
        """Let a hook refuse from now on; most of the time a failure brings the moment at which it is asked."""
        victim = self._someone()
        if victim is None:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"a hook of {victim.incarnation} refuses for {length_s:.2f} s")
        victim.refuse(length_s)
        if self._rng.random() < 0.7:
            self._fail(victim, collateral=False)
        if self._rng.random() < 0.2:
            self._net.after(self._rng.uniform(0, length_s), partial(victim.crash, guarded=self._rng.random() < 0.5))

    def _finish(self) -> None:
        victim = self._someone()
        if victim is not None and victim.state.want is Want.RUN:
            self._note(f"workers of {victim.incarnation} end well")
            victim.finish(self._rng.uniform(0, 2))
