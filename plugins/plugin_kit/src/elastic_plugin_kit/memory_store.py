"""A `CoordinationStore` within one process: for the tests of drivers, and an example of what the contract asks."""

from collections.abc import Collection
from typing import ClassVar

from elastic_core.api import API_VERSION, SYSTEM_CLOCK, Clock, CoordinationStore, RendezvousSettings, WaitBudget
from elastic_core.api.stores import (
    BackendUnavailableError,
    Document,
    Members,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Topic,
    Watched,
)
from elastic_plugin_kit.memory_server import MemoryServer


class MemoryStore(CoordinationStore):
    """One client of a `MemoryServer`; every client of one run id sees the same run.

    A core that builds stores as `cls(settings)` takes `functools.partial(MemoryStore, server=server)`.

    Args:
        settings: Only `run_id` counts.
        server: Shared by all clients that shall meet.
        address: What `connect` returns.
        clock: This client's, for timeouts; leases are judged by the server's.
    """

    api_version: ClassVar[int] = API_VERSION
    min_ttl_s: ClassVar[float] = 0.05

    def __init__(
        self,
        settings: RendezvousSettings,
        *,
        server: MemoryServer,
        address: str = "127.0.0.1",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(settings)
        self._server = server
        self._address = address
        self._clock = clock
        self._listened_to: WaitBudget | None = None
        self._closed = False

    @property
    def where(self) -> str:
        """Return what stands in place of an endpoint."""
        return "memory in this process"

    def connect(self, *, wait: WaitBudget) -> str:
        """Reach the server once."""
        self._server.reach(wait=self._ready(wait))
        return self._address

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Take a seat, or find it."""
        return self._server.call(
            "enlist",
            self.settings.run_id,
            lambda run, now_s: run.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s),
            wait=self._ready(wait),
        )

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace a record."""
        return self._server.call(
            "update",
            self.settings.run_id,
            lambda run, now_s: run.update(seat, record, now_s=now_s),
            wait=self._ready(wait),
        )

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Extend a lease."""
        return self._server.call(
            "renew",
            self.settings.run_id,
            lambda run, now_s: run.renew(seat, ttl_s=ttl_s, now_s=now_s),
            wait=self._ready(wait),
        )

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Give a seat up."""
        self._server.call(
            "withdraw",
            self.settings.run_id,
            lambda run, now_s: run.withdraw(seat, now_s=now_s),
            wait=self._ready(wait),
        )

    def members(self, *, wait: WaitBudget) -> Members:
        """Return the live members."""
        return self._server.call(
            "members",
            self.settings.run_id,
            lambda run, now_s: run.members(now_s=now_s),
            wait=self._ready(wait),
        )

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return who has a seat, and documents; leaves no trace."""
        return self._server.call(
            "survey",
            self.settings.run_id,
            lambda run, now_s: run.survey(keys, now_s=now_s),
            wait=self._ready(wait),
        )

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return how long ago it was last said anew how long content is kept."""
        return self._server.call(
            "keep_age_s",
            self.settings.run_id,
            lambda run, now_s: run.keep_age_s(now_s=now_s),
            wait=self._ready(wait),
        )

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document."""
        return self._server.call(
            "load",
            self.settings.run_id,
            lambda run, now_s: run.load(key, now_s=now_s),
            wait=self._ready(wait),
        )

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if it is the expected one."""
        return self._server.call(
            "swap",
            self.settings.run_id,
            lambda run, now_s: run.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s),
            wait=self._ready(wait),
        )

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Wait for a change."""
        return self._server.watch(
            self.settings.run_id, since, topics, timeout_s=timeout_s, wait=self._ready(wait), clock=self._clock
        )

    def close(self) -> None:
        """Refuse further calls, so that a driver which makes one is found out."""
        self._closed = True

    def _ready(self, wait: WaitBudget) -> WaitBudget:
        """Return the budget, once it was seen to that its cancellation wakes us."""
        if self._closed:
            raise BackendUnavailableError("this client was closed")
        if self._listened_to is not wait:
            wait.on_cancel(self._server.wake)
            self._listened_to = wait
        return wait
