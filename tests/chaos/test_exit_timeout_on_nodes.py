"""A worker that has failed and does not end stops the other nodes, too, and is named by all of them."""

import re

RAISES = """
import json, os, pathlib, threading, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
says = dict(node=env["ELASTIC_NODE_ID"], world=int(env["WORLD_SIZE"]), restarts=int(env["TORCHELASTIC_RESTART_COUNT"]))
os.write(1, (json.dumps(says) + os.linesep).encode())
while not (shared / "raise").exists():
    time.sleep(0.01)
if says["node"] == "b" and not says["restarts"]:
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("label 11 is not a digit")
while not (shared / "finish").exists():
    time.sleep(0.01)
"""


def test_failure_that_does_not_end_its_worker_restarts_all_nodes_and_is_named(redis_run):
    redis_run.script.write_text(RAISES)
    a, b = (redis_run.node(name, "2", "--max-restarts", "1", "--exit-timeout", "0.5") for name in "ab")
    for node in (a, b):
        node.said(world=2)
    (redis_run.shared / "raise").touch()
    for node in (a, b):
        node.said(world=2, restarts=1)
    told = r"failed on b \(.+\): ValueError: label 11 is not a digit \(\w+\.py:\d+\); restart 1 of 1 now"
    assert re.search(told, a.agent.err), a.agent.err
    assert "has not ended 0.5 s after its exception" in b.agent.err
    assert "failed: ValueError: label 11 is not a digit" in b.agent.err
    redis_run.finish()
    assert [node.agent.wait(15) for node in (a, b)] == [0, 0]
