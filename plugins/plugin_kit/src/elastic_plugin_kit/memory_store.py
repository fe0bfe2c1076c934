"""A `CoordinationStore` within one process: for the tests of drivers, and an example of what the contract asks."""

from collections.abc import Callable, Collection
from typing import ClassVar, TypeVar

from elastic_core.api import API_VERSION, SYSTEM_CLOCK, Clock, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, Revisions, Topic, Watched
from elastic_plugin_kit.memory_server import MemoryServer
from elastic_plugin_kit.store_client import ModelledStore
from elastic_plugin_kit.store_model import StoreModel

T = TypeVar("T")


class MemoryStore(ModelledStore):
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
        """Return a fixed text in place of an endpoint."""
        return "memory in this process"

    def connect(self, *, wait: WaitBudget) -> str:
        """Reach the server once."""
        self._server.reach(wait=self._ready(wait))
        return self._address

    def _request(self, name: str, work: Callable[[StoreModel, float], T], wait: WaitBudget) -> T:
        return self._server.call(name, self.settings.run_id, work, wait=self._ready(wait))

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
