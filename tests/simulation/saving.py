"""The workers of one simulated node while a planned stop is held: steps, saves, and what the node makes of them."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_train import holding

if TYPE_CHECKING:
    from elastic_core.rendezvous.member.documents import RoundDocument
    from simulation.member import SimulatedMember

STEP_S = 0.1
LOOK_S = 0.05
LONGEST_SAVE_S = 0.5


class SimulatedRank:
    """A rank that asks before each step whether to stop; some scripts ask before every third alone."""

    def __init__(self, rng: random.Random, stride: int) -> None:
        self._begins_s = rng.uniform(0, 4 * STEP_S)
        self._stride = stride
        self._save_s = rng.uniform(0, LONGEST_SAVE_S)
        self._next = 0
        self._waits = False
        self._saved_s: float | None = None
        self.stopped_at: int | None = None

    def run(self, now_s: float, asked: bool, known: bool, step: int | None) -> None:
        """Come as far as it does in so many seconds from its start, by what its agent has said so far."""
        while self.stopped_at is None and now_s >= self._begins_s + self._next * STEP_S:
            if known and step is not None and self._next >= step:
                self.stopped_at, self._saved_s = self._next, now_s + self._save_s
            elif asked and not known:
                self._waits = True
                return
            else:
                self._next += self._stride
            self._waits = False

    def seen(self, now_s: float) -> holding.Seen:
        """Return how its agent sees it."""
        begun = self._next - self._stride
        step = self._next if self._waits else begun if begun >= 0 else None
        ready = self._saved_s is not None and now_s >= self._saved_s
        return holding.Seen(looks=True, step=step, waits=self._waits, ready=ready)


class SimulatedSaving:
    """The ranks of one round on one node, and the hold of its stop.

    Args:
        member: The node.
        document: The round; its nonce says how often scripts ask.
    """

    def __init__(self, member: "SimulatedMember", document: "RoundDocument") -> None:
        self._member = member
        self._key = (document.token, document.nonce)
        self._began_s = member.local_s
        stride = 1 + 2 * (sum(document.nonce.encode()) % 2)
        self._ranks = [SimulatedRank(member.rng, stride) for _ in range(2)]
        self._hold: holding.Hold | None = None
        self._released: Callable[[], None] = lambda: None
        self._known = False
        self._step: int | None = None

    def begin(self, limit_s: float, released: Callable[[], None]) -> None:
        """Hold the stop; `released` is called once, at the latest when the time is over."""
        if self._hold is not None:
            return
        self._run()
        self._hold = holding.Hold(began_s=self._member.local_s, limit_s=limit_s)
        self._released = released
        self._look()

    def agreed(self, topic: str, value: int) -> None:
        """Take what the nodes have agreed about."""
        self._member.world.checks.agreed(self._key, topic, value)
        if self._hold is not None:
            self._run()
            self._do(*holding.take(self._hold, topic, value))

    def _look(self) -> None:
        member = self._member
        if self._hold is None or self._hold.released or member.workers is None or member.saving is not self:
            return
        self._run()
        now_s = member.local_s
        workers = {index: rank.seen(now_s - self._began_s) for index, rank in enumerate(self._ranks)}
        self._do(*holding.look(self._hold, workers, now_s))
        member.after(LOOK_S, self._look)

    def _run(self) -> None:
        now_s = self._member.local_s - self._began_s
        for rank in self._ranks:
            rank.run(now_s, self._hold is not None, self._known, self._step)
            if rank.stopped_at is not None:
                self._member.world.checks.saved(self._key, self._member.incarnation, rank.stopped_at)

    def _do(self, hold: holding.Hold, actions: tuple[holding.Action, ...]) -> None:
        self._hold = hold
        for action in actions:
            match action:
                case holding.Tell(step=step):
                    self._known, self._step = True, step
                case holding.State(topic=topic, value=value):
                    self._member.state_number(topic, value)
                case holding.Release():
                    self._released()
