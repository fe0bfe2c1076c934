"""One record for each run of this user on this machine, bounded, its owner's alone, and never trusted when read."""

import os
import stat
import threading

import pytest

from elastic_core.errors import ConfigError
from elastic_core.rundir import run_records as records
from elastic_core.rundir.identity import AgentIdentity
from elastic_core.rundir.run_records import MOST_KEPT, RunEntry, run_records


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "runtime"))
    return tmp_path / "runtime" / f"elastic-{os.geteuid()}" / "index"


def begin(run_id="bert-7", **changes):
    return RunEntry.begin(**{"run_id": run_id, "node_id": "n0", "script": "train.py", "run_dir": "/r", **changes})


def test_a_run_is_recorded_when_it_begins_and_when_it_ends(index):
    entry = begin()
    (record,) = run_records()
    assert (record.run_id, record.node_id, record.script, record.run_dir) == ("bert-7", "n0", "train.py", "/r")
    assert (record.agent.running, record.outcome, record.exit_code, record.ended_ns) == (True, "", None, 0)
    entry.end(outcome="failed", exit_code=7, result="exit code 7")
    entry.end(outcome="succeeded", exit_code=0, result="too late")
    (record,) = run_records()
    assert (record.outcome, record.exit_code, record.result) == ("failed", 7, "exit code 7")
    assert record.ended_ns > record.agent.started_ns > 0
    assert stat.S_IMODE(index.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in index.iterdir()} == {0o600}


def test_long_texts_are_cut(index):
    begin("x" * 5000, node_id="y" * 5000, script="z" * 5000).end(outcome="failed", exit_code=1, result="w" * 10**6)
    (record,) = run_records()
    assert {len(text) for text in (record.run_id, record.node_id, record.script, record.result)} == {1000}
    assert run_records(run_id="x" * 5000) == [record]


def test_the_oldest_are_forgotten(index):
    for number in range(MOST_KEPT + 3):
        begin(str(number))
    assert [record.run_id for record in run_records()] == [str(number) for number in range(3, MOST_KEPT + 3)]
    assert [record.run_id for record in run_records(run_id="7")] == ["7"]


def test_an_end_whose_record_was_forgotten_is_written_all_the_same(index):
    entry = begin()
    for path in index.iterdir():
        path.unlink()
    entry.end(outcome="succeeded", exit_code=0, result="")
    assert [record.outcome for record in run_records()] == ["succeeded"]


def test_runs_that_begin_at_once_do_not_harm_each_other(index, monkeypatch):
    monkeypatch.setattr(records, "MOST_KEPT", 5)
    errors = []

    def run(number):
        try:
            for turn in range(20):
                begin(f"{number}-{turn}").end(outcome="succeeded", exit_code=0, result="")
        except Exception as err:  # noqa: BLE001  # shown below
            errors.append(err)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(run_records()) >= 5


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Input data was truncated"),
        (b"{" + b" " * 40_000, "File too large"),
        (b'{"run_id":' + b"[" * 100_000, "File too large"),
        (b"\xff", "JSON is malformed"),
        (b"[]", "Expected `object`"),
        (b'{"schema_version":2}', "missing required field"),
        (b'{"schema_version":0,"run_id":"","node_id":"","script":"","run_dir":"","agent":{"pid":1}}', "expected 1"),
        (b'{"run_id":"","node_id":"","script":"","run_dir":"","agent":{"pid":1,"started_ns":-1}}', "started_ns"),
    ],
)
def test_a_record_that_can_not_be_read_is_left_out_with_a_line(index, content, why):
    begin()
    (index / "1-1.json").write_bytes(content)
    told = []
    assert [record.run_id for record in run_records(told.append)] == ["bert-7"]
    (line,) = told
    assert line.startswith(f"the record '{index / '1-1.json'}' can't be read (")
    assert why in line


def test_a_pipe_in_the_place_of_a_record_holds_nothing_up(index):
    begin()
    os.mkfifo(index / "1-1.json")
    told = []
    assert len(run_records(told.append)) == len(told) == 1


def test_a_folder_that_another_user_could_have_prepared_gets_no_record_and_is_not_read(index):
    index.parent.mkdir()
    index.parent.chmod(0o777)
    entry = begin()
    entry.end(outcome="succeeded", exit_code=0, result="")
    assert entry.path is None
    assert list(index.parent.iterdir()) == []
    with pytest.raises(ConfigError, match="can be written by others"):
        run_records()


def test_a_process_is_known_by_more_than_its_number():
    own = AgentIdentity.own(host="h", started_ns=1)
    assert own.running is True
    fields = {name: getattr(own, name) for name in AgentIdentity.__struct_fields__}
    assert AgentIdentity(**(fields | {"start_ticks": own.start_ticks - 1})).running is False
    assert AgentIdentity(**(fields | {"pid": 2**22 + 1})).running is False
    assert AgentIdentity(**(fields | {"boot_id": "another"})).running is None
    assert AgentIdentity(**(fields | {"pid_namespace": "pid:[1]"})).running is None


# --- the folder for files that stay


def test_a_runs_folder_is_made_at_the_first_call_and_found_by_readers(index):
    entry = begin()
    assert run_records()[0].files == ""
    assert [path.suffix for path in index.iterdir()] == [".json"]
    folder = index / entry.path.stem
    assert entry.make_files() == entry.make_files() == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "ledger.jsonl").write_text("{}\n")
    entry.end(outcome="succeeded", exit_code=0, result="")
    (record,) = run_records()
    assert (record.files, record.outcome) == (str(folder), "succeeded")
    assert entry.make_files() == str(folder)  # a slow hook, after the end


def test_the_folder_of_an_old_run_is_removed_with_its_record(index, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_KEPT", 3)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    entries = [begin(str(number)) for number in range(3)]
    for entry in entries:
        folder = entry.path.with_suffix("")
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").touch()
        (folder / "link").symlink_to(outside)
    begin("3")
    begin("4")
    assert [record.run_id for record in run_records()] == ["2", "3", "4"]
    assert sorted(path.name for path in index.iterdir() if path.is_dir()) == [entries[2].path.stem]
    assert (outside / "kept").exists()


def test_a_folder_without_a_record_is_no_run_and_goes_with_the_oldest(index, monkeypatch):
    monkeypatch.setattr(records, "MOST_KEPT", 2)
    entry = begin("0")
    entry.make_files()
    entry.path.unlink()
    begin("1")
    assert [record.run_id for record in run_records()] == ["1"]
    begin("2")
    assert [path.name for path in index.iterdir() if path.is_dir()] == []
    assert [record.run_id for record in run_records()] == ["1", "2"]


def test_a_link_in_the_place_of_a_folder_is_not_used(index, tmp_path, monkeypatch):
    entry = begin()
    path = entry.path
    path.with_suffix("").symlink_to(tmp_path)
    assert entry.make_files() == ""
    assert run_records()[0].files == ""
    monkeypatch.setattr(records, "MOST_KEPT", 1)
    begin("later")
    assert (tmp_path.is_dir(), path.with_suffix("").is_symlink()) == (True, False)


def test_without_a_place_for_records_there_is_no_folder(index):
    index.parent.mkdir()
    index.parent.chmod(0o777)
    assert begin().make_files() == ""


def test_a_record_of_an_earlier_version_has_no_files(index):
    path = begin().path
    path.write_bytes(path.read_bytes().replace(b',"files":""', b""))
    assert b"files" not in path.read_bytes()
    assert [record.files for record in run_records()] == [""]
