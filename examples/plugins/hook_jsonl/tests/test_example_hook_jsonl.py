"""The example hook writes one JSON line a moment."""

import json

from elastic_core.api import AgentStarted, AgentStopped, HookSettings, Round, WorkersStarted
from elastic_example_hook_jsonl import FILE_NAME, MomentLog

ROUND = Round(
    index=0,
    token=1,
    nonce="",
    node_rank=0,
    node_count=1,
    local_world_size=2,
    base_rank=0,
    world_size=2,
    role="default",
    role_base_rank=0,
    role_world_size=2,
    master_addr="localhost",
    master_port=1234,
)


def test_moments_become_lines_in_the_run_directory(tmp_path):
    hook = MomentLog(HookSettings(name="jsonl"))
    hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir=str(tmp_path), pid=7))
    hook.on_moment(WorkersStarted(round=ROUND, pids=(8, 9)))
    hook.on_moment(AgentStopped(exit_code=0, reason="done"))
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [line["moment"] for line in lines] == ["AgentStarted", "WorkersStarted", "AgentStopped"]
    assert lines[1]["pids"] == [8, 9]
    assert lines[1]["round"]["world_size"] == 2
    assert all(line["at_ns"] > 0 for line in lines)


def test_nothing_is_written_before_the_agent_has_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MomentLog(HookSettings(name="jsonl")).on_moment(AgentStopped(exit_code=1, reason="never began"))
    assert not list(tmp_path.iterdir())
