"""Process groups of real workers, and of a process that nobody has launched."""

import os
import subprocess
import sys

WORKERS = """
import os
import weakref
import torch
import torch.distributed as dist
from elastic_train import Checkpointer, init_process_group

with init_process_group(timeout="45s") as group:
    total = torch.tensor([group.rank + 1.0], device=group.device)
    dist.all_reduce(total)
    assert total.item() == 3 and dist.get_world_size() == group.world_size == 2
    limit = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout
    assert limit.total_seconds() == 45, limit
    checkpoints = Checkpointer("checkpoints")
    checkpoints.save({"total": total}, step=1)
    groups = [weakref.ref(dist.group.WORLD), weakref.ref(checkpoints._ranks().group)]
    try:
        init_process_group()
    except ValueError as error:
        assert str(error).startswith("there is a process group already. Try:"), error
    else:
        raise AssertionError("two groups")
assert not dist.is_initialized()
assert [group() for group in groups] == [None, None]  # their threads have ended: else one could abort the interpreter
os.write(1, f"rank {group.rank} on {group.device}\\n".encode())
"""

ALONE = """
import torch.distributed as dist
from elastic_train import init_process_group

group = init_process_group()
dist.barrier()
print(group.rank, group.local_rank, group.world_size, group.device, dist.get_backend())
group.destroy()
group.destroy()
"""


def test_workers_meet_by_their_variables(elastic, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    agent = elastic("--nproc-per-node", 2, "--omp-threads", 1, script)
    assert agent.wait() == 0, agent.err
    assert sorted(agent.out.splitlines()) == ["rank 0 on cpu", "rank 1 on cpu"]


def test_bare_python_is_a_group_of_its_own():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", ALONE], env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 0 1 cpu gloo\n"), done.stderr
