"""Many members of one run, up to ten thousand, against a modelled store that serves one request after another.

Beside `simulator`, which plays faults with a few members, this one asks what size costs: how many requests and bytes a
member needs, and how many requests come at once. The members are the product's machine. Not modelled: workers, and what
members ask each other.
"""

import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import encode
from elastic_core.rendezvous.member.state import PATIENCE_SHARE, Me
from elastic_core.rendezvous.store import Document, Members, Renewal, Revisions, Seat, Swapped, Topic, compare
from elastic_core.types import RendezvousInfo
from elastic_plugin_kit.store_model import StoreModel
from simulation.checks import Checks
from simulation.client import UNANSWERED, SimulatedClient
from simulation.network import Back, Call, Line, Network, Refused
from simulation.scenario import Scenario

REQUEST_S = 25e-6
"""What a request costs the store: 40,000 a second, as a Redis on one core."""
BYTES_A_SECOND = 1e9
HEAD_BYTES = 150
"""What a request and its answer have beside their content."""
WINDOW_S = 0.1
EXPIRE_S = 0.2


class CrowdStore(StoreModel):
    """The contract's model, which announces expiry and looks at no other lease for a renewal."""

    def _ahead(self, number: int) -> int:
        return bisect_left(list(self._leases), number)

    def renew(self, seat: Seat, *, ttl_s: float, now_s: float) -> Renewal | None:
        """Extend a lease, as the model does."""
        self._begin(now_s)
        lease, pause = self._lease(seat), self._paused(ttl_s, now_s)
        if lease is not None and pause:
            self._spare(ttl_s, now_s)
        if lease is not None or not pause:
            self._drop_expired(now_s)
        if lease is None or self._lease(seat) is None:
            return None
        self._heard_s, self._ttl_s = now_s, ttl_s
        lease.deadline_s = now_s + ttl_s
        self._earliest_s = min(self._earliest_s, lease.deadline_s)
        live = len(self._leases)
        return Renewal(ahead=self._ahead(seat.number), live=live, next_expiry_s=ttl_s if live > 1 else None)

    def announce_expiry(self, *, now_s: float) -> None:
        """Remove the members whose leases have ended, unless the store was away."""
        if not self._paused(self._ttl_s, now_s):
            self.expire(now_s=now_s)


class CrowdLine(Line):
    """A member's way to the store, and what went over it."""

    def __init__(self, name: str) -> None:
        super().__init__([], name)
        self.kind = "Watch"
        """What is asked next, and how many bytes that has."""
        self.size = 0
        self.requests: Counter[str] = Counter()
        self.bytes = 0


class _Asked(NamedTuple):
    line: CrowdLine
    call: Call
    back: Back


class CrowdNetwork(Network):
    """A store with one queue. What is asked of it takes its time, also if nobody waits for the answer any more."""

    def __init__(self, scenario: Scenario, rng: random.Random, checks: Checks) -> None:
        super().__init__(scenario, rng, checks)
        self.store = CrowdStore("b0")
        self.arrivals: list[float] = []
        """When each request came, also those that were refused."""
        self.longest_queue = 0
        self._queue: deque[_Asked] = deque()
        self._serves = False
        self._pushes: dict[Topic, dict[CrowdWatcher, None]] = {topic: {} for topic in Topic}
        self.after(EXPIRE_S, self._expire)

    def _expire(self) -> None:
        if not self.down:
            self.store.announce_expiry(now_s=self.now_s)
            self.noticed()
        self.after(EXPIRE_S, self._expire)

    # --- requests

    def send(self, line: Line, call: Call, back: Back, *, write: bool = False) -> None:
        """Carry a request into the queue."""
        assert isinstance(line, CrowdLine)
        line.requests[line.kind] += 1
        line.bytes += line.size + HEAD_BYTES
        line.kind, line.size = "Watch", 0
        asked = _Asked(line, call, back)
        self.after(self.latency_s(), lambda: self._queued(asked))

    def _queued(self, asked: _Asked) -> None:
        self.arrivals.append(self.now_s)
        if self.down:
            self._refuse(asked)
            return
        self._queue.append(asked)
        self.longest_queue = max(self.longest_queue, len(self._queue))
        if not self._serves:
            self._serve()

    def _refuse(self, asked: _Asked) -> None:
        self.after(self.latency_s(), lambda: asked.back(Refused()))

    def _serve(self) -> None:
        self._serves = bool(self._queue)
        if not self._serves:
            return
        asked = self._queue.popleft()
        result = asked.call(self.store, self.now_s)
        self.noticed()
        size = _size(result)
        asked.line.bytes += size
        cost_s = REQUEST_S + size / BYTES_A_SECOND
        self.after(cost_s + self.latency_s(), lambda: asked.back(result))
        self.after(cost_s, self._serve)

    def restart(self, away_s: float) -> None:
        """Break all connections, and serve again a while later, with all content."""
        self.down = True
        self.hang_up()
        waiting, self._queue = self._queue, deque()
        for asked in waiting:
            self._refuse(asked)
        self.after(away_s, self._serve_again)

    def _serve_again(self) -> None:
        self.down = False

    def busiest(self, since_s: float) -> int:
        """Return the most requests that came within a tenth of a second since then."""
        found = Counter(int((at_s - since_s) / WINDOW_S) for at_s in self.arrivals if at_s >= since_s)
        return max(found.values(), default=0)

    # --- watching

    def watch(self, line: Line, since: Revisions, topics: tuple[Topic, ...], until_s: float, back: Back) -> None:
        """Answer when something has moved beyond `since`, or at `until_s`."""
        watcher = CrowdWatcher(self, line, since, topics, back)
        for topic in topics:
            self._pushes[topic][watcher] = None
        watcher.look()
        self.at(until_s, watcher.end)

    def forget(self, watcher: "CrowdWatcher") -> None:  # type: ignore[override]
        """Push nothing to it any more."""
        for topic in watcher.topics:
            self._pushes[topic].pop(watcher, None)

    def noticed(self) -> None:
        """Push what has moved to those that watch it."""
        now = self.store.revisions(now_s=self.now_s)
        before, self._seen = self._seen, now
        if now == before:
            return
        for topic in Topic:
            if now.birth != before.birth or now.of(topic) != before.of(topic):
                for watcher in list(self._pushes[topic]):
                    self.after(self.latency_s(), watcher.look)

    def hang_up(self) -> None:
        """Break all connections."""
        self.disturb()
        for watcher in {watcher: None for watchers in self._pushes.values() for watcher in watchers}:
            watcher.answer(Refused())


class CrowdWatcher:
    """One `watch` that is under way. It reads the revisions at its begin and after a push, once at a time."""

    def __init__(self, net: CrowdNetwork, line: Line, since: Revisions, topics: tuple[Topic, ...], back: Back) -> None:
        self._net = net
        self._line = line
        self._since = since
        self.topics = topics
        self._back = back
        self._looks = self._again = self._over = False

    def look(self) -> None:
        """Read how far the store is, and answer if that is further."""
        self._again = self._looks
        if not self._looks and not self._over:
            self._looks = True
            self._net.send(self._line, lambda store, now_s: store.revisions(now_s=now_s), self._read)

    def _read(self, answer: object) -> None:
        self._looks = False
        if not isinstance(answer, Revisions):
            self.answer(answer)
            return
        watched = compare(self._since, answer, self.topics)
        if watched.changed or watched.reset:
            self.answer(watched)
        elif self._again:
            self.look()

    def end(self) -> None:
        """Answer that nothing has moved: a push would have said so."""
        self.answer(compare(self._since, self._since, self.topics))

    def answer(self, answer: object) -> None:
        """Answer, once."""
        if not self._over:
            self._over = True
            self._net.forget(self)
            self._net.after(self._net.latency_s(), lambda: self._back(answer))


def _size(result: object) -> int:
    """Return how many bytes the content of an answer has."""
    match result:
        case (Document() as document, _):
            return len(document.value)
        case Members(members=members):
            return sum(len(member.record) + len(member.incarnation) for member in members)
        case Swapped(applied=False, current=Document() as current):
            return len(current.value)
        case _:
            return 0


class CrowdMember(SimulatedClient):
    """A node whose workers never end by themselves."""

    line: CrowdLine

    def __init__(self, world: "Crowd", number: int) -> None:
        self.number = number
        self.rank: int | None = None
        super().__init__(world, f"node{number:05}@{self.address}", number)  # type: ignore[arg-type]
        self.line = CrowdLine(self.incarnation)
        self._intend(protocol.JoinAsked(master_port=29500))
        self._go(())

    @property
    def address(self) -> str:
        """Return its address."""
        return f"10.{self.number >> 16}.{self.number >> 8 & 255}.{self.number & 255}"

    def _me(self) -> Me:
        self.incarnation = blake2b(self.name.encode(), digest_size=8).hexdigest()
        return super()._me()

    def _request(self, operation: protocol.Operation) -> None:
        self.line.kind, self.line.size = type(operation).__name__, 0
        if isinstance(operation, protocol.Enlist | protocol.Update):
            self.line.size = len(operation.record)
        if isinstance(operation, protocol.Swap):
            self.line.size = len(encode(operation.document))
        super()._request(operation)

    def _answer(self, turn: int, event: protocol.Event) -> None:
        if turn == self._turn and isinstance(event, protocol.Failed) and event.text == UNANSWERED:
            self.world.unanswered += 1  # type: ignore[attr-defined]
        super()._answer(turn, event)

    def _told(self, announcement: protocol.Announcement) -> None:
        match announcement:
            case RendezvousInfo(rank=rank):
                self.rank = rank
            case m.RoundChanged() | protocol.JoinFailed():
                self.world.changes.append((self.net.now_s, self.name, announcement))  # type: ignore[attr-defined]

    def _talk(self) -> None:
        """Ask no other member."""

    def _ask_agent(self, operation: m.DecisionAsked) -> None:
        raise AssertionError(operation)

    def _gather(self, event: m.AnswersGathered) -> None:
        raise AssertionError(event)

    def _guard(self) -> None:
        """Leave the workers alone."""

    def _leave(self) -> None:
        self.dead = True

    def die(self) -> None:
        """End without a word."""
        self.dead = True

    @property
    def calm(self) -> bool:
        """Return whether it runs, knows all that it wants to know, and waits."""
        trouble = self.state.trouble is not None or len(self.state.seen.fresh) < 2
        return self.rank is not None and not trouble and isinstance(self.operation, protocol.Watch)


class Crowd:
    """One run.

    Args:
        nodes: How many join.
        within_s: In what time.
    """

    def __init__(self, nodes: int, *, within_s: float = 0.5, seed: int = 1) -> None:
        self.scenario = Scenario(nodes=nodes, min_nodes=nodes, max_nodes=nodes, latency_s=0.002)
        self.rng = random.Random(seed)
        self.checks = Checks(self.scenario)
        self.net = CrowdNetwork(self.scenario, self.rng, self.checks)
        self.verbose = False
        self.steps = self.unanswered = 0
        self.changes: list[tuple[float, str, protocol.Announcement]] = []
        self.members: list[CrowdMember] = []
        for number in range(nodes):
            self.net.after(self.rng.uniform(0, within_s), lambda number=number: self._arrive(number))  # type: ignore[misc]

    def _arrive(self, number: int) -> None:
        self.members.append(CrowdMember(self, number))

    @property
    def calm(self) -> bool:
        """Return whether all live members run and wait."""
        return len(self.members) == self.scenario.nodes and all(one.calm for one in self.members if one.live)

    def until(self, holds: Callable[[], bool], *, within_s: float) -> bool:
        """Let time pass until something holds; return whether it does in time."""
        end_s = self.net.now_s + within_s
        while not holds():
            if self.net.now_s > end_s:
                return False
            self.pass_s(WINDOW_S)
        return True

    def pass_s(self, length_s: float) -> None:
        """Let a while pass."""
        due: list[bool] = []
        self.net.after(length_s, lambda: due.append(True))
        while not due:
            self.net.turn()

    @property
    def patience_s(self) -> float:
        """Return after what time a member that runs gives up a request."""
        return self.scenario.ttl_s / PATIENCE_SHARE

    def counted(self) -> tuple[list[tuple[Counter[str], int]], int]:
        """Return the requests by kind and the bytes of each member, and the longest queue, since the last call.

        The first members are those with the lowest seats.
        """
        order = sorted(self.members, key=lambda one: one.state.lease.ahead)
        found = [(one.line.requests, one.line.bytes) for one in order]
        for member in self.members:
            member.line.requests, member.line.bytes = Counter(), 0
        queue, self.net.longest_queue = self.net.longest_queue, 0
        return found, queue
