"""One run on the store under test: its clients, and how time passes."""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest import mock

import pytest

from elastic_core.api import SYSTEM_CLOCK, CoordinationStore, WaitBudget
from elastic_core.api.stores import Document, Members, Renewal, Revisions, Seat, Swapped, Topic, Watched

CALL_S: Final = 10.0
"""What a call may take where its duration is not the point."""
KEEP_S: Final = 600.0
SLACK_S: Final = 2.0
"""How much later than promised an expiry may come before a test gives up."""

Connect = Callable[..., CoordinationStore]
"""What the fixture `connect` gives: called with a run id, or without any, it returns a new client."""

Pause = Callable[[], AbstractContextManager[None]]
"""What the fixture `pause_server` gives: within it the server sends no replies, and keeps its content."""


class Client:
    """A client of the run, with arguments that most tests don't care for filled in."""

    def __init__(self, store: CoordinationStore, run: "StoreRun") -> None:
        self.store = store
        self._run = run

    def enlist(self, incarnation: str = "", record: bytes = b"record", *, ttl_s: float | None = None) -> Seat:
        """Enlist with the run's lease; a new incarnation where none is named."""
        ttl_s, since = ttl_s or self._run.long_s, self._run.stopwatch()
        seat = self.store.enlist(record, incarnation=incarnation or fresh("inc"), ttl_s=ttl_s, wait=budget())
        self._run.note_lease(seat, ttl_s, since)
        return seat

    def update(self, seat: Seat, record: bytes) -> bool:
        """Replace a record."""
        return self.store.update(seat, record, wait=budget())

    def renew(self, seat: Seat, *, ttl_s: float | None = None) -> Renewal | None:
        """Renew by a long lease, if no other is named."""
        ttl_s, since = ttl_s or self._run.long_s, self._run.stopwatch()
        renewal = self.store.renew(seat, ttl_s=ttl_s, wait=budget())
        if renewal is not None:
            self._run.note_lease(seat, ttl_s, since)
        return renewal

    def keep_age_s(self) -> float | None:
        """Return how long ago `keep_s` was changed, where the store can tell."""
        return self.store.keep_age_s(wait=budget())

    def withdraw(self, seat: Seat) -> None:
        """Withdraw a member."""
        self.store.withdraw(seat, wait=budget())

    def members(self) -> Members:
        """Return the live members."""
        return self.store.members(wait=budget())

    def numbers(self) -> list[int]:
        """Return the live members' seats."""
        return [member.seat for member in self.members().members]

    def records(self) -> dict[int, bytes]:
        """Return the live members' records by seat."""
        return {member.seat: member.record for member in self.members().members}

    def load(self, key: str = Topic.ROUND) -> Document | None:
        """Return a document."""
        return self.store.load(key, wait=budget())

    def swap(self, new: bytes, expect: str | None = None, *, key: str = Topic.ROUND, keep_s: float = KEEP_S) -> Swapped:
        """Replace a document."""
        return self.store.swap(key, new, expect=expect, keep_s=keep_s, wait=budget())

    def watch(
        self, since: Revisions, *topics: Topic, timeout_s: float = 3.0, wait: WaitBudget | None = None
    ) -> Watched:
        """Watch, by default for as long as a test can wait."""
        return self.store.watch(since, topics, timeout_s=timeout_s, wait=wait or budget())

    def revisions(self) -> Revisions:
        """Return how far each topic is, without waiting."""
        return self.watch(Revisions(), timeout_s=0).revisions


class StoreRun:
    """A run that no other test knows, on the store under test."""

    def __init__(self, connect: Connect, *, lease_s: float, pass_time: Callable[[float], None]) -> None:
        self._connect = connect
        self._pass_time = pass_time
        self._asked_s = 0.0  # what `pass_time` was asked for
        self._moves = False  # whether it moves the store's clock, and so returned early; else it waits
        self._leases: dict[str, tuple[float, Callable[[], float]]] = {}
        self._stores: list[CoordinationStore] = []
        self.run_id = fresh("kit")
        self.names_runs = bool(inspect.signature(connect).parameters)
        self.cls = type(self.store())
        self.lease_s = max(lease_s, self.cls.min_ttl_s)
        """A lease short enough to wait for its end."""
        self.long_s = max(60.0, 20 * self.lease_s)
        """A lease that does not end within a test."""

    def store(self, run_id: str = "") -> CoordinationStore:
        """Return a new store object that has not connected yet."""
        made = self._connect(run_id or self.run_id) if self.names_runs else self._connect()
        self._stores.append(made)
        return made

    def client(self, run_id: str = "") -> Client:
        """Return another client of this run, connected; or of the run that is named."""
        store = self.store(run_id)
        store.connect(wait=budget())
        return Client(store, self)

    def stopwatch(self) -> Callable[[], float]:
        """Return what tells how much time has passed since now on the store's clock, at most.

        That is this host's; and what it was moved by, beside the time which that took.
        """
        began_s, asked_s = now_s(), self._asked_s
        return lambda: now_s() - began_s + (self._asked_s - asked_s if self._moves else 0.0)

    def pass_time(self, seconds: float, *, renewing: Sequence[tuple[Client, Seat]] = ()) -> None:
        """Let time pass on the store's clock while the named seats renew short leases, often enough to stay."""
        steps = max(1, round(seconds / (self.lease_s / 5)))
        for _ in range(steps):
            began_s = now_s()
            self._pass_time(seconds / steps)
            self._asked_s += seconds / steps
            self._moves |= now_s() - began_s < 0.9 * seconds / steps
            for client, seat in renewing:
                renewed = client.renew(seat, ttl_s=self.lease_s) is not None
                self.expect(renewed, seat, "a member that renews in time was expired")

    def pass_time_until(
        self, condition: Callable[[], bool], *, within_s: float, what: str, renewing: Sequence[tuple[Client, Seat]] = ()
    ) -> None:
        """Let time pass until a condition holds; fail where it does not in time."""
        passed_s, step_s = 0.0, self.lease_s / 5
        while not condition():
            assert passed_s < within_s, f"{what}: not within {within_s:g} s"
            self.pass_time(step_s, renewing=renewing)
            passed_s += step_s

    def note_lease(self, seat: Seat, ttl_s: float, since: Callable[[], float]) -> None:
        """Note a lease that an incarnation has got, and what tells since when, at the earliest."""
        self._leases[seat.incarnation] = ttl_s, since

    def may_have_ended(self, seat: Seat) -> bool:
        """Return whether a seat's lease may have ended by now, however slow this machine is."""
        ttl_s, since = self._leases[seat.incarnation]
        return since() >= ttl_s

    def expect(self, here: bool, seat: Seat, otherwise: str) -> None:
        """Fail where a seat is not here before its lease may have ended; after that nothing can be said of it."""
        if not here and self.may_have_ended(seat):
            pytest.skip(f"this machine is too slow: a lease of {self._leases[seat.incarnation][0]:g} s ended")
        assert here, otherwise

    def close(self) -> None:
        """Close every client."""
        for store in self._stores:
            store.close()


def budget(seconds: float = CALL_S) -> WaitBudget:
    """Return a wait for one call."""
    return WaitBudget.lasting(seconds)


def fresh(name: str) -> str:
    """Return a name that was never used."""
    return f"{name}-{os.urandom(6).hex()}"


def now_s() -> float:
    """Return this host's monotonic time."""
    return SYSTEM_CLOCK.monotonic_s()


@contextmanager
def another_hosts_clock(ahead_s: float) -> Iterator[None]:
    """Let all clocks of this process be those of a host whose clocks differ."""
    ahead_ns = int(ahead_s * 1e9)
    with mock.patch.multiple(
        time,
        time=_moved("time", ahead_s),
        monotonic=_moved("monotonic", ahead_s),
        clock_gettime=_moved("clock_gettime", ahead_s),
        time_ns=_moved("time_ns", ahead_ns),
        monotonic_ns=_moved("monotonic_ns", ahead_ns),
        clock_gettime_ns=_moved("clock_gettime_ns", ahead_ns),
    ):
        yield


def _moved(name: str, ahead: float) -> Callable[..., float]:
    real: Callable[..., float] = getattr(time, name)
    return lambda *clock: real(*clock) + ahead
