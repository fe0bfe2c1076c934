"""The example store keeps every promise of the kit, and says what is wrong with its directory."""

import fcntl
import os
import shutil
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from elastic_core.testing import CoordinationStoreConformance, rendezvous_settings
from elastic_example_rendezvous_file import Content, FileStore


def store(folder, run_id="r", **options):
    return FileStore(
        rendezvous_settings(run_id=run_id, endpoint=str(folder), declared=FileStore.options, options=options)
    )


class TestFileStore(CoordinationStoreConformance):
    @pytest.fixture
    def connect(self, tmp_path):
        self.folder = tmp_path
        return lambda run_id: store(tmp_path, run_id)

    def pass_time(self, seconds):  # nobody waits: whatever the files tell was so much earlier
        for lock in self.folder.glob("*/lock"):
            at_s = lock.stat().st_mtime - seconds
            os.utime(lock, (at_s, at_s))
        for path in self.folder.glob("*/content.json"):
            content = msgspec.json.decode(path.read_bytes(), type=Content)
            content.ends_s = {name: end_s - seconds for name, end_s in content.ends_s.items()}
            content.heard_s -= seconds
            path.write_bytes(msgspec.json.encode(content))

    @pytest.fixture
    def pause_server(self, tmp_path):
        @contextmanager
        def locked():  # by somebody who stands still
            with ExitStack() as stack:
                for path in tmp_path.glob("*/lock"):
                    fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
                yield

        return locked

    @pytest.fixture
    def empty_server(self, tmp_path):
        def empty():
            for path in tmp_path.iterdir():
                shutil.rmtree(path)

        return empty

    @pytest.fixture
    def connect_nowhere(self, tmp_path):
        return lambda: store(tmp_path / "not mounted")
