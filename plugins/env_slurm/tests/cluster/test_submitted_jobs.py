"""Jobs of `elastic slurm submit` under a real Slurm: they end as their runs do, and follow each other."""

import os
import signal

import pytest

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(400)]  # a wait says itself what it waited for


def test_a_job_ends_well_whose_run_has_survived_a_killed_agent(submit_by_us):
    (job,) = submit_by_us("srun -K0 elastic run --nnodes 1:2 train.py")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    os.kill(job.agents()[max(job.agents())], signal.SIGKILL)
    job.wait_for_starts(3)
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert not (job.folder / ".elastic-slurm").exists()


def test_a_chain_goes_on_under_one_name_and_ends_with_its_run(submit_by_us):
    first, second, third = submit_by_us("srun elastic run train.py", "--name", "chain", "--jobs", "3")
    first.wait_for_starts(2)
    (first.folder / "crash.1").touch()
    assert first.end() == "FAILED 1:0"
    second.wait_for_starts(4)
    second.go()
    assert second.end() == "COMPLETED 0:0"
    assert third.end().startswith("CANCELLED")
    assert len(third.starts) == 4
