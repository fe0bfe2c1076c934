"""The kit's promises of a store, on any server of ours: what a module for one kind of server says in a few lines.

A subclass says how a server is started, and how a client is made. Tests that pause or empty their server get one of
their own; all others share one, each with a run of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elastic_core.api import RendezvousSettings
from elastic_plugin_kit.conformance import CoordinationStoreConformance
from ports import free_port

NEED_THEIR_OWN = {"pause_server", "empty_server"}
"""The fixtures of the kit that disturb everybody who uses the server."""


def store_settings(backend, endpoint, run_id, **options):
    """Return the settings of a store for a run of one or two nodes."""
    return RendezvousSettings(
        backend=backend,
        run_id=run_id,
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=2,
        local_world_size=1,
        options=options,
    )


class OnASharedServer(CoordinationStoreConformance):
    """All promises but those that need a server of the test's own."""

    @staticmethod
    def make(folder):
        """Return a server, not yet started; it has `start` and `stop`."""
        raise NotImplementedError

    @staticmethod
    def client(server, run_id):
        """Return a new client of a run."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def shared_server(cls, tmp_path_factory):
        """A server for all tests of the class."""
        yield from served(cls, tmp_path_factory.mktemp("server"))

    @pytest.fixture
    def server(self, shared_server):
        """The server of a test."""
        return shared_server

    @pytest.fixture
    def connect(self, server):
        return lambda run_id: self.client(server, run_id)


class OnAServer(OnASharedServer):
    """All promises. The server has an `endpoint`, and `pause`, `resume` and `empty`."""

    @staticmethod
    def client_at(endpoint, run_id):
        """Return a new client of a run, of a server at an endpoint."""
        raise NotImplementedError

    def client(self, server, run_id):
        return self.client_at(server.endpoint, run_id)

    @pytest.fixture
    def server(self, request, tmp_path):
        """The server of a test: its own if it disturbs it."""
        if NEED_THEIR_OWN.isdisjoint(request.fixturenames):
            yield request.getfixturevalue("shared_server")
        else:
            yield from served(type(self), tmp_path / "server")

    @pytest.fixture
    def pause_server(self, server):
        @contextmanager
        def paused():
            server.pause()
            try:
                yield
            finally:
                server.resume()

        return paused

    @pytest.fixture
    def empty_server(self, server):
        return server.empty

    @pytest.fixture
    def connect_nowhere(self):
        return lambda: self.client_at(f"127.0.0.1:{free_port()}", "run")


def served(kind: type[OnASharedServer], folder) -> Iterator[object]:
    """Yield a running server, and stop it afterwards, also where its start failed half-way."""
    server = kind.make(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
