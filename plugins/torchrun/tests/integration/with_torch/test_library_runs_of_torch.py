"""Agents of the library with handlers of torch's and of ours, by torch's names."""

import subprocess
import sys

HANDLERS = """
import os, signal, subprocess
import torch.distributed.elastic.rendezvous.registry as theirs
from torch.distributed.elastic.rendezvous import RendezvousParameters as TheirParameters
from elastic_core.compat.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler

def spec(handler, size, **options):
    args = ("-c", "echo $TORCHELASTIC_RUN_ID $RANK $WORLD_SIZE")
    return WorkerSpec("t", size, handler, entrypoint="sh", args=args, **options)

before = dict(os.environ)
handler = theirs.get_rendezvous_handler(TheirParameters("c10d", "localhost:0", "theirs", 1, 1))
agent = LocalElasticAgent(spec(handler, 2, master_addr="here", master_port=29511))
print(agent.run().state.name, flush=True)
group = agent.get_worker_group()
assert (group.master_addr, group.master_port) == ("here", 29511), (group.master_addr, group.master_port)
assert dict(os.environ) == before

handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "ours", 1, 1))
print(LocalElasticAgent(spec(handler, 2)).run().state.name, flush=True)

class Mine(SimpleElasticAgent):
    def _start_workers(self, worker_group):
        worker = worker_group.workers[0]
        command = ["test", str(worker.global_rank), "=", "0"]
        self.process = subprocess.Popen(command)
        return {0: self.process.pid}

    def _stop_workers(self, worker_group):
        self.process.kill()

    def _monitor_workers(self, worker_group):
        code = self.process.poll()
        if code is None:
            return RunResult(state=WorkerState.HEALTHY)
        return RunResult(state=WorkerState.SUCCEEDED if code == 0 else WorkerState.FAILED, return_values={0: None})

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
        self._stop_workers(None)

handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "simple", 1, 1))
agent = Mine(spec(handler, 1))
state = agent.run().state.name
worker = agent.get_worker_group().workers[0]
print(state, handler.get_run_id(), worker.global_rank, worker.world_size, agent.get_worker_group().store is None)
handler.shutdown()
"""


def test_handlers_of_torchs_and_of_ours_by_torchs_names(script):
    out = subprocess.run(
        [sys.executable, str(script(HANDLERS))], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    lines = out.stdout.splitlines()
    assert sorted(lines[:3]) == ["SUCCEEDED", "theirs 0 2", "theirs 1 2"]
    assert sorted(lines[3:6]) == ["SUCCEEDED", "ours 0 2", "ours 1 2"]
    assert lines[6:] == ["SUCCEEDED simple 0 1 False"]
