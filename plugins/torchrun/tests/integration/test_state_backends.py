"""Runs of several nodes on a backend that only has torch's `get_state` and `set_state`, registered in code."""

import json
import signal
import sys

import pytest

from patience import patience
from support import wait_for
from torch_kit import WORKER, last_round

MAIN = """
import base64, fcntl, json, os, sys
from elastic_core.compat.elastic.rendezvous import rendezvous_handler_registry
from elastic_core.compat.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, create_handler

class OneFile(RendezvousBackend):
    name = "one-file"

    def __init__(self, path):
        self.path = path

    def get_state(self):
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return self._read(file)

    def set_state(self, state, token=None):
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = self._read(file)
            if (found[1] if found else None) != token:
                return (*found, False) if found else None
            file.truncate(0)
            json.dump([base64.b64encode(state).decode(), (token or 0) + 1], file)
            return state, (token or 0) + 1, True

    def _read(self, file):
        file.seek(0)
        text = file.read()
        if not text:
            return None
        state, token = json.loads(text)
        return base64.b64decode(state), token

rendezvous_handler_registry.register("one-file", lambda params: create_handler(None, OneFile(params.endpoint), params))
assert "torch" not in sys.modules
from elastic_core.cli.main import elastic_process
sys.argv[0] = "elastic"
sys.argv.insert(1, "run")
sys.exit(elastic_process())
"""


@pytest.fixture
def agent(monkeypatch, elastic, script, tmp_path):
    """Start agents of one run."""
    main = tmp_path / "main.py"
    main.write_text(MAIN)
    monkeypatch.setattr("support.ELASTIC", [sys.executable, str(main)])
    path = script(WORKER)

    def start(*args, nnodes):
        options = ["--rdzv-backend", "one-file", "--rdzv-endpoint", tmp_path / "state", "--rdzv-id", "one"]
        options += ["--rdzv-conf", f"last_call_timeout=1,lease_ttl={patience(2):g}", "--nnodes", nnodes]
        return elastic(*options, *args, path, tmp_path)

    return start


def test_a_node_joins_one_is_lost_and_a_crash_restarts_both(agent, tmp_path):
    agents = [agent("--max-restarts", "1", "--node-id", "a", nnodes="1:2")]
    wait_for(lambda: last_round(agents, 1), within_s=20)
    agents.append(agent("--max-restarts", "1", "--node-id", "b", nnodes="1:2"))
    wait_for(lambda: last_round(agents, 2), within_s=20)
    (tmp_path / "crash1").touch()
    wait_for(lambda: {line["TORCHELASTIC_RESTART_COUNT"] for line in last_round(agents, 2) or ()} == {"1"}, within_s=20)
    agents[1].signal(signal.SIGKILL)
    wait_for(lambda: last_round(agents[:1], 1), within_s=20)
    agents[1] = agent("--max-restarts", "1", "--node-id", "c", nnodes="1:2")
    wait_for(lambda: last_round(agents, 2), within_s=20)
    (tmp_path / "finish").touch()
    assert [each.wait(20) for each in agents] == [0, 0], agents[0].err + agents[1].err
    state = (tmp_path / "state").read_text()
    assert json.loads(state)
