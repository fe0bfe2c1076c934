"""Files of a round, and what becomes of a run whose directory has gone for good."""

from types import SimpleNamespace

import pytest

from elastic_core.errors import ConfigError
from elastic_core.launcher.run_files import RunFiles
from elastic_core.processes.spec import WorkerPaths
from support import Lines

ROUND = SimpleNamespace(local_world_size=2)


class Gone:
    """Logs whose directory can't be made."""

    def round_paths(self, round_):
        raise ConfigError("run directory '/gone' can't be written")

    def files_of(self, paths):
        return []


class Disk:
    """Does what it is told to, at once."""

    def open_ahead(self, files):
        pass

    def run(self, key, work, take):
        try:
            take(work(), None)
        except ConfigError as error:
            take(None, error)


def files_in(path):
    lines = Lines()
    files = RunFiles(SimpleNamespace(path=path), Gone())
    files.begin(Disk(), log=lines)
    return files, lines


def test_workers_have_no_files_where_the_directory_has_gone_for_good(tmp_path):
    files, lines = files_in(tmp_path / "gone")
    files._used = True
    for _ in range(2):
        files.prepare(ROUND, lambda: None, pipes=None)
        assert files.take(ROUND) == dict.fromkeys(range(2), WorkerPaths(error_file="", fault_file=""))
    assert len(lines) == 1
    assert "has gone, and can't be made again" in lines[0]


@pytest.mark.parametrize("used", [True, False])
def test_a_directory_that_can_not_be_written_ends_the_run_otherwise(tmp_path, used):
    files, lines = files_in(tmp_path if used else tmp_path / "gone")
    files._used = used
    files.prepare(ROUND, lambda: None, pipes=None)
    with pytest.raises(ConfigError):
        files.take(ROUND)
    assert lines == []


def test_nothing_is_made_for_workers_of_a_run_that_has_ended(tmp_path):
    class Ended(SimpleNamespace):
        def finish(self, *, success):
            pass

    class Slow(Disk):
        def __init__(self):
            self.waiting = []

        def run(self, key, work, take):
            self.waiting.append(lambda: take(work(), None))

        def wait(self, key, work, *, within_s):
            work()

    class AgentEnd(Gone):
        def round_paths(self, round_):
            raise AssertionError("made")

        def finish(self):
            pass

    lines, disk = Lines(), Slow()
    files = RunFiles(Ended(path=tmp_path), AgentEnd())
    files.begin(disk, log=lines)
    files.prepare(ROUND, lambda: None, pipes=None)
    files.finish(success=True, record=lambda: None, within_s=1.0)
    disk.waiting.pop()()
    assert lines == []
