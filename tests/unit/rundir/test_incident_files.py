"""Every incident of a run has its file, for as long as there are not too many; the last one is `incident.json`."""

import os
from pathlib import Path

import pytest

from elastic_core.failure.incident import MAX_FILE_BYTES, build_incident, read_incident, write_incident
from elastic_core.rundir import incident_files
from elastic_core.rundir.found_incidents import find_incidents
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.types import Failure, FailureClass


def incident(number=0, restart_count=0):
    failure = Failure(
        failure_class=FailureClass.EXIT,
        summary=f"failure {number}",
        node_id="n0",
        round_index=number,
        at_s=1.0,
        uptime_s=1.0,
    )
    at_ns = 10**18 + number
    return build_incident(failure, run_id="x", host="h", at_ns=at_ns, restart_count=restart_count)


def names(folder):
    return sorted(path.name for path in folder.glob("incident*"))


def test_each_one_has_a_file_and_the_last_one_two_more(tmp_path):
    files = IncidentFiles(tmp_path)
    for number in range(3):
        assert files.write(incident(number)) == str(tmp_path / "incident.json")
    assert names(tmp_path) == ["incident-0.json", "incident-1.json", "incident-2.json", "incident.json"]
    for number in range(3):
        for path in (f"incident-{number}.json", f"attempt_{number}/incident.json"):
            assert read_incident(tmp_path / path).summary == f"failure {number}"
    assert read_incident(tmp_path / "incident.json").summary == "failure 2"
    assert (tmp_path / "incident-0.json").stat().st_mode & 0o777 == 0o600


def test_more_about_the_last_one_replaces_it_everywhere(tmp_path):
    files = IncidentFiles(tmp_path)
    files.write(incident(0))
    files.write(incident(1))
    files.write(incident(1, restart_count=9), again=True)
    assert names(tmp_path) == ["incident-0.json", "incident-1.json", "incident.json"]
    for path in ("incident-1.json", "incident.json", "attempt_1/incident.json"):
        assert read_incident(tmp_path / path).restart_count == 9
    assert read_incident(tmp_path / "incident-0.json").restart_count == 0


def test_a_directory_of_an_earlier_run_keeps_its_own(tmp_path):
    IncidentFiles(tmp_path).write(incident(0))
    IncidentFiles(tmp_path).write(incident(1))
    assert names(tmp_path) == ["incident-0.json", "incident-1.json", "incident.json"]


def test_the_first_and_the_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(incident_files, "MOST_KEPT", 4)
    files = IncidentFiles(tmp_path)
    for number in range(9):
        files.write(incident(number))
    assert names(tmp_path) == [f"incident-{n}.json" for n in (0, 6, 7, 8)] + ["incident.json"]
    assert len(find_incidents(tmp_path)) == 9  # those of the rounds' folders are there


def test_where_there_are_no_links_there_are_copies(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    IncidentFiles(tmp_path).write(incident(0))
    assert read_incident(tmp_path / "incident-0.json") == read_incident(tmp_path / "incident.json")


def test_what_can_not_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        IncidentFiles(tmp_path / "file").write(incident(0))


def test_a_directory_that_has_gone_is_made_again(tmp_path):
    IncidentFiles(tmp_path / "gone").write(incident(0))
    assert len(find_incidents(tmp_path / "gone")) == 1


def test_they_are_found_in_order_each_once_and_rubbish_is_passed_over(tmp_path):
    files = IncidentFiles(tmp_path)
    for number in range(3):
        files.write(incident(number))
    (tmp_path / "incident-1.json").unlink()  # else the other names would be of the same file
    (tmp_path / "incident-1.json").write_text("{")
    (tmp_path / "incident-x.json").write_text("{}")
    found = find_incidents(tmp_path)
    assert [one.incident.summary for one in found] == ["failure 0", "failure 1", "failure 2"]
    assert found[0].path == str(tmp_path / "incident-0.json")
    assert found[1].path == str(tmp_path / "attempt_1/incident.json")
    assert find_incidents(tmp_path / "attempt_0")[0].incident.summary == "failure 0"


def test_incidents_of_lost_nodes_which_a_hook_wrote_are_found_and_change_no_number(tmp_path):
    files = IncidentFiles(tmp_path)
    files.write(incident(0))
    write_incident(tmp_path / "incident-lost-0.json", incident(1))
    files.write(incident(2))
    assert [one.incident.summary for one in find_incidents(tmp_path)] == ["failure 0", "failure 1", "failure 2"]
    assert names(tmp_path) == ["incident-0.json", "incident-1.json", "incident-lost-0.json", "incident.json"]


def test_a_run_directory_that_has_gone_since_it_was_found_has_no_incident(tmp_path, monkeypatch):
    assert find_incidents(tmp_path / "gone") == []

    def gone(path, pattern):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    IncidentFiles(tmp_path).write(incident(0))
    monkeypatch.setattr(Path, "glob", gone)  # it goes while it is searched
    assert len(find_incidents(tmp_path)) == 1


@pytest.mark.parametrize(
    "content",
    [b"{" + b" " * MAX_FILE_BYTES, b'{"run_id":' + b"[" * 100_000, b"\xff", b"", b"[]"],
    ids=["too big", "too deep", "no text", "empty", "a list"],
)
def test_what_is_no_incident_of_ours_is_passed_over(tmp_path, content):
    (tmp_path / "incident.json").write_bytes(content)
    assert find_incidents(tmp_path) == []
