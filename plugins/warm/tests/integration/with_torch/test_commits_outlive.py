"""Commits that outlive their worker: all ranks of a node are killed, and the next ones continue from memory."""

import re
from pathlib import Path

import pytest

TRAIN = """
import os, pathlib, signal, time
import torch, torch.distributed as dist
import elastic_warm as warm

state = warm.State(total=torch.zeros(1000), step=0)

@warm.rounds
def train(state):
    dist.init_process_group("gloo")
    state.sync()
    os.write(1, f"rank {dist.get_rank()} begins at {state.step}: {state.total[0].item():g}\\n".encode())
    while state.step < 8:
        state.total += 1
        state.step += 1
        state.commit()
        dist.barrier()
        if state.step == 5 and os.environ["ELASTIC_ROUND"] == "0":
            with warm.protected():  # and none is asked to leave, or loses a peer, before it ends
                pathlib.Path(f"{dist.get_rank()}-is-at-5").touch()
                while not pathlib.Path(f"{1 - dist.get_rank()}-is-at-5").exists():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)

train(state)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("options", "first"), [(("--warm-memory", "16"), "5: 5"), ((), "0: 0")], ids=["kept", "without"]
)
def test_the_next_workers_of_a_node_continue_from_its_memory(elastic, script, options, first):
    agent = elastic(
        "--nproc-per-node", "2", "--omp-threads", "1", "--max-restarts", "2", "--restart-backoff", "0", *options,
        script(TRAIN),
    )  # fmt: skip
    assert agent.wait(150) == 0, agent.err
    begun = [line.partition(" begins at ")[2] for line in agent.out.splitlines() if "begins" in line]
    assert begun[:2] == ["0: 0"] * 2
    assert set(begun[2:]) == {first}
    assert not [path for path in Path("/dev/shm").glob("elastic-warm-*/*") if re.search(rf"-{agent.pid}-", path.name)]
