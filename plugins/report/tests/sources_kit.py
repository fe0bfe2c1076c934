"""A machine with runs, in a folder of the test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core.api import encode_json
from elastic_core.api.tools import AgentIdentity, replace_file
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.run_records import RunEntry
from elastic_ops.status.document import STATUS_FILE, AgentStatus, EndStatus
from run_kit import Node

Leave = Callable[..., Path]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(runtime))
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def write_node(folder: Path, node: Node) -> None:
    """Write the files of a node's agent into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = node.ledger()
    lines = [encode_json(ledger.begin), *map(encode_json, ledger.lines)]
    (folder / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    for number, found in enumerate(node.incidents):
        (folder / f"incident-{number}.json").write_bytes(encode_json(found.incident))
    if node.incidents:
        (folder / "incident.json").write_bytes(encode_json(node.incidents[-1].incident))


@pytest.fixture
def leave() -> Leave:
    """Leave the record of an agent and its run directory, whose path is returned."""
    kept = []

    def leave_run(
        node: Node, *, outcome: str = "", code: int = 0, script: str = "train.py", removed: bool = False
    ) -> Path:
        directory = RunDirectory(None, node.run_id)
        kept.append(directory)
        entry = RunEntry.begin(run_id=node.run_id, node_id=node.node_id, script=script, run_dir=str(directory.path))
        folder = Path(entry.make_files()) if removed else directory.path
        write_node(folder, node)
        status = AgentStatus(
            run_id=node.run_id,
            node_id=node.node_id,
            agent=AgentIdentity.own(host=node.host, started_ns=node.wall_ns(node.started_s)),
            backend="redis",
            state="ended" if outcome else "running",
            end=EndStatus(outcome=outcome, exit_code=code, reason="") if outcome else None,
        )
        replace_file(directory.path / STATUS_FILE, encode_json(status))
        if outcome:
            entry.end(outcome=outcome, exit_code=code, result="ValueError: boom" if code else "")
        if removed:
            directory.finish(success=True)
        return directory.path

    return leave_run
