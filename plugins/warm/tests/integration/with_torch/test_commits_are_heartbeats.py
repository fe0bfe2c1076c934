"""Commits as heartbeats: a script that only commits is judged by its steps, before and after a warm round."""

import json
import re
import sys

import pytest

from patience import patience

TRAIN = """
import os, pathlib, time
import torch
import elastic_warm as warm

state = warm.State(total=torch.zeros(2), step=0)
rank = int(os.environ["RANK"])


def wait_for_ever():
    while True:
        time.sleep(0.01)


@warm.rounds
def train():
    state.sync()
    first = os.environ["ELASTIC_ROUND"] == "0"
    print(f"round {os.environ['ELASTIC_ROUND']} of rank {rank}: pid {os.getpid()}", flush=True)
    while state.step < 6:
        if first and state.step == 3:
            pathlib.Path(f"{rank}-is-at-3").touch()
            while not pathlib.Path(f"{1 - rank}-is-at-3").exists():
                time.sleep(0.05)
                state.commit()  # alive, at the same step
            if rank == 1:
                wait_for_ever()
        state.total += 1
        state.step += 1
        state.commit()
        while first and state.step == 5:
            time.sleep(0.05)
            state.commit()

train()
"""


@pytest.mark.timeout(200)
def test_a_rank_that_commits_no_more_is_named_with_its_step(elastic, script, tmp_path):
    agent = elastic(
        "--nproc-per-node", "2", "--omp-threads", "1", "--max-restarts", "1", "--hang-timeout", f"{patience(3):g}",
        "--run-dir", tmp_path / "run", script(TRAIN), cwd=tmp_path,
        env={"PYTHON_EXEC": sys.executable},  # a process that is forked behind another one can't be kept
    )  # fmt: skip
    assert agent.wait(150) == 0, agent.err
    assert re.search(r"rank 1 has not reached step 5 \(at 3 for \d.*?, in train\.py:\d+\)", agent.err), agent.err
    assert re.search(r"rank 1 failed: .*; restart 1 of 1 now", agent.err), agent.err
    pids = dict(re.findall(r"(round \d of rank \d): pid (\d+)", agent.out))
    for rank in (0, 1):  # a wait in Python is left, so the one that hung is kept as well
        assert pids[f"round 0 of rank {rank}"] == pids[f"round 1 of rank {rank}"], agent.err
    assert json.loads((tmp_path / "run" / "incident.json").read_text())["progress"] == 5
