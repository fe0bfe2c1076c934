"""The faults of a simulated run: when, what, to whom. All chance is the simulation's own."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.rendezvous.member.state import Want
from simulation import scenario as s

if TYPE_CHECKING:
    from simulation.member import SimulatedMember
    from simulation.simulator import Simulation


class Faults:
    """Does harm to one simulation."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._net = world.net
        self._rng = world.rng
        self._scenario = world.scenario
        self._clear_s = 0.0

    def plan(self) -> float:
        """Put the faults on the calendar; return when the last of them will be over."""
        scenario, net = self._scenario, self._net
        net.at(scenario.calm_s, lambda: setattr(net, "noisy", True))
        kinds = sorted(scenario.faults - {s.MESSAGES})
        end_s = scenario.calm_s + scenario.fault_s
        for _ in range(scenario.count if kinds else 0):
            net.at(self._rng.uniform(scenario.calm_s, end_s), partial(self._strike, self._rng.choice(kinds)))
        longest_s = 3 * scenario.ttl_s
        net.at(end_s + longest_s, self._quiet)
        return end_s + 2 * longest_s

    def _quiet(self) -> None:
        self._net.noisy = False
        self._net.disturb()

    def _strike(self, kind: str) -> None:
        strikes: dict[str, Callable[[], None]] = {
            s.STORE_PAUSE: self._store_pause,
            s.STORE_DOWN: self._store_down,
            s.STORE_EMPTIED: self._store_emptied,
            s.STORE_BACK: self._store_back,
            s.PARTITION: self._partition,
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
        victim.line.cut = True
        victim.line.refused = self._rng.random() < 0.4
        victim.peers_cut = self._rng.random() < 0.5
        self._note(f"{victim.incarnation} is cut off for {length_s:.2f} s (peers, too: {victim.peers_cut})")

        def heal() -> None:
            self._note(f"{victim.incarnation} is not cut off any more")
            victim.line.cut = victim.peers_cut = False
            victim.line.disturbed_s = self._net.now_s

        self._net.after(length_s, heal)

    def _sigstop(self) -> None:
        victim = self._someone()
        if victim is None or victim.paused:
            return
        length_s = self._rng.uniform(0.2, 3 * self._scenario.ttl_s)
        self._note(f"{victim.incarnation} stops for {length_s:.2f} s")
        victim.paused = True
        self._net.after(length_s, victim.resume)

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
        members = [member for member in self._world.members if member.live and member.state.seat is not None]
        if len(members) < 2:
            return
        first = min(members, key=lambda member: member.state.seat.number if member.state.seat is not None else 0)
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
