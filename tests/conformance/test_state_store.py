"""The adapter of torch's `get_state` and `set_state` keeps the promises of a store."""

import threading
from contextlib import contextmanager

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_plugin_kit import CoordinationStoreConformance, ManualClock, rendezvous_settings
from elastic_torchrun.rendezvous.state_backend import RendezvousBackend
from elastic_torchrun.rendezvous.state_store import StateStore


class Shelf:
    """What several backends of one process share: a value for each run."""

    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}
        self.count = 0
        self.open = threading.Event()
        self.open.set()

    def backend(self, run_id):
        return ShelfBackend(self, run_id)


class ShelfBackend(RendezvousBackend):
    name = "shelf"

    def __init__(self, shelf, run_id):
        self.shelf, self.run_id = shelf, run_id

    def get_state(self):
        self.shelf.open.wait()
        return self.shelf.values.get(self.run_id)

    def set_state(self, state, token=None):
        self.shelf.open.wait()
        with self.shelf.lock:
            standing = self.shelf.values.get(self.run_id)
            if token != (standing[1] if standing else None):
                return (*standing, False) if standing else None
            self.shelf.count += 1
            self.shelf.values[self.run_id] = (state, self.shelf.count)
            return state, self.shelf.count, True


class GoneBackend(RendezvousBackend):
    name = "gone"

    def get_state(self):
        raise RendezvousConnectionError("nobody listens there")

    def set_state(self, state, token=None):
        raise RendezvousConnectionError("nobody listens there")


class TestOverMemory(CoordinationStoreConformance):
    @pytest.fixture(autouse=True)
    def bench(self):
        self._clock = ManualClock()
        self.shelf = Shelf()

    @pytest.fixture
    def connect(self, bench):
        return lambda run_id: StateStore(
            rendezvous_settings(run_id=run_id), backend=self.shelf.backend(run_id), clock=self._clock
        )

    @pytest.fixture
    def pause_server(self, bench):
        @contextmanager
        def paused():
            self.shelf.open.clear()
            try:
                yield
            finally:
                self.shelf.open.set()

        return paused

    @pytest.fixture
    def empty_server(self, bench):
        return lambda: self.shelf.values.clear()

    @pytest.fixture
    def connect_nowhere(self):
        return lambda: StateStore(rendezvous_settings(run_id="nowhere"), backend=GoneBackend())

    def pass_time(self, seconds):
        self._clock.advance(seconds)
