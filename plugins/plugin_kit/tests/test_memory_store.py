"""Our fake store passes the kit that real ones must pass."""

import pytest

from elastic_plugin_kit import CoordinationStoreConformance
from memory_kit import Bench


class TestMemoryStore(CoordinationStoreConformance):
    @pytest.fixture(autouse=True)
    def bench(self):
        self._bench = Bench()
        return self._bench

    @pytest.fixture
    def connect(self, bench):
        return bench.connect

    @pytest.fixture
    def pause_server(self, bench):
        return bench.pause

    @pytest.fixture
    def empty_server(self, bench):
        return bench.server.empty

    @pytest.fixture
    def connect_nowhere(self, bench):
        return bench.connect_nowhere

    def pass_time(self, seconds):
        self._bench.pass_time(seconds)
