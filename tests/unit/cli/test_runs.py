"""`elastic runs`: with the core alone, what ran on this machine and why it failed."""

import re

import pytest
from msgspec.structs import replace

from elastic_core.cli.main import main
from elastic_core.encoding import encode_json
from elastic_core.failure.incident import build_incident
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.identity import AgentIdentity
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.rundir.run_records import RECORDS_FOLDER, RunRecord
from elastic_core.system.private_file import make_folder, replace_file
from elastic_core.types import Failure, FailureClass, Restart


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "runtime"))
    monkeypatch.setenv("COLUMNS", "120")


STARTED_NS = 1_767_225_600 * 10**9


def leave(run_id, *, end=None, script="/home/me/train.py", started_s=0.0, took_s=0.0, **agent):
    """Leave directory and record of a run, which started so many seconds after the first one."""
    run = RunDirectory(None, run_id)
    own = replace(AgentIdentity.own(host="n0", started_ns=STARTED_NS + round(started_s * 1e9)), **agent)
    record = RunRecord(run_id=run_id, node_id="n0", script=script, run_dir=str(run.path), agent=own)
    if end is not None:
        outcome, exit_code, result = end
        ended_ns = own.started_ns + round(took_s * 1e9)
        record = replace(record, ended_ns=ended_ns, outcome=outcome, exit_code=exit_code, result=result)
    folder = run.path.parent / RECORDS_FOLDER
    make_folder(str(folder))
    replace_file(folder / f"{own.started_ns}-{run.path.name[-8:]}.json", encode_json(record))
    return run.path


def leave_incident(path, summary, run_id, decision=None):
    failure = Failure(
        failure_class=FailureClass.EXIT, summary=summary, node_id="n0", round_index=0, at_s=9.0, uptime_s=8.0
    )
    incident = build_incident(failure, run_id=run_id, host="n0", restart_count=0, at_ns=5, decision=decision)
    return IncidentFiles(path).write(incident)


def listed(capsys, columns=120):
    """Return the cells of each run's row, from left to right, and the heads before them."""
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines)
    return [re.split(r" {2,}", line) for line in lines]


def test_without_any_run_it_says_where_it_has_looked(place, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.startswith("no run of this user on this machine (directories: '")


UUID = "da94fb03-d58c-4225-b348-60a1c490ba0b"
FAILED = ("failed", 7, "exit code 7")


def test_runs_are_listed_with_what_became_of_them(place, capsys):
    leave(UUID, end=("failed", 1, "ValueError: boom (train.py:11)"), took_s=125)
    leave("good", end=("succeeded", 0, "all workers finished"), started_s=1, took_s=0.5)
    leave("stopped", end=("stopped", 143, "stopped by signal 15"), started_s=2, took_s=3, script="")
    leave("killed", started_s=3, start_ticks=1)
    leave("elsewhere", started_s=4, boot_id="another")
    leave("bert-7", started_s=5)

    heads, *rows = listed(capsys)
    assert heads == ["#", "STARTED", "TOOK", "SCRIPT", "RUN", "RESULT"]
    assert [[number, *rest] for number, _, _, *rest in rows] == [
        ["1", "train.py", "da94fb03", "ValueError: boom (train.py:11)"],
        ["2", "train.py", "good", "succeeded"],
        ["3", "-", "stopped", "stopped by signal 15"],
        ["4", "train.py", "killed", "agent dead, no end recorded"],
        ["5", "train.py", "elsewhere", "no end recorded (its agent can't be seen from here)"],
        ["6", "train.py", "bert-7", "running"],
    ]
    assert [row[2] for row in rows[:5]] == ["2 min 5 s", "0.5 s", "3 s", "-", "-"]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d", row[1]) for row in rows)


def test_a_run_that_goes_on_has_taken_the_time_since_its_start(place, capsys, monkeypatch):
    monkeypatch.setattr("elastic_core.system.clock.SystemClock.wall_ns", lambda self: STARTED_NS + 7200 * 10**9)
    leave("bert-7")
    assert listed(capsys)[1][2] == "2 h"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_row_fits_the_terminal_whatever_failed(place, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    longest_ns = (329 * 24 + 11) * 3600 * 10**9
    monkeypatch.setattr("elastic_core.system.clock.SystemClock.wall_ns", lambda self: STARTED_NS + longest_ns)
    leave("r" * 60, end=("failed", 1, "ValueError: " + "x" * 300))
    leave("gpt", script="a/" * 40 + "train_a_model_of_many_words.py", started_s=1)
    _, row, _ = listed(capsys, columns)
    assert row[4] == "r" * 15
    assert row[5].startswith("Value")


def test_a_run_whose_directory_is_gone_is_listed_and_shown(place, capsys):
    run = leave("good", end=("succeeded", 0, ""))
    run.rmdir()
    failed = leave("bad", end=FAILED, started_s=1)
    failed.rmdir()
    assert [row[4:] for row in listed(capsys)[1:]] == [["good", "succeeded"], ["bad", "exit code 7"]]
    assert main(["runs", "bad"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "exit code 7 (its run directory holds no incident)"
    assert main(["runs", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["no incident is kept"]


def test_a_record_that_can_not_be_read_is_a_line_beside_the_list(place, capsys):
    path = leave("good", end=("succeeded", 0, ""))
    (path.parent / RECORDS_FOLDER / "0.json").write_text("{")
    assert main(["runs"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert said.err.count("\n") == 1
    assert "can't be read" in said.err


def test_one_run_is_shown_by_number_id_directory_or_what_the_list_shows(place, capsys, monkeypatch):
    first = leave(UUID, end=FAILED)
    path = leave_incident(first, "exit code 7", UUID)
    leave("bert-7", started_s=1)
    monkeypatch.chdir(first.parent)
    for target in ("1", UUID, "da94fb03", str(first), first.name):
        assert main(["runs", target]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{UUID}  failed (exit code 7)  {first}\n")
        assert "exit code 7" in out
        assert path.removesuffix("incident.json") in out
    assert main(["runs", "2"]) == 0
    assert "nothing has failed" in capsys.readouterr().out
    assert main(["runs", "3"]) == 2
    assert "no run '3' of this user" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (("succeeded", 0, "all workers finished"), "incidents: 1; the run continued after the last one:"),
        (None, "incidents: 1; the run continued after the last one:"),
        (
            ("failed", 4, "1 of at least 2 nodes joined"),
            "1 of at least 2 nodes joined; incidents: 1; the run continued after the last one:",
        ),
    ],
)
def test_a_run_that_continued_after_its_last_incident_does_not_read_as_failed_by_it(place, capsys, end, line):
    leave_incident(leave("bert-7", end=end), "exit code 7", "bert-7", decision=Restart())
    assert main(["runs", "bert-7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == line
    assert lines[2].startswith("── round 0 of run 'bert-7' failed: non-zero exit; restarted ─")


def test_incidents_of_a_run_whose_directory_is_gone_may_be_kept_beside_its_record(place, capsys):
    run = leave("bert-7", end=("succeeded", 0, "all workers finished"))
    run.rmdir()
    (record,) = (run.parent / RECORDS_FOLDER).glob("*.json")
    leave_incident(record.with_suffix(""), "exit code 7", "bert-7", decision=Restart())
    assert main(["runs", "bert-7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "incidents: 1; the run continued after the last one:"
    assert lines[-2] == f"Incident: {record.with_suffix('')}/incident-0.json"


def test_a_dead_agent_without_an_incident_may_have_been_a_lost_node(place, capsys):
    leave("killed", start_ticks=1)
    assert main(["runs", "killed"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["no incident is kept"]


def test_an_id_counts_before_a_number(place, capsys):
    leave("bert-7")
    leave("1", started_s=1)
    assert main(["runs", "1"]) == 0
    assert capsys.readouterr().out.startswith("1  running  ")


def test_a_run_that_is_not_here_is_one_line(place, capsys):
    assert main(["runs", "bort"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("elastic: error: no run 'bort' of this user on this machine (directories: '")
    assert error.endswith("Try: elastic runs, which lists this machine's runs\n")
