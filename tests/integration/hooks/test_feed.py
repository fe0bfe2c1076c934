"""The feed in a real run: hooks get its steps, its moments, what its store is asked, and what other hooks add."""

import json

import pytest

from redis_servers import redis_server

__all__ = ["redis_server"]

HOOKS = """
from elastic_core.api import AgentHook, Power, encode_json

class Writes(AgentHook):
    api_version = 1
    powers = frozenset({Power.FEED, Power.RUN})

    def on_agent_started(self, event):
        self.run.keep_run_dir("its feed was asked for")

    def on_run_event(self, event):
        with open(self.settings.run_dir + "/feed.jsonl", "ab") as file:
            file.write(encode_json(event) + b"\\n")

class Adds(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})

    def on_workers_started(self, event):
        self.run.publish({"lost": 0, "driver": "550"})
        self.run.record("temperature", {"celsius": 41})
        open(self.settings.run_dir + "/added", "w").close()
"""
ENTRY_POINTS = """
[elastic_core.hooks]
writes = my_feed:Writes
adds = my_feed:Adds
"""


@pytest.fixture
def installed(tmp_path):
    meta = tmp_path / "site" / "my_feed-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta.parent / "my_feed.py").write_text(HOOKS)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: my-feed\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": str(tmp_path / "site")}


def feed_of(agent, kept):
    assert agent.wait() == 0, agent.err
    return [json.loads(line) for line in (kept / "feed.jsonl").read_text().splitlines()]


def test_a_hook_gets_the_feed_of_a_run(elastic, script, installed, tmp_path):
    kept = tmp_path / "kept"
    # The worker outlasts what the hooks are told of its start.
    text = f"import os, time\nwhile not os.path.exists({str(kept / 'added')!r}): time.sleep(0.01)"
    events = feed_of(elastic("--run-dir", kept, script(text), env=installed), kept)
    names = [event["name"] for event in events]
    assert (names[0], names[-1]) == ("agent_started", "feed_closed")
    steps = [event["values"] for event in events if event["name"] == "step"]
    assert [step["event"] for step in steps][:3] == ["StartRequested", "JoinAllowed", "RoundFormed"]
    assert [step["state"] for step in steps if step["entered"]][-1] == "ended"
    phases = [phase["name"] for step in steps for phase in step["phases"]]
    assert phases[:3] == ["rendezvous", "start", "initialize"]
    for name in ("round_joining", "ranks_assigned", "round_joined", "workers_started", "worker_ended", "agent_stopped"):
        assert names.count(name) == 1, name
    (added,) = [event for event in events if event["source"] == "adds"]
    assert (added["name"], added["values"], added["source"]) == ("temperature", {"celsius": 41}, "adds")
    published = [event["values"] for event in events if event["name"] == "fields_published"]
    (fields,) = [values["fields"] for values in published if values["hook"] == "adds"]
    assert fields == {"lost": 0, "driver": "550"}
    times = [event["at_s"] for event in events]
    assert times == sorted(times)


def test_it_has_the_calls_to_the_store(elastic, script, installed, tmp_path, redis_server):
    kept = tmp_path / "kept"
    agent = elastic(
        "--run-dir", kept, "--nnodes", "1:2", "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint,
        "--rdzv-conf", "last_call_timeout=0.1", script(""), env=installed,
    )  # fmt: skip
    calls = [event["values"] for event in feed_of(agent, kept) if event["name"] == "store_call"]
    assert {"connect", "enlist", "swap"} <= {call["call"] for call in calls}
    assert all(call["took_s"] > 0 for call in calls)
    assert not [call for call in calls if call["failed"]]
