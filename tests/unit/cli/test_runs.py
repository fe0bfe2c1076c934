"""`elastic runs`: with the core alone, what runs on this machine and why it failed."""

import pytest

from elastic_core.cli.main import main
from elastic_core.failure.incident import build_launcher_incident
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.incident_files import IncidentFiles
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


def test_a_run_that_is_not_here_is_one_line(place, capsys):
    assert main(["runs", "bort"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("elastic: error: no run directory 'bort', and no run of that id in '")
    assert error.endswith("Try: elastic runs, which lists this machine's runs\n")
