"""The simulated time, the store, and the way there and back."""

import heapq
import itertools
import random
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

from elastic_core.rendezvous.store import Document, Revisions, Swapped, Topic, Watched, compare
from elastic_core.types import Record
from elastic_plugin_kit.store_model import StoreModel
from simulation.checks import Checks
from simulation.scenario import MESSAGES, Scenario

Call = Callable[[StoreModel, float], object]
Back = Callable[[object], None]
DATAGRAM_LOSS = 0.02


class Refused:
    """What a caller gets whose connection is refused."""


class Cut(Protocol):
    """A fault of the network that goes on: who does not reach the store, and which two do not reach each other."""

    @property
    def refuses(self) -> bool:
        """Return whether those who are cut off from the store are told so at once, and do not wait in vain."""
        ...

    def from_store(self, name: str) -> bool:
        """Return whether an incarnation is cut off from the store."""
        ...

    def between(self, one: str, other: str) -> bool:
        """Return whether nothing passes from one incarnation to another."""
        ...


class Victim(Record, frozen=True, kw_only=True):
    """One member is cut off from the store, and from the others or not."""

    name: str
    refuses: bool
    alone: bool

    def from_store(self, name: str) -> bool:
        """Return whether it is this one."""
        return name == self.name

    def between(self, one: str, other: str) -> bool:
        """Return whether one of them is the one that is cut off from all."""
        return self.alone and self.name in (one, other)


@lru_cache(maxsize=4096)
def _drawn(what: tuple[object, ...]) -> float:
    """Return a number from 0 up to 1 that is always the same for the same."""
    return zlib.crc32(repr(what).encode()) / 2**32


class Split(Record, frozen=True, kw_only=True):
    """The hosts are in groups that do not reach each other, and some of the groups do not reach the store.

    Also of single pairs within a group some do not reach each other, in one direction or both. `open`: all do.
    `placed` are hosts whose groups are not by chance.
    """

    seed: int
    groups: int
    without_store: frozenset[int]
    holes: float
    refuses: bool
    open: bool = False
    placed: Mapping[str, int] = {}

    def _drawn(self, *what: object) -> float:
        return _drawn((self.seed, *what))

    def group_of(self, name: str) -> int:
        """Return the group of a host: all incarnations of it are in the same."""
        host = name.partition("#")[0]
        return self.placed[host] if host in self.placed else int(self._drawn("group", host) * self.groups)

    def from_store(self, name: str) -> bool:
        """Return whether its group is cut off from the store."""
        return self.group_of(name) in self.without_store

    def between(self, one: str, other: str) -> bool:
        """Return whether they are of two groups, or a pair that is cut by itself."""
        if self.open:
            return False
        return self.group_of(one) != self.group_of(other) or self._drawn("pair", one, other) < self.holes


class Line:
    """One member's way to the store.

    `cut`: nothing passes; `refused`: and it is told so. What is under way when a cut begins is lost, or comes late.
    `disturbed_s`: when something last began or ended that this member alone had to suffer.
    """

    def __init__(self, cuts: "list[Cut]", name: str) -> None:
        self._cuts = cuts
        self._name = name
        self.disturbed_s = float("-inf")

    @property
    def cut(self) -> bool:
        """Return whether nothing passes now."""
        return any(cut.from_store(self._name) for cut in self._cuts)

    @property
    def refused(self) -> bool:
        """Return whether its caller is told so."""
        return any(cut.refuses and cut.from_store(self._name) for cut in self._cuts)


class Network:
    """A clock that jumps from event to event, and a store behind lines that lose, double and delay what they carry."""

    def __init__(self, scenario: Scenario, rng: random.Random, checks: Checks) -> None:
        self.scenario = scenario
        self.rng = rng
        self.checks = checks
        self.now_s = 0.0
        self.store = StoreModel("b0")
        self.paused = False
        self.down = False
        self.full = False
        self.noisy = False
        self.late_s = 0.0
        """How much longer datagrams take."""
        self.disturbed_s = float("-inf")
        self.cuts: list[Cut] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waiting: list[Callable[[], None]] = []
        self._watchers: list[_Watcher] = []
        self._seen: Revisions = Revisions()

    # --- time

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._order), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Do something a while from now."""
        self.at(self.now_s + delay_s, call)

    def turn(self) -> bool:
        """Let the next thing happen; False: nothing will."""
        if not self._events:
            return False
        self.now_s, _, call = heapq.heappop(self._events)
        call()
        return True

    def latency_s(self) -> float:
        """Return how long a message takes."""
        return self.rng.uniform(0.0002, self.scenario.latency_s)

    def disturb(self) -> None:
        """Take note that something begins or ends that everybody must suffer."""
        self.disturbed_s = self.now_s

    def calm(self, line: Line, since_s: float) -> bool:
        """Return whether everything that went over a line since then went through at once."""
        harmed = self._noise or self.paused or self.down or self.full or line.cut
        return not harmed and max(self.disturbed_s, line.disturbed_s) < since_s

    @property
    def _noise(self) -> bool:
        return self.noisy and MESSAGES in self.scenario.faults

    def _unlucky(self) -> bool:
        return self._noise and self.rng.random() < self.scenario.noise

    # --- requests

    def send(self, line: Line, call: Call, back: Back, *, write: bool = False) -> None:
        """Carry a request to the store and its answer back, or not; a store that is full refuses to write."""
        if self.down or (line.cut and line.refused) or (self.full and write):
            self.after(self.latency_s(), lambda: back(Refused()))
            return
        if self._unlucky():
            return  # lost
        delay_s = self.latency_s()
        if self._unlucky():
            delay_s += self.rng.uniform(0, self.scenario.ttl_s)
        if self._unlucky():  # doubled: a client that tries again after a lost reply, within one call
            self.after(delay_s, lambda: self._arrive(line, call, lambda _: None))
            delay_s += self.latency_s()
        self.after(delay_s, lambda: self._arrive(line, call, back))

    def _arrive(self, line: Line, call: Call, back: Back) -> None:
        if self.paused:
            self._waiting.append(lambda: self._arrive(line, call, back))
            return
        if line.cut or self.down:
            if self.rng.random() < 0.3:  # sent again by the network, until it passes
                self.after(self.rng.uniform(0.2, self.scenario.ttl_s), lambda: self._arrive(line, call, back))
            return
        result = call(self.store, self.now_s)
        self.noticed()
        if not self._unlucky():
            self.after(self.latency_s(), lambda: None if line.cut else back(result))

    # --- datagrams

    def datagram(self, sender: str, receiver: str, call: Callable[[], None]) -> None:
        """Carry a datagram from one member to another: late, twice, or not at all."""
        if any(cut.between(sender, receiver) for cut in self.cuts) or self.rng.random() < DATAGRAM_LOSS:
            return
        delay_s = self.latency_s() + self.late_s
        if self._unlucky():
            delay_s += self.rng.uniform(0, 2 * self.scenario.ttl_s)
        self.after(delay_s, call)
        if self._unlucky():
            self.after(delay_s + self.rng.uniform(0, self.scenario.ttl_s), call)

    def resume(self) -> None:
        """End a pause of the store: what has come meanwhile is done now, in any order between connections."""
        self.paused = False
        self.disturb()
        waiting, self._waiting = self._waiting, []
        self.rng.shuffle(waiting)
        for arrive in waiting:
            arrive()
        self.noticed()

    def swap(self, store: StoreModel, now_s: float, key: str, new: bytes, expect: str | None, keep_s: float) -> Swapped:
        """Replace a document, under the eyes of the checks."""
        before: Document | None = store.load(key, now_s=now_s)
        swapped = store.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)
        if swapped.applied:
            self.checks.written(key, before.value if before is not None else None, new)
        return swapped

    # --- watching

    def watch(self, line: Line, since: Revisions, topics: tuple[Topic, ...], until_s: float, back: Back) -> None:
        """Answer when something has moved beyond `since`, or at `until_s`."""
        if self.down or (line.cut and line.refused):
            self.after(self.latency_s(), lambda: back(Refused()))
            return
        watcher = _Watcher(self, line, since, topics, back)
        self._watchers.append(watcher)
        self.after(self.latency_s(), watcher.look)
        self.at(until_s, watcher.end)

    def forget(self, watcher: "_Watcher") -> None:
        """Push nothing to it any more."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def noticed(self) -> None:
        """Push to all watchers if something has moved."""
        now = self.store.revisions(now_s=self.now_s)
        if now == self._seen:
            return
        self._seen = now
        for watcher in self._watchers:
            if not watcher.line.cut and not self._unlucky():
                self.after(self.latency_s(), watcher.look)

    def hang_up(self) -> None:
        """Break all connections, as a store does that goes."""
        self.disturb()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.fail()


class _Watcher:
    """One `watch` that is under way."""

    def __init__(self, net: Network, line: Line, since: Revisions, topics: tuple[Topic, ...], back: Back) -> None:
        self._net = net
        self.line = line
        self._since = since
        self._topics = topics
        self._back = back
        self._over = False

    def look(self) -> None:
        """Ask the store how far it is, and answer if that is further."""
        self._ask(last=False)

    def end(self) -> None:
        """Ask a last time."""
        if not self._over:
            self._net.forget(self)
            self._ask(last=True)

    def fail(self) -> None:
        """Tell that the connection is broken."""
        if not self._over:
            self._over = True
            self._net.after(self._net.latency_s(), lambda: self._back(Refused()))

    def _ask(self, *, last: bool) -> None:
        if not self._over:
            self._net.send(self.line, lambda store, now_s: store.revisions(now_s=now_s), lambda r: self._told(r, last))

    def _told(self, answer: object, last: bool) -> None:
        if self._over:
            return
        if isinstance(answer, Revisions):
            watched: Watched = compare(self._since, answer, self._topics)
            if not last and not watched.changed and not watched.reset:
                return
            answer = watched
        self._over = True
        self._net.forget(self)
        self._back(answer)
