"""Ranks that wait in collectives of torch, on gloo: which rank is named, with which evidence, on one or two nodes."""

import json
import re
from pathlib import Path

import pytest

from patience import patience

HANG_S = f"{patience(3):g}"

THREE = """
import os, time
import torch, torch.distributed as dist

def load_batch():
    time.sleep(600)  # load

def save():
    time.sleep(600)  # save

dist.init_process_group("gloo")
rank, round_ = dist.get_rank(), int(os.environ["ELASTIC_ROUND"])
pair = dist.new_group([1, 2], group_desc="pair")
ones = torch.ones(10)
for step in range(3):
    dist.all_reduce(ones)
print("begun", flush=True)
if round_ == 0 and rank == 1:
    load_batch()
if round_ == 1:
    if rank == 0:
        time.sleep(600)  # it has no part in the group, and none waits for it
    if rank == 2:
        save()
    dist.all_reduce(ones, group=pair)
dist.all_reduce(ones)
"""


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


@pytest.mark.timeout(400)
def test_rank_that_is_missing_in_a_collective_is_named_with_its_place_and_the_recorder_is_kept(
    elastic, script, tmp_path
):
    run_dir = tmp_path / "run"
    options = ("--nproc-per-node", "3", "--omp-threads", "1", "--max-restarts", "1", "--restart-backoff", "0")
    agent = elastic(*options, "--hang-timeout", HANG_S, "--run-dir", run_dir, script(THREE))
    assert agent.wait(300) == 1, agent.err
    first, second = (json.loads((run_dir / f"incident-{number}.json").read_text()) for number in range(2))

    load = f"train.py:{line_of(THREE, '# load')}"
    named = r"rank 1 on \S+ has not entered all_reduce #\d+ of group default_pg; 2 ranks wait for it; it is in "
    assert re.match(named + load, first["summary"]), first["summary"]
    assert re.search(rf"elastic: {named}{load}, silent for .*; stacks: {run_dir}/hang/round_0_1\n", agent.err), (
        agent.err
    )
    assert first["first"]["exit"]["global_rank"] == 1
    assert first["first"]["error"]["frames"][-1][2] == "load_batch"
    hang = first["hang"]
    assert [(each["global_rank"], each["blamed"]) for each in hang["ranks"]] == [(1, True), (0, False), (2, False)]
    assert (hang["attribution"]["waiting"], hang["evidence"]) == ([0, 2], ["recorder", "stacks"])
    kept = Path(hang["stacks"])
    assert hang["recorder"] == str(kept / "recorder")
    assert sorted(path.name for path in Path(hang["recorder"]).iterdir()) == ["rank_0", "rank_1", "rank_2"]
    assert json.loads((kept / "conclusion.json").read_text())["attribution"]["culprits"] == [1]

    assert second["first"]["exit"]["global_rank"] == 2
    named = r"rank 2 on \S+ has not entered all_reduce #1 of group pair; rank 1 waits for it; it is in train.py:"
    assert re.match(f"{named}{line_of(THREE, '# save')}", second["summary"]), second["summary"]


TWO = """
import json, os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)
dist.all_reduce(ones)
print(json.dumps({"rank": rank, "node": os.environ["ELASTIC_NODE_ID"]}), flush=True)
if os.environ["ELASTIC_NODE_ID"] == "b":
    time.sleep(600)  # stuck
dist.all_reduce(ones)
"""


@pytest.mark.timeout(400)
def test_node_whose_rank_waits_names_the_rank_of_the_other_node_which_reports_it(redis_run):
    redis_run.script.write_text(TWO)
    options = ("--nproc-per-node", "1", "--omp-threads", "1", "--hang-timeout", HANG_S)
    nodes = a, b = [redis_run.node(name, "2", *options) for name in ("a", "b")]
    rank = b.said(within_s=120)["rank"]
    assert {node.agent.wait(120) for node in nodes} == {1}
    named = (
        rf"rank {rank} on b has not entered all_reduce #2 of group default_pg; rank {1 - rank} waits for it; it is in "
    )
    place = f"train.py:{line_of(TWO, '# stuck')}"
    for node in nodes:
        assert re.search(rf"elastic: {named}{place}.*; stacks: ", node.agent.err), node.agent.err
    incident = b.agent.incident()
    assert re.match(named + place, incident["summary"])
    assert incident["reported_by"] == "watch"
    assert incident["hang"]["attribution"]["nodes"] == ["b"]
    assert "hook watch" in b.agent.err
    assert f" failed: rank {rank} on b (" in a.agent.err


ASKED = """
import datetime, os, threading, time
import torch.distributed as dist

rank = int(os.environ["RANK"])
print("begun", flush=True)
dist.init_process_group("gloo")
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

def monitor():
    # As the monitor of NCCL does, once a second in each rank.
    while True:
        store.check(["failed"])
        time.sleep(0.05)

threading.Thread(target=monitor, daemon=True).start()
if rank == 1:
    time.sleep(600)  # load
dist.barrier()
"""


@pytest.mark.timeout(200)
def test_requests_to_the_store_of_rank_0_are_no_progress(elastic, script, tmp_path):
    run_dir = tmp_path / "run"
    agent = elastic(
        "--nproc-per-node", "2", "--omp-threads", "1", "--hang-timeout", HANG_S, "--run-dir", run_dir, script(ASKED)
    )  # fmt: skip
    assert agent.wait(150) == 1, agent.err
    summary = json.loads((run_dir / "incident.json").read_text())["summary"]
    assert re.match(r"rank 1 on \S+ has not entered ", summary), summary
