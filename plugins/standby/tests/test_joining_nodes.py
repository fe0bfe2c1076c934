"""A node that joins a run has done its imports before it asks for a place: no worker of others waits for them."""

import pytest

from redis_servers import redis_server
from support import processes_with, wait_for

__all__ = ["redis_server"]

SLOW = """
import os, select, time
with open(os.environ["FOLDER"] + "/importing", "w"):
    pass
while not os.path.exists(os.environ["FOLDER"] + "/go"):
    select.select([], [], [], 0.01)
with open(os.environ["FOLDER"] + "/imported", "w") as file:
    file.write(repr(time.monotonic()))
"""
HOOK = """
import os
from elastic_core.api import AgentHook, Power

class Notes(AgentHook):
    api_version = 1
    powers = frozenset({Power.FEED})
    def on_run_event(self, event):
        if event.name in ("agent_started", "round_joining"):
            with open(os.environ["FOLDER"] + "/" + event.name, "a") as file:
                file.write(f"{event.at_s!r}\\n")
"""
SCRIPT = """
import json, os, select
print(json.dumps({"world": os.environ["WORLD_SIZE"], "pid": os.getpid()}), flush=True)
while not os.path.exists(os.environ["FOLDER"] + "/finish"):
    select.select([], [], [], 0.02)
"""


@pytest.mark.parametrize("how", ["fork", "auto"])
def test_a_newcomer_asks_for_a_place_when_it_has_done_its_imports(elastic, script, tmp_path, redis_server, how):
    meta = tmp_path / "notes-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[elastic_core.hooks]\nnotes = notes:Notes\n")
    (tmp_path / "notes.py").write_text(HOOK)
    (tmp_path / "slow_module.py").write_text(SLOW)
    text = script(SCRIPT)

    def node(name, *options):
        folder = tmp_path / name
        folder.mkdir()
        return elastic(
            "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "both", "--nnodes", "1:2",
            "--rdzv-conf", "last_call_timeout=0.2", "--node-id", name, "--standby", "--standby-start", how, *options,
            text, env={"FOLDER": str(folder), "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip

    a = node("a", "--standby-imports", "json")
    wait_for(lambda: a.lines(), what=a.err)
    b = node("b", "--standby-imports", "slow_module")
    wait_for((tmp_path / "b" / "importing").exists, what=b.err)
    wait_for((tmp_path / "b" / "agent_started").exists, what=b.err)  # else it would ask right after that
    (tmp_path / "b" / "go").write_text("")
    wait_for(lambda: {line["world"] for line in b.lines()} == {"2"}, what=b.err)
    for name in ("a", "b"):
        (tmp_path / name / "finish").write_text("")
    assert (a.wait(), b.wait()) == (0, 0), a.err + b.err
    joining_s = float((tmp_path / "b" / "round_joining").read_text().split()[0])
    assert joining_s >= float((tmp_path / "b" / "imported").read_text())


def test_a_stop_while_the_imports_are_awaited_ends_the_agent(elastic, script, tmp_path, redis_server):
    (tmp_path / "slow_module.py").write_text(SLOW)
    agent = elastic(
        "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "one", "--nnodes", "1:2",
        "--standby", "--standby-imports", "slow_module", script(SCRIPT),
        env={"FOLDER": str(tmp_path), "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    wait_for((tmp_path / "importing").exists, what=agent.err)
    agent.signal(15)
    assert agent.wait() == 143, agent.err
    wait_for(lambda: not processes_with(f"FOLDER={tmp_path}"), what=agent.err)
