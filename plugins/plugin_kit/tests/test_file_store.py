"""The store in which `run_agents` lets agents meet passes the kit."""

import fcntl
from contextlib import contextmanager

import pytest

from elastic_plugin_kit import CoordinationStoreConformance, ManualClock, rendezvous_settings
from elastic_plugin_kit.conformance import Requirements
from elastic_plugin_kit.file_store import FileStore


class TestFileStore(CoordinationStoreConformance):
    requirements = Requirements(paused_reads_wait="who looks needs no lock")

    @pytest.fixture(autouse=True)
    def clock(self):
        self._clock = ManualClock()

    def client(self, run_id, folder):
        settings = rendezvous_settings(run_id=run_id, endpoint=str(folder), declared=FileStore.options)
        return FileStore(settings, clock=self._clock)

    @pytest.fixture
    def connect(self, tmp_path):
        return lambda run_id: self.client(run_id, tmp_path / "runs")

    @pytest.fixture
    def pause_server(self, tmp_path):
        @contextmanager
        def paused():
            with (tmp_path / "runs/.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

        return paused

    @pytest.fixture
    def empty_server(self, tmp_path):
        return lambda: [file.unlink() for file in (tmp_path / "runs").iterdir() if file.name != ".lock"]

    @pytest.fixture
    def connect_nowhere(self, tmp_path):
        (tmp_path / "file").touch()
        return lambda: self.client("r", tmp_path / "file")

    def pass_time(self, seconds):
        self._clock.advance(seconds)
