"""A node that is lost, under a real Slurm: last of all, for Slurm 22.05 keeps cores of it in its books as used."""

import os
import signal
from contextlib import suppress

import pytest

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(400)]  # a wait says itself what it waited for


def test_the_others_train_on_without_a_lost_node(submit, cluster):
    job = submit("srun -K0 --no-kill elastic run --nnodes 1:2 train.py", "--no-kill")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    agents = job.agents()
    other = max(agents)
    cluster.call("scontrol", "update", f"nodename={other}", "state=down", "reason=test")
    with suppress(ProcessLookupError):  # Slurm was faster
        os.kill(agents[other], signal.SIGKILL)
    job.wait_for_starts(3)
    assert job.starts[2].startswith("rank 0 of 1, attempt 0, from ")
    job.go()
    job.end()
    assert f"round 0 is over: {other} lost; 1 node with 1 worker goes on" in job.out
