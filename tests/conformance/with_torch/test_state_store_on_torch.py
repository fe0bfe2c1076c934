"""The adapter of torch's `get_state` and `set_state` on torch's own c10d backend, with the state in a file."""

import pytest

from elastic_core.compat.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from elastic_plugin_kit import CoordinationStoreConformance, ManualClock, rendezvous_settings
from elastic_torchrun.rendezvous.state_store import StateStore


class TestOverAFileStore(CoordinationStoreConformance):
    @pytest.fixture
    def connect(self, tmp_path):
        from torch.distributed import FileStore

        self._clock = ManualClock()  # by which clients judge each other

        def make(run_id):
            backend = C10dRendezvousBackend(FileStore(str(tmp_path / "store"), -1), run_id)
            return StateStore(rendezvous_settings(run_id=run_id), backend=backend, clock=self._clock)

        return make

    def pass_time(self, seconds):
        self._clock.advance(seconds)
