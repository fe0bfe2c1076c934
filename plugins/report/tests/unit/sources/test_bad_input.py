"""Files that are torn, huge, of another version, or another user's: one line, or a report that names what lacks."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_core.cli.main import main
from elastic_report.ledger.states import LedgerState as S
from run_kit import Node
from sources_kit import Leave, write_node


def trained(**more: object) -> Node:
    node = Node("a", **more).spend(S.RENDEZVOUS, 10).join(0, 0, ("a",)).spend(S.PRODUCTIVE, 50)  # type: ignore[arg-type]
    return node.fail("ValueError: </script>\x1b[31m\x00").over("failure").spend(S.DECIDING, 1).end("failed", 1)


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["report", "--json", *arguments]) == 0
    shown = capsys.readouterr()
    document: dict[str, object] = json.loads(shown.out)
    missing = document["missing"]
    assert isinstance(missing, list)
    assert shown.err.splitlines() == [f"missing: {line}" for line in missing]
    return document


def missing_of(document: dict[str, object]) -> list[str]:
    missing = document["missing"]
    assert isinstance(missing, list)
    return missing


def test_a_half_deleted_run_directory(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    (folder / "ledger.jsonl").unlink()
    document = data(capsys)
    assert missing_of(document) == [
        (
            "no ledger was found, so that no time is shown "
            "(none is written with -p no:ledger, or if the run succeeds within half a second)"
        )
    ]
    run = document["run"]
    assert isinstance(run, dict)
    assert (run["state"], run["exit_code"]) == ("failed", 1)
    assert "ValueError: </script>" in run["sentence"]


def test_only_an_incident_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_node(tmp_path / "half", trained())
    (tmp_path / "half" / "ledger.jsonl").unlink()
    document = data(capsys, str(tmp_path / "half"))
    incidents = document["incidents"]
    assert isinstance(incidents, list)
    assert len(incidents) == 1


@pytest.mark.parametrize("name", ["ledger.jsonl", "incident.json", "status.json"])
def test_a_file_of_a_newer_version(name: str, leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    for path in [folder / name, *([folder / "incident-0.json"] if name == "incident.json" else [])]:
        first, _, rest = path.read_text().partition("\n")
        path.write_text(json.dumps(json.loads(first) | {"schema_version": 99}) + "\n" + rest)
    (line, *_) = missing_of(data(capsys))
    assert str(folder) in line
    assert "version 99; expected" in line


def test_a_torn_ledger_counts_its_lines(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    path = folder / "ledger.jsonl"
    raw = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(raw[0] + raw[1][:20] + b"\n\xff\xfe\x00\n" + b"".join(raw[2:]) + b'{"kind":"span","sta')
    assert missing_of(data(capsys)) == ["a: 3 lines of its ledger can't be read"]


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b"{}\n", b"[1]\n", b'{"kind":"end","at_s":1,"outcome":"","exit_code":0}\n']
)
def test_a_file_that_is_no_ledger(content: bytes, leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    (folder / "ledger.jsonl").write_bytes(content)
    (line, none) = missing_of(data(capsys))
    assert "is not a ledger: its first line is no 'begin'" in line
    assert none.startswith("no ledger was found")


@pytest.mark.parametrize("name", ["ledger.jsonl", "incident.json", "status.json", "logs.json"])
def test_a_file_of_2_gb_is_not_read(name: str, leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    with (folder / name).open("ab") as file:
        file.truncate(2 << 30)  # sparse: it needs no space
    document = data(capsys)
    assert [line for line in missing_of(document) if "File too large" in line or not line.startswith("no ledger")] == (
        [f"{str(folder / name)!r} can't be read (File too large)"] if name in ("ledger.jsonl", "status.json") else []
    )


def test_text_of_scripts_stays_data(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(trained(), outcome="failed", code=1)
    assert main(["report", "--json"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x00" not in out
    assert json.loads(out)["incidents"][0]["traceback"].endswith("ValueError: </script>\x1b[31m\x00")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all files")
def test_a_file_that_may_not_be_read(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(trained(), outcome="failed", code=1)
    (folder / "ledger.jsonl").chmod(0)
    assert "can't be read (Permission denied)" in missing_of(data(capsys))[0]


def test_a_directory_of_another_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    write_node(folder, trained())

    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("elastic_report.sources.directories.os", SimpleNamespace(scandir=denied))
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"{str(folder)!r} can't be read (Permission denied)" in error
    assert error.count("\n") == 1


def test_a_place_for_runs_that_another_user_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "runtime" / f"elastic-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o777)
    assert main(["report"]) == 2
    assert "can be written by others (mode 777)" in capsys.readouterr().err
