"""What is left of an agent that was killed: its events up to the last second, and what the other node has recorded."""

import json
import os
import signal
import time

from elastic_ops.status.document import read_status
from elastic_ops.status.files import JOURNAL_FILE
from patience import patience
from redis_servers import redis_server
from support import wait_for

__all__ = ["redis_server"]

WAITS = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)
"""
TICKS = """
from elastic_core.api import AgentHook, Power

class Ticks(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})
    def on_agent_started(self, event):
        self.run.call_every(0.05, lambda: self.run.record("tick", {}))
"""


def journal(folder):
    """Return the whole lines of a journal, and what is behind the last of them."""
    *lines, rest = (folder / JOURNAL_FILE).read_text().split("\n")
    return [json.loads(line) for line in lines], rest


def test_events_up_to_the_last_second_are_there_and_the_other_node_says_when_it_was_lost(
    elastic, script, tmp_path, redis_server
):
    site = tmp_path / "site"
    meta = site / "ticks-1.0.dist-info"
    meta.mkdir(parents=True)
    (site / "ticks.py").write_text(TICKS)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: ticks\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[elastic_core.hooks]\nticks = ticks:Ticks\n")
    text, folders = script(WAITS), {name: tmp_path / f"run-{name}" for name in ("a", "b")}
    a, b = (
        elastic(
            "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "both", "--nnodes", "1:2",
            "--rdzv-conf", f"last_call_timeout=0.5,lease_ttl={patience(3):g}", "--node-id", name,
            # The journal leaves out published fields; without the ledger, no hook publishes any here.
            "--run-dir", folder, "-p", "no:ledger", text, tmp_path / "over", env={"PYTHONPATH": str(site)},
        )
        for name, folder in folders.items()
    )  # fmt: skip
    for folder in folders.values():
        wait_for((folder / "status.json").exists, what="both files: the journal is written first")
        wait_for(lambda folder=folder: (at := read_status(folder / "status.json").round) and at.node_count == 2)
    wait_for(lambda: sum(line["name"] == "tick" for line in journal(folders["b"])[0]) > 20, what="events")
    killed_ns = time.time_ns()
    os.kill(b.pid, signal.SIGKILL)
    assert b.wait() == -signal.SIGKILL  # what it was writing is written
    events, rest = journal(folders["b"])
    assert rest == "", "a line is written whole"
    assert events[-1]["at_ns"] > killed_ns - patience(1) * 1e9
    numbers = [event["number"] for event in events]
    assert numbers == [*range(1, len(numbers) + 1)]

    def lost():
        return [past for past in read_status(folders["a"] / "status.json").rounds if past.reason.startswith("b lost")]

    (past,) = wait_for(lost, what="the end of the round of both")
    assert past.ended_by == "membership"
    assert killed_ns < past.ended_ns < time.time_ns()
    (ended,) = [
        event for event in journal(folders["a"])[0] if (event["values"].get("change") or {}).get("lost") == ["b"]
    ][:1]
    assert abs(ended["at_ns"] - past.ended_ns) < patience(1) * 1e9
    (tmp_path / "over").touch()
    assert a.wait() == 0, a.err
