"""`elastic logs`: whole lines over rotations and rounds, from every layout, and what is not here."""

import os
import tracemalloc
from pathlib import Path

import click
import pytest

from elastic_core.api import RunningWorker
from elastic_core.cli.main import main
from elastic_core.failure.incident import build_incident
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.types import Failure, FailureClass
from elastic_ops.logs import command, follow
from elastic_ops.logs.command import _follow, _notes_while_following, _ranks, _Shown
from elastic_ops.logs.follow import HostLogs
from elastic_ops.logs.index import KEPT_ROUNDS, IndexWriter, read_index
from elastic_ops.logs.tail import LONGEST_LINE, LogTail
from elastic_ops.run_directories import FoundRun


class Log:
    """A log file as an agent writes it."""

    def __init__(self, path):
        self.path = path

    def write(self, text):
        with self.path.open("a") as file:
            file.write(text)

    def rotate(self, backups=9):
        for number in range(backups - 1, 0, -1):
            if (old := self.path.with_name(f"{self.path.name}.{number}")).exists():
                old.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "stdout.log")


# --- one file


def test_lines_are_whole(log):
    tail = LogTail(str(log.path))
    assert list(tail.lines()) == []  # not there yet
    log.write("one\ntw")
    assert list(tail.lines()) == ["one"]
    log.write("o\nthree")
    assert list(tail.lines()) == ["two"]
    assert list(tail.lines()) == []
    assert list(tail.rest()) == ["three"]  # nobody writes any more
    assert list(tail.rest()) == []
    tail.close()


def test_every_rotation_is_followed_however_many_there_were_between_two_looks(log):
    log.write("0\n")
    log.rotate()
    log.write("1\n")
    tail = LogTail(str(log.path))
    assert list(tail.lines()) == ["0", "1"]
    for number in range(2, 6):
        log.write(f"{number}\n")
        log.rotate()
    log.write("6\n")
    assert list(tail.lines()) == ["2", "3", "4", "5", "6"]
    log.rotate()
    assert list(tail.lines()) == []  # the new file is not there yet
    log.write("7\n")
    assert list(tail.lines()) == ["7"]
    tail.close()


def test_a_file_that_was_rotated_away_loses_what_is_gone_and_nothing_else(log):
    log.write("0\n")
    tail = LogTail(str(log.path))
    assert list(tail.lines()) == ["0"]
    for number in range(1, 5):
        log.rotate(backups=2)
        log.write(f"{number}\n")
    assert list(tail.lines()) == ["2", "3", "4"]
    tail.close()


def test_the_last_lines_are_found_over_backups(log):
    for number in range(5):
        log.write(f"{number}a\n{number}b\n")
        log.rotate()
    log.write("end\n")
    assert list(LogTail(str(log.path), last=4).lines()) == ["3b", "4a", "4b", "end"]
    assert list(LogTail(str(log.path), last=0).lines()) == []
    assert len(list(LogTail(str(log.path), last=99).lines())) == 11


@pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 7, 20_000, 30_000])
@pytest.mark.parametrize("backup_end", ["", "\n"])
def test_the_last_lines_are_those_that_a_reader_of_everything_sees_last(log, last, backup_end):
    log.write("\n".join(f"old {number} {'x' * (number % 90)}" for number in range(9000)) + backup_end)
    log.rotate()
    log.write("\n".join(f"new {number} {'y' * (number % 70)}" for number in range(9000)) + "\n\n\nbegun")
    everything = list(LogTail(str(log.path)).lines())
    assert len(everything) == 18_002
    tail = LogTail(str(log.path), last=last)
    assert list(tail.lines()) == everything[len(everything) - min(last, len(everything)) :]
    log.write(" and ended\n")
    assert list(tail.lines()) == ["begun and ended"]
    tail.close()


def test_the_last_lines_of_a_huge_file_cost_little_memory(log):
    with log.path.open("wb") as file:
        file.truncate(1 << 30)  # zeroes, of which the disk keeps none
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"line\n" * 30)
    tracemalloc.start()
    try:
        assert list(LogTail(str(log.path), last=20).lines()) == ["line"] * 20
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_is_rotated_between_two_looks_at_it_shows_its_lines_once(log, monkeypatch):
    log.write("1\n2\n")
    tail = LogTail(str(log.path), last=9)
    open_file = tail._open

    def then_rotated():
        opened = open_file()
        if log.path.read_text() == "1\n2\n":
            log.rotate()
            log.write("3\n")
        return opened

    log.path.with_name("stdout.log.1").write_text("0\n")
    monkeypatch.setattr(tail, "_open", then_rotated)
    assert list(tail.lines()) == ["0", "1", "2", "3"]
    tail.close()


def test_a_progress_bar_is_its_last_state_and_a_line_without_end_is_bounded(log):
    log.write("p 1\rp 2\rp 3\r\n" + "x" * (2 * LONGEST_LINE + 5) + "\nend\n")
    first, *pieces, last = LogTail(str(log.path)).lines()
    assert (first, "".join(pieces), last) == ("p 3", "x" * (2 * LONGEST_LINE + 5), "end")
    assert max(map(len, pieces)) < 1.2 * LONGEST_LINE


def test_what_is_no_text_is_shown_all_the_same(log):
    log.path.write_bytes(b"\xff\xfe ok\n")
    assert list(LogTail(str(log.path)).lines()) == ["\ufffd\ufffd ok"]


# --- where files are


def running(rank, *, stdout="", stderr="", base=0):
    return RunningWorker(local_rank=rank, global_rank=base + rank, pid=1, stdout=stdout, stderr=stderr)


def test_the_index_has_the_last_rounds_and_replaces_a_broken_one(tmp_path):
    (tmp_path / "logs.json").write_text("{half")
    assert read_index(tmp_path, None).rounds == ()
    writer = IndexWriter()
    for index in range(KEPT_ROUNDS + 3):
        writer.add(tmp_path, [(index, [running(0, stdout=f"/l/{index}", base=4)])])
    rounds = read_index(tmp_path, None).rounds
    assert (len(rounds), rounds[0].round_index, rounds[-1].workers[0].stdout) == (
        KEPT_ROUNDS,
        3,
        f"/l/{KEPT_ROUNDS + 2}",
    )
    assert rounds[-1].workers[0].global_rank == 4
    assert oct((tmp_path / "logs.json").stat().st_mode & 0o777) == "0o600"
    writer.add(tmp_path / "gone", [])  # the run directory was removed: there is no index then


def test_without_an_index_the_core_s_own_layout_is_found(tmp_path):
    for index, rank in ((0, 0), (0, 1), (10, 0)):
        folder = tmp_path / f"attempt_{index}" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").touch()
    (tmp_path / "attempt_x").mkdir()
    rounds = read_index(tmp_path, None).rounds
    assert [(each.round_index, len(each.workers)) for each in rounds] == [(0, 2), (10, 1)]
    assert rounds[0].workers[1].stderr == ""


def test_without_an_index_a_round_that_vanishes_hides_no_other(tmp_path, monkeypatch):
    for index in range(3):
        (tmp_path / f"attempt_{index}" / "0").mkdir(parents=True)
    real = Path.iterdir

    def vanishing(folder):
        if folder.name == "attempt_1":
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return real(folder)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert [(each.round_index, len(each.workers)) for each in read_index(tmp_path, None).rounds] == [
        (0, 1), (1, 0), (2, 1),
    ]  # fmt: skip
    assert read_index(tmp_path / "gone", None).rounds == ()


# --- a run's


class Run:
    """An agent's run directory, with two workers."""

    def __init__(self, folder, monkeypatch, base=0):
        self.folder, self.base, self.alive = folder, base, True
        self._writer = IndexWriter()
        folder.mkdir()
        monkeypatch.setattr(follow, "run_at", lambda path: FoundRun(path=str(path), running=RUNS[path].alive))
        RUNS[folder] = self

    def begin(self, index):
        self.logs = [Log(self.folder / f"{index}-{rank}.log") for rank in (0, 1)]
        workers = [running(rank, stdout=str(log.path), base=self.base) for rank, log in enumerate(self.logs)]
        self._writer.add(self.folder, [(index, workers)])

    @property
    def found(self):
        return FoundRun(path=str(self.folder))


RUNS = {}


def texts(lines):
    return [f"{line.global_rank}:{line.text}" for line in lines if line is not None]


def until_pause(lines):
    found = []
    for line in lines:
        if line is None:
            return texts(found)
        found.append(line)
    return texts(found)


def test_the_last_round_is_shown_or_the_one_that_was_asked_for(tmp_path, monkeypatch):
    run = Run(tmp_path / "a", monkeypatch)
    for index in (0, 1):
        run.begin(index)
        run.logs[0].write(f"round {index}\nhalf")
    logs = HostLogs([run.found.path], ranks=None, streams=follow.STREAMS, last=None)
    assert texts(logs.once()) == ["0:round 1"]  # it is being written
    assert texts(logs.once(0)) == ["0:round 0", "0:half"]
    assert (logs.found_ranks, logs.without_file) == ({0, 1}, set())
    run.alive = False
    assert texts(logs.once()) == ["0:round 1", "0:half"]


def test_a_run_is_followed_over_restarts_to_its_end_on_all_nodes_of_this_host(tmp_path, monkeypatch):
    one, two = Run(tmp_path / "a", monkeypatch), Run(tmp_path / "b", monkeypatch, base=2)
    one.begin(0)
    one.logs[0].write("old\n" * 3 + "last\n")
    lines = HostLogs([one.found.path, two.found.path], ranks={0, 3}, streams=("stdout",), last=1).follow()
    assert until_pause(lines) == ["0:last"]
    two.begin(0)
    one.logs[1].write("of rank 1, that nobody asked for\n")
    one.logs[0].write("more\ntor")
    two.logs[1].write("hello\n")
    assert until_pause(lines) == ["0:more", "3:hello"]
    one.begin(1)
    one.logs[0].write("again\n")
    assert until_pause(lines) == ["0:again"]
    assert [until_pause(lines) for _ in range(3)].count(["0:tor"]) == 1  # its writer had time enough
    one.logs[0].write("end")
    one.alive = two.alive = False
    assert until_pause(lines) == ["0:end"]
    assert list(lines) == []


def test_a_run_directory_that_goes_when_all_is_well_ends_it_with_its_last_lines(tmp_path, monkeypatch):
    run = Run(tmp_path / "a", monkeypatch)
    run.begin(0)
    lines = HostLogs([run.found.path], ranks=None, streams=("stdout",), last=None).follow()
    run.logs[0].write("first\n")
    assert until_pause(lines) == ["0:first"]
    run.logs[0].write("the end")
    for path in run.folder.iterdir():
        path.unlink()
    os.rmdir(run.folder)
    assert texts(lines) == ["0:the end"]


def test_a_worker_without_a_file_is_noted(tmp_path, monkeypatch):
    run = Run(tmp_path / "a", monkeypatch)
    IndexWriter().add(run.folder, [(0, [running(0), running(1, stderr="/l")])])
    logs = HostLogs([run.found.path], ranks=None, streams=("stdout",), last=None)
    assert texts(logs.once()) == []
    assert logs.without_file == {0, 1}


# --- the command


@pytest.fixture
def followed(monkeypatch, capsys):
    """Return what follows a run's logs, does a step at each pause, and returns what each pause found printed."""

    def follow_it(run, *steps, ranks=None):
        printed, left = [], list(steps)

        class Pause:
            def sleep(self, _):
                printed.append(capsys.readouterr())
                left.pop(0)()

        monkeypatch.setattr(command, "WaitBudget", Pause)
        here, show = HostLogs([run.found.path], ranks=ranks, streams=("stdout",), last=None), _Shown(alone=False)
        _follow(here, None, show, lambda: _notes_while_following(here, None, ranks, None))
        return printed, show

    return follow_it


def test_who_follows_is_told_at_once_that_no_file_is_written(tmp_path, monkeypatch, followed):
    run = Run(tmp_path / "a", monkeypatch)

    def begin():
        IndexWriter().add(run.folder, [(0, [running(0), running(1)])])

    def end():
        run.alive = False

    printed, show = followed(run, begin, lambda: None, end)
    assert [said.err for said in printed] == [
        "no worker has been started yet: waiting for the first\n",
        "rank 0,1: its output goes to its agent's console. Try: elastic run with --tee 3 or --redirects 3\n",
        "",
    ]
    assert (show.count, show.noted) == (0, False)


def test_who_follows_a_rank_that_is_not_here_is_told_at_once(tmp_path, monkeypatch, followed):
    run = Run(tmp_path / "a", monkeypatch)
    run.begin(0)

    def write():
        run.logs[0].write("hello\n")

    def end():
        run.alive = False

    printed, _ = followed(run, write, end, ranks={0, 7})
    assert [said.err for said in printed] == [
        "rank 7 is not on this host (here: 0,1). Try: the run's --rdzv options say where it is\n",
        "",
    ]
    assert [said.out for said in printed] == ["", "[0]: hello\n"]


@pytest.mark.parametrize(("text", "ranks"), [("3", {3}), ("3, 17", {3, 17}), ("0-2,5", {0, 1, 2, 5}), ("7-7", {7})])
def test_ranks(text, ranks):
    assert _ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "3,", "5-3", "-1", "1-", "0-9999999", "0-99999,100000-199999", "²"])
def test_what_are_no_ranks_is_refused(text):
    with pytest.raises(click.BadParameter):
        _ranks(text)


FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 1", node_id="n0", round_index=0, at_s=9.0, uptime_s=8.0
)


def test_what_is_not_here_is_one_line(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    IncidentFiles(folder).write(build_incident(FAILURE, run_id="r", host="n0", restart_count=0, at_ns=5))
    IndexWriter().add(folder, [(0, [running(0, stdout=str(tmp_path / "x")), running(1)])])
    (tmp_path / "x").write_text("fine \x1b[31m\n")
    assert main(["logs", "--rank", "0,1,17", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out == "[0]: fine ?[31m\n"
    assert said.err.splitlines() == [
        "rank 1: its output goes to its agent's console. Try: elastic run with --tee 3 or --redirects 3",
        "rank 17 is not on this host (here: 0,1). Try: the run's --rdzv options say where it is",
    ]
    assert main(["logs", "--rank", "17", str(folder)]) == 2
    assert main(["logs", "-f", "--round", "1", str(folder)]) == 2
    assert main(["logs", str(tmp_path / "none")]) == 2
