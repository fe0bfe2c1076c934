"""The store passes the kit, and reports what is wrong with its directory."""

import fcntl
import os
import shutil
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from elastic_core.api import ConfigError, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_example_rendezvous_file import Content, FileStore
from elastic_plugin_kit import CoordinationStoreConformance, rendezvous_settings


def store(folder, run_id="r"):
    return FileStore(rendezvous_settings(run_id=run_id, endpoint=str(folder), declared=FileStore.options))


class TestFileStore(CoordinationStoreConformance):
    @pytest.fixture
    def connect(self, tmp_path):
        self.folder = tmp_path
        return lambda run_id: store(tmp_path, run_id)

    @pytest.fixture
    def pause_server(self, tmp_path):
        @contextmanager
        def locked():  # by a stopped process
            with ExitStack() as stack:
                for path in tmp_path.glob("*/lock"):
                    fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
                yield

        return locked

    @pytest.fixture
    def empty_server(self, tmp_path):
        return lambda: [shutil.rmtree(path) for path in tmp_path.iterdir()]

    @pytest.fixture
    def connect_nowhere(self, tmp_path):
        return lambda: store(tmp_path / "not mounted")

    def pass_time(self, seconds):  # no test waits: all times in the files move back
        for lock in self.folder.glob("*/lock"):
            at_s = lock.stat().st_mtime - seconds
            os.utime(lock, (at_s, at_s))
        for path in self.folder.glob("*/content.json"):
            content = msgspec.json.decode(path.read_bytes(), type=Content)
            content.ends_s = {name: end_s - seconds for name, end_s in content.ends_s.items()}
            content.called_s -= seconds
            path.write_bytes(msgspec.json.encode(content))


def connect(folder):
    store(folder).connect(wait=WaitBudget.lasting(1))


def test_a_relative_path_is_refused_before_anything_is_touched():
    with pytest.raises(ConfigError, match="needs the absolute path of a directory, not 'here'"):
        store("here")


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(BackendUnavailableError, match=r"No such file or directory.*its mount"):
        connect(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_path_that_is_no_directory_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BackendRefusedError, match=r"file at .*/file: Not a directory"):
        connect(tmp_path / "file")


def test_foreign_content_is_rejected(tmp_path):
    connect(tmp_path)
    (run,) = tmp_path.iterdir()
    (run / "content.json").write_text("[]")
    with pytest.raises(BackendRefusedError, match="Expected `object`, got `array`"):
        connect(tmp_path)


def test_a_replacement_that_fails_has_an_unknown_outcome(tmp_path):
    connect(tmp_path)
    (run,) = tmp_path.iterdir()
    (run / "content.json").mkdir()
    with pytest.raises(OutcomeUnknownError, match="Is a directory"):
        store(tmp_path)._replace(b"{}")


def test_another_users_run_is_not_read(tmp_path):
    connect(tmp_path)
    (run,) = tmp_path.iterdir()
    assert run.stat().st_mode & 0o777 == 0o700  # the records in it hold the run's secret


def test_a_process_that_dies_while_writing_leaves_the_old_content(tmp_path):
    client = store(tmp_path)
    client.swap("round", b"old", expect=None, keep_s=60, wait=WaitBudget.lasting(1))
    (run,) = tmp_path.iterdir()
    (run / "content.new").write_text('{"revisions": {"bir')
    kept = client.load("round", wait=WaitBudget.lasting(1))
    assert kept.value == b"old"
    assert client.swap("round", b"new", expect=kept.version, keep_s=60, wait=WaitBudget.lasting(1)).applied
