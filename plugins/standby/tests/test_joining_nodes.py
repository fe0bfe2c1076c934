"""A node that joins a run has done its imports before it asks for a place: no worker of others waits for them."""

import os

import pytest

from redis_servers import redis_server
from support import wait_for

__all__ = ["redis_server"]

SLOW = """
import os, select
with open(os.environ["FOLDER"] + "/importing", "w"):
    pass
while not os.path.exists(os.environ["FOLDER"] + "/go"):
    select.select([], [], [], 0.01)
"""
SCRIPT = """
import json, os, select
print(json.dumps({"world": os.environ["WORLD_SIZE"], "pid": os.getpid()}), flush=True)
while not os.path.exists(os.environ["FOLDER"] + "/finish"):
    select.select([], [], [], 0.02)
"""


@pytest.mark.parametrize("how", ["fork", "auto"])
def test_workers_of_other_nodes_run_on_while_a_newcomer_imports(elastic, script, tmp_path, redis_server, how):
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
    # A node that has joined is seen within a renewal; this one has not even asked.
    assert {line["world"] for line in a.lines()} == {"1"}
    os.kill(a.lines()[0]["pid"], 0)
    (tmp_path / "b" / "go").write_text("")
    wait_for(lambda: {line["world"] for line in b.lines()} == {"2"}, what=b.err)
    for name in ("a", "b"):
        (tmp_path / name / "finish").write_text("")
    assert (a.wait(), b.wait()) == (0, 0), a.err + b.err


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
    wait_for(lambda: not agent.survivors())
