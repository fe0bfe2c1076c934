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


def test_a_submitted_script_has_the_signal_for_its_shell_and_passes_it_on(submit_by_us, cluster):
    script = """trap 'echo trapped; scancel --signal=USR1 $SLURM_JOB_ID.0' USR1
srun elastic run --preemption-signal USR1 train.py & wait; wait"""
    (job,) = submit_by_us(script, "--sbatch=--time=10", "--sbatch=--signal=B:USR1@60")
    job.wait_for_starts(2)
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_for("is soon out of time: Slurm is asked to begin it again")
    job.begin_again()
    job.wait_for_starts(4)
    assert sum(", attempt 1, " in line for line in job.starts) == 2
    assert job.out.count("trapped") == 1
    assert job.said()["JobName"] == "train.sbatch"
    job.go()
    assert job.end() == "COMPLETED 0:0"


def test_a_signal_for_all_of_a_job_reaches_a_submitted_script_once(submit_by_us, cluster):
    (job,) = submit_by_us("trap 'echo trapped; got=1' USR1; echo ready; until [ $got ]; do sleep 0.1; done; exit 5")
    job.wait_for("ready")
    cluster.call("scancel", "--full", "--signal=USR1", job.number)
    assert job.end() == "FAILED 5:0"
    assert job.out.count("trapped") == 1


def test_a_preempted_job_gives_its_nodes_back_when_all_have_saved(submit_by_us, submit):
    (job,) = submit_by_us("srun elastic run train.py", "--sbatch=--partition=patient", "--sbatch=--nodes=4")
    job.wait_for_starts(4)
    urgent = submit("true", "--partition=urgent", nodes=4, name="urgent")
    job.wait_for("was preempted: this agent stays until Slurm ends it and begins it again")
    assert urgent.end() == "COMPLETED 0:0"  # though the GraceTime is 600 s
    job.begin_again()
    job.wait_for_starts(8)
    assert sum(", attempt 1, " in line for line in job.starts) == 4
    job.go()
    assert job.end() == "COMPLETED 0:0"
