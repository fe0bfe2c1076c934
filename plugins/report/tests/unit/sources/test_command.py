"""`elastic report`: which run it reads, what it writes, and its errors."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_core.cli.main import main
from elastic_report.command import quoted
from elastic_report.ledger.states import LedgerState as S
from run_kit import Node
from sources_kit import Leave, write_node


@pytest.fixture(autouse=True)
def renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the page, the trace and the summary, which have tests of their own."""
    fakes = {
        "page": SimpleNamespace(render=lambda report: f"<html>{report.run.sentence} \ud800</html>"),
        "trace": SimpleNamespace(trace=lambda report: {"traceEvents": [report.run.run_id]}),
        "markdown": SimpleNamespace(markdown=lambda report: f"**{report.run.run_id}**\nsecond line\n"),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, f"elastic_report.{name}", fake)


def trained(run_id: str = "bert-7", *, fails: bool = False, node_id: str = "a", **more: object) -> Node:
    node = Node(node_id, run_id=run_id, **more).spend(S.RENDEZVOUS, 10).join(0, 0, (node_id,))  # type: ignore[arg-type]
    node.spend(S.PRODUCTIVE, 50)
    if not fails:
        return node.over("end").end()
    return node.fail().over("failure").spend(S.DECIDING, 1).end("failed", 1)


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["report", "--json", *arguments]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def run_of(document: dict[str, object]) -> dict[str, object]:
    run = document["run"]
    assert isinstance(run, dict)
    return run


# --- what it writes


def test_the_last_run_becomes_a_page_in_this_folder(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(trained("old"), outcome="succeeded")
    leave(trained("bert/7 x", fails=True), outcome="failed", code=1)
    assert main(["report"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith(
        "Run 'bert/7 x' failed after 1 min 1 s with exit code 1: rank 0 on a raised ValueError: boom"
    )
    assert lines[1].startswith("11 s of 1 min 1 s lost: 10 s in the rendezvous of 1 round")
    assert lines[2] == "report: bert%2F7%20x.html"
    assert Path("bert%2F7%20x.html").read_text().startswith("<html>Run 'bert/7 x' failed")
    assert shown.err == ""


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("bert-7", "bert-7"),
        ("../x", "%2E.%2Fx"),
        (".hidden", "%2Ehidden"),
        ("--json", "%2D-json"),
        ("a b", "a%20b"),
        ("é", "%C3%A9"),
        ("", "run"),
    ],
)
def test_a_run_id_becomes_a_safe_file_name(run_id: str, name: str) -> None:
    assert quoted(run_id) == name


def test_long_ids_fit_a_file_name() -> None:
    assert len(quoted("é" * 1000)) == 150


def test_a_chosen_file_and_stdout(leave: Leave, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    leave(trained(), outcome="succeeded")
    assert main(["report", "-o", str(tmp_path / "night.html"), "bert-7"]) == 0
    assert f"report: {tmp_path}/night.html" in capsys.readouterr().out
    assert (tmp_path / "night.html").exists()
    assert main(["report", "-o", "-", "bert-7"]) == 0
    assert capsys.readouterr().out.startswith("<html>Run 'bert-7' succeeded")
    assert not Path("bert-7.html").exists()


def test_json_markdown_and_trace(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(trained(), outcome="succeeded")
    assert main(["report", "--json", "--trace", "t.json"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert json.loads(shown.out)["run"]["run_id"] == "bert-7"
    assert shown.err == "trace: t.json\n"
    assert json.loads(Path("t.json").read_text()) == {"traceEvents": ["bert-7"]}
    assert main(["report", "--markdown", "-o", "x.html"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "**bert-7**\nsecond line\n"
    assert shown.err.splitlines()[-1] == "report: x.html"
    assert main(["report", "--trace", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"traceEvents": ["bert-7"]}
    assert [path.name for path in sorted(Path().iterdir())] == ["t.json", "x.html"]


@pytest.mark.parametrize("both", [("--json", "--markdown"), ("--json", "-o", "-"), ("-o", "-", "--trace", "-")])
def test_two_outputs_on_stdout_are_a_usage_error(both: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *both]) == 2
    assert "both print on stdout; expected one of them" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_line(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(trained(), outcome="succeeded")
    assert main(["report", "-o", "no/such/folder.html"]) == 2
    assert capsys.readouterr().err == (
        "elastic: error: -o 'no/such/folder.html' can't be written (No such file or directory). Try: -o FILE in "
        "another folder\n"
    )


# --- which run


def test_a_run_by_id_number_directory_and_short_id(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    first = leave(trained("60d6bb6f-73d4-4566-91ee-3363329e7391"), outcome="failed", code=1)
    leave(trained("bert-7"), outcome="failed", code=1)
    for name in ("60d6bb6f-73d4-4566-91ee-3363329e7391", "1", str(first), "60d6bb6f"):
        assert str(run_of(data(capsys, name))["run_id"]).startswith("60d6bb6f")
    assert run_of(data(capsys, "2"))["run_id"] == "bert-7"
    assert run_of(data(capsys, "--run", "bert-7"))["run_id"] == "bert-7"


def test_no_run_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "no run of this user on this machine (directories: '" in capsys.readouterr().err
    assert main(["report", "bert-7"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("elastic: error: no run 'bert-7' of this user on this machine (directories: '")
    assert error.endswith(
        "and no such directory; expected a run id, a number of elastic runs, or a run directory. Try: elastic runs\n"
    )


def test_attempts_since_the_last_success_are_one_report(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    for number, outcome in enumerate(("failed", "succeeded", "failed", "failed")):
        node = trained(fails=outcome == "failed", started_s=1000.0 * number)
        leave(node, outcome=outcome, code=int(outcome == "failed"))
    document = data(capsys, "bert-7")
    assert run_of(document)["attempt_count"] == 2
    assert document["compared_with"] == "run 'bert-7' of 2026-01-01 00:16 UTC"
    nodes = document["nodes"]
    assert isinstance(nodes, list)
    assert [(lane["attempt"], lane["begin_s"]) for lane in nodes] == [(0, 0), (1, 1000)]


def test_the_last_good_run_of_the_script_is_compared(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    good = trained(
        "first", options=(("nproc", "8", "command line"), ("rdzv-id", "first", "")), versions={"torch": "2.12"}
    )
    leave(good, outcome="succeeded", removed=True)
    leave(
        trained(
            "second", options=(("nproc", "4", ""), ("rdzv-id", "second", "")), versions={"torch": "2.13"}, started_s=900
        )
    )
    document = data(capsys, "second")
    assert str(document["compared_with"]).startswith("run 'first' of ")
    assert document["differences"] == [
        {"kind": "option", "name": "nproc", "before": "8", "now": "4"},
        {"kind": "version", "name": "torch", "before": "2.12", "now": "2.13"},
    ]
    assert document["options"] == [["nproc", "4", ""], ["rdzv-id", "second", ""]]


def test_a_run_that_still_runs_is_live(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(Node("a").spend(S.RENDEZVOUS, 10).join(0, 0, ("a",)).alive(S.PRODUCTIVE))
    document = data(capsys)
    assert document["live"] is True
    assert run_of(document)["state"] == "running"


def test_the_ledger_of_a_removed_run_directory_is_found(leave: Leave, capsys: pytest.CaptureFixture[str]) -> None:
    leave(trained(), outcome="succeeded", removed=True)
    document = data(capsys)
    assert run_of(document)["state"] == "succeeded"
    assert document["missing"] == []


# --- collected directories


def test_directories_of_several_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("a", "b")
    for rank, name in enumerate(names):
        node = Node(name, ahead_s=3600.0 * rank).spend(S.RENDEZVOUS, 10).join(0, rank, names).spend(S.PRODUCTIVE, 50)
        write_node(tmp_path / "collected" / name / "bert-7-0a1b", node.over("end").end())
    together = data(capsys, str(tmp_path / "collected"))
    each = data(capsys, *(str(tmp_path / "collected" / name) for name in names))
    assert run_of(together) == run_of(each)
    nodes = together["nodes"]
    assert isinstance(nodes, list)
    assert [(lane["node_id"], lane["begin_s"], lane["inferred"]) for lane in nodes] == [
        ("a", 0, False),
        ("b", 0, False),
    ]
    assert "b was 1 h ahead" in str(together["clocks"])


def test_directories_of_two_runs_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write_node(tmp_path / name, trained(name))
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "the directories are of 2 runs ('one', 'two'); expected one" in capsys.readouterr().err


def test_a_directory_without_a_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "has no run directory with a ledger, a status or an incident in it" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "empty"), "no-such"]) == 2
    assert "has no run directory" in capsys.readouterr().err


def test_both_folders_of_one_agent_are_one_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = trained(fails=True)
    for folder in ("index/1-1", "bert-7-0a1b"):
        write_node(tmp_path / "elastic-1000" / folder, node)
    document = data(capsys, str(tmp_path / "elastic-1000"))
    for what in ("nodes", "incidents"):
        found = document[what]
        assert isinstance(found, list)
        assert len(found) == 1
