"""Files of a round in a run directory that has gone: wherever it is by then, whoever has made it anew."""

from pathlib import Path

from elastic_core.launcher.run_files import RunFiles


class Elsewhere:
    """A run directory that another thread has made anew, in another place."""

    def __init__(self):
        self.path, self.times_made = Path("before"), 1

    def move(self):
        self.path, self.times_made = Path("after"), 2

    def restore(self):
        return False  # it is there


class Logs:
    """Says where the files of a round would be."""

    def __init__(self):
        self.place = Path("before")

    def move(self, path):
        self.place = path

    def round_paths(self, round_):
        return {0: self.place / str(round_)}

    def files_of(self, paths):
        return []


class Disk:
    """Does what it is told to, at once."""

    def open_ahead(self, files):
        pass

    def run(self, key, work, take):
        take(work(), None)


def test_files_of_a_round_are_where_another_thread_has_made_the_directory_anew():
    run_dir, logs, lines, moved = Elsewhere(), Logs(), [], []
    files = RunFiles(run_dir, logs)
    files.begin(Disk(), notice=lines.append, moved=moved.append)
    run_dir.move()  # for an incident, of which the loop has not heard yet
    files.prepare(3, lambda: None, pipes=None)
    assert files.take(3) == {0: Path("after/3")}
    assert moved == [Path("after")]
    assert len(lines) == 1


def test_nothing_is_made_for_workers_of_a_run_that_has_ended():
    class Ended(Elsewhere):
        def restore(self):
            raise AssertionError("made again")

        def finish(self, *, success):
            pass

    class Slow(Disk):
        def __init__(self):
            self.waiting = []

        def run(self, key, work, take):
            self.waiting.append(lambda: take(work(), None))

        def wait(self, key, work, *, within_s):
            work()

    class Ending(Logs):
        def round_paths(self, round_):
            raise AssertionError("made")

        def finish(self):
            pass

    lines, disk = [], Slow()
    files = RunFiles(Ended(), Ending())
    files.begin(disk, notice=lines.append, moved=lines.append)
    files.prepare(3, lambda: None, pipes=None)
    files.finish(success=True, record=lambda: None, within_s=1.0)
    disk.waiting.pop()()
    assert lines == []
