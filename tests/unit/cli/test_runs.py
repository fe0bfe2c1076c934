"""`elastic runs`: with the core alone, what runs on this machine and why it failed."""

import os

import pytest

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


def leave(run_id, *, state, end=None):
    run = RunDirectory.create(None, run_id)
    agent = own_identity(host="n0", started_ns=1)
    status = AgentStatus(run_id=run_id, node_id="n0", agent=agent, backend="local", state=state, end=end)
    write_status(run.path / STATUS_FILE, status)
    return run.path


def test_without_any_run_it_says_where_it_has_looked(place, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.startswith("no run of this user on this machine (looked in '")


def test_runs_are_listed_and_one_of_them_says_why_it_failed(place, capsys):
    running = leave("bert-7", state="running")
    failed = leave("gpt", state="ended", end=EndStatus(outcome="failed", exit_code=7, reason="exit code 7"))
    failure = Failure(
        failure_class=FailureClass.EXIT, summary="exit code 7", node_id="n0", round_index=0, at_s=9.0, uptime_s=8.0
    )
    incident = build_launcher_incident(failure, run_id="gpt", host="n0", restart_count=0, at_ns=5)
    path = IncidentFiles(failed).write(incident)

    assert main(["runs"]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:2] == ["RUN", "STATE"]
    assert ["bert-7", "running", str(running)] in rows
    assert ["gpt", "failed", f"(exit code 7)  {failed}"] in rows

    for target in ("gpt", str(failed)):
        assert main(["runs", target]) == 0
        out = capsys.readouterr().out
        assert "exit code 7" in out
        assert path.removesuffix("incident.json") in out
    assert main(["runs", "bert-7"]) == 0
    assert "nothing has failed" in capsys.readouterr().out


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
