"""`elastic runs`: with the core alone, what runs on this machine and why it failed."""

import os
import re

import pytest
from msgspec.structs import replace

from elastic_core.cli.main import main
from elastic_core.failure.incident import build_launcher_incident
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.rundir.index import find_runs
from elastic_core.rundir.status_file import STATUS_FILE, own_identity, write_status
from elastic_core.status import AgentStatus, EndStatus
from elastic_core.types import Failure, FailureClass


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "runtime"))


STARTED_NS = 1_767_225_600 * 10**9


def leave(run_id, *, state, end=None, script="/home/me/train.py", started_s=0.0, took_s=0.0, dead=False):
    """Leave the run directory of a run, which started so many seconds after the first one."""
    run = RunDirectory.create(None, run_id)
    agent = own_identity(host="n0", started_ns=STARTED_NS + round(started_s * 1e9))
    status = AgentStatus(
        run_id=run_id,
        node_id="n0",
        script=script,
        agent=replace(agent, start_ticks=1) if dead else agent,
        backend="local",
        state=state,
        end=end,
        written_ns=agent.started_ns + round(took_s * 1e9),
    )
    write_status(run.path / STATUS_FILE, status)
    return run.path


def leave_incident(path, summary, run_id):
    failure = Failure(
        failure_class=FailureClass.EXIT, summary=summary, node_id="n0", round_index=0, at_s=9.0, uptime_s=8.0
    )
    return IncidentFiles(path).write(
        build_launcher_incident(failure, run_id=run_id, host="n0", restart_count=0, at_ns=5)
    )


def listed(capsys, columns=120):
    """Return the cells of each run's row, from left to right, and the heads before them."""
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines)
    return [re.split(r" {2,}", line) for line in lines]


def test_without_any_run_it_says_where_it_has_looked(place, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.startswith("no run of this user on this machine (looked in '")


UUID = "da94fb03-d58c-4225-b348-60a1c490ba0b"
FAILED = EndStatus(outcome="failed", exit_code=7, reason="exit code 7")


def test_runs_are_listed_with_what_became_of_them(place, capsys):
    leave_incident(leave(UUID, state="ended", end=FAILED, took_s=125), "ValueError: boom", UUID)
    leave("gpt", state="ended", end=FAILED, started_s=1, took_s=0.5)
    stopped = EndStatus(outcome="stopped", exit_code=143, reason="stopped by signal 15")
    leave("stopped", state="ended", end=stopped, started_s=2, took_s=3, script="")
    leave("killed", state="running", started_s=3, took_s=60, dead=True)
    leave("bert-7", state="running", started_s=4)

    heads, *rows = listed(capsys)
    assert heads == ["#", "STARTED", "TOOK", "SCRIPT", "RUN", "RESULT"]
    assert [[number, *rest] for number, _, _, *rest in rows] == [
        ["1", "train.py", "da94fb03", "ValueError: boom"],
        ["2", "train.py", "gpt", "exit code 7"],
        ["3", "-", "stopped", "stopped by signal 15"],
        ["4", "train.py", "killed", "agent dead"],
        ["5", "train.py", "bert-7", "running"],
    ]
    assert [row[2] for row in rows[:4]] == ["2 min 5 s", "0.5 s", "3 s", "1 min"]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d", row[1]) for row in rows)


def test_a_run_that_goes_on_has_taken_the_time_since_its_start(place, capsys, monkeypatch):
    monkeypatch.setattr("elastic_core.clock.SystemClock.wall_ns", lambda self: STARTED_NS + 7200 * 10**9)
    leave("bert-7", state="running", took_s=5)
    assert listed(capsys)[1][2] == "2 h"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_row_fits_the_terminal_whatever_failed(place, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    longest_ns = (329 * 24 + 11) * 3600 * 10**9
    monkeypatch.setattr("elastic_core.clock.SystemClock.wall_ns", lambda self: STARTED_NS + longest_ns)
    leave_incident(leave("r" * 60, state="ended", end=FAILED), "ValueError: " + "x" * 300, "r")
    leave("gpt", state="running", script="a/" * 40 + "train_a_model_of_many_words.py")
    _, row, _ = listed(capsys, columns)
    assert row[4] == "r" * 15
    assert row[5].startswith("Value")


def test_a_directory_without_a_status_is_listed(place, capsys):
    run = RunDirectory.create(None, "bert-7")
    assert listed(capsys)[1] == ["1", "-", "-", "-", run.path.name[:16], "unknown"]


def test_one_run_is_shown_by_number_id_directory_or_what_the_list_shows(place, capsys):
    first = leave(UUID, state="ended", end=FAILED)
    path = leave_incident(first, "exit code 7", UUID)
    leave("bert-7", state="running", started_s=1)
    for target in ("1", UUID, "da94fb03", str(first)):
        assert main(["runs", target]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{UUID}  failed (exit code 7)  {first}\n")
        assert "exit code 7" in out
        assert path.removesuffix("incident.json") in out
    assert main(["runs", "2"]) == 0
    assert "nothing has failed" in capsys.readouterr().out
    assert main(["runs", "3"]) == 2
    assert "no run of that id in" in capsys.readouterr().err


def test_an_id_counts_before_a_number(place, capsys):
    leave("bert-7", state="running")
    leave("1", state="running", started_s=1)
    assert main(["runs", "1"]) == 0
    assert capsys.readouterr().out.startswith("1  running  ")


class _Gone:
    """An entry of a directory whose file has gone since the directory was read."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)

    def is_dir(self, **_):
        return True

    def stat(self, **_):
        raise FileNotFoundError(2, "No such file or directory", self.path)


def test_a_run_directory_that_vanishes_while_runs_are_listed_hides_no_other(place, monkeypatch):
    first = leave("bert-7", state="running")
    second = leave("gpt", state="running")
    real = os.scandir

    class Listing:
        def __init__(self, path):
            self._real = real(path)

        def __enter__(self):
            entries = list(self._real)
            return iter([_Gone(f"{first}-gone"), entries[0], _Gone(f"{second}-gone"), *entries[1:]])

        def __exit__(self, *error):
            self._real.close()

    monkeypatch.setattr("elastic_core.rundir.index.os.scandir", Listing)
    runs = find_runs()
    monkeypatch.undo()
    assert {run.path for run in runs} == {str(first), str(second)}


def test_a_place_of_runs_that_cannot_be_read_is_passed_over(place, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    leave("bert-7", state="running")
    monkeypatch.setattr("elastic_core.rundir.index.os.scandir", refuse)
    assert find_runs() == []


def test_a_run_that_is_not_here_is_one_line(place, capsys):
    assert main(["runs", "bort"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("elastic: error: no run directory 'bort', and no run of that id in '")
    assert error.endswith("Try: elastic runs, which lists this machine's runs\n")
