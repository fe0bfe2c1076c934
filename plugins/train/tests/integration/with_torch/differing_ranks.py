"""Two ranks that call a Checkpointer differently, which both are to learn; run by `test_checkpoints.py`."""

import logging
import os
import sys
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from elastic_core.api import ConfigError
from elastic_train import Checkpointer, CheckpointError, init_process_group

FOLDER = Path(sys.argv[1])


def raised(kind, call):
    """Return the line that a call ends with, checked to be a kind of error and one line."""
    try:
        call()
    except (ConfigError, CheckpointError) as error:
        found = error
    else:
        raise AssertionError("nothing was raised")
    assert type(found) is kind, repr(found)
    assert "\n" not in str(found), found
    return str(found)


def same(kind, words, first, second):
    """Check that rank 0, which calls the first, and rank 1, which calls the second, raise the same at once."""
    begun_s = time.monotonic()
    line = raised(kind, second if rank else first)
    assert time.monotonic() - begun_s < 20, "one of them has waited"
    lines = [None, None]
    dist.all_gather_object(lines, line)
    assert lines[0] == lines[1], lines
    assert words in line, line


class Odd:
    def state_dict(self):
        raise KeyError("one rank's own")

    def load_state_dict(self, state):
        raise AssertionError


def differ():
    ours = Checkpointer(FOLDER / "ours", timeout="60s")
    same(
        ConfigError,
        "save(step=-1); expected a whole number, 0 at least (rank 1 on ",
        lambda: ours.save({}, step=3),
        lambda: ours.save({}, step=-1),
    )
    same(ConfigError, "load(step='x'); expected", lambda: ours.load(step="x"), ours.load)
    same(ConfigError, "load(list); expected", ours.load, lambda: ours.load([]))
    same(ConfigError, "a state is a dict by name", lambda: ours.save([], step=1), lambda: ours.save({}, step=1))
    same(
        CheckpointError,
        'KeyError: "one rank\'s own" (rank 1 on ',
        lambda: ours.save({"a": 1}, step=1),
        lambda: ours.save({"a": Odd()}, step=1),
    )
    same(
        CheckpointError,
        "ranks differ in what they call: rank 1 is in load(), rank 0 in save(step=3). Try: the same calls",
        lambda: ours.save({}, step=3),
        ours.load,
    )
    same(CheckpointError, "rank 1 is in latest(), rank 0 in load(step=4)", lambda: ours.load(step=4), ours.latest)
    same(
        CheckpointError,
        "rank 1 is in latest(), rank 0 in save(step=3, wait=False)",
        lambda: ours.save({}, step=3, wait=False),
        ours.latest,
    )
    others = Checkpointer(FOLDER / "ours", keep=2 + rank, files="each", timeout="60s")
    same(
        ConfigError,
        "rank 1 has a Checkpointer(keep=3, job='', files='each'), rank 0 one with keep=2, job='', files='each'",
        others.latest,
        others.latest,
    )
    ours.save({"a": 1}, step=4)  # they are in step all the time
    assert ours.load().step == 4
    assert sorted(entry.name for entry in (FOLDER / "ours").iterdir()) == [".claim-00000001", "00000001-step-4"]


def differ_in_shards():
    mesh = init_device_mesh("cpu", (2,))
    shards = Checkpointer(FOLDER / "shards", timeout="60s")
    tensor = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    shards.save({"w": tensor}, step=1)
    same(
        CheckpointError,
        "is sharded, and there is no sharded tensor to read state['w'] into (rank 1 on ",
        lambda: shards.load({"w": tensor}),
        lambda: shards.load({"v": tensor}),
    )
    assert shards.load({"w": tensor}).step == 1


def no_meeting(*args, **options):
    raise AssertionError("it waits again")


def miss(late):
    """Rank 1 comes when rank 0 has stopped waiting."""
    if rank == 1:
        dist.barrier()
    line = raised(CheckpointError, lambda: late.save({"a": 1}, step=5))
    assert f"rank {rank} did not meet the others in save(step=5): " in line, line
    assert "Try: the same calls of a Checkpointer on all ranks" in line, line
    if rank == 0:
        dist.barrier()
    dist.barrier()
    with mock.patch.object(dist, "all_gather_object", no_meeting), mock.patch.object(dist, "new_group", no_meeting):
        line = raised(CheckpointError, late.latest)
    assert f"rank {rank} can't meet the others in latest(), as it did not before: " in line, line


logging.getLogger("elastic_train").setLevel(logging.ERROR)
with init_process_group(timeout="2m", backend="gloo") as joined:
    rank = joined.rank
    differ()
    differ_in_shards()
    miss(Checkpointer(FOLDER / "ours", timeout="1s"))
    met_before = Checkpointer(FOLDER / "ours", timeout="6s")  # within which they meet
    assert met_before.latest() == 4
    miss(met_before)
os.write(1, b"done\n")
os._exit(0)  # torch's meshes keep their groups, whose threads may abort an interpreter that ends
