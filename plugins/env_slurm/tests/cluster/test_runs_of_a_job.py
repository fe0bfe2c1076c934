"""Runs under a real Slurm: plain, a crash, a killed agent, a cancelled job."""

import os
import signal

import pytest

from support import without_waiting

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(400)]  # a wait says itself what it waited for

BOTH = ["rank 0 of 2, attempt 0, from 0", "rank 1 of 2, attempt 0, from 0"]


def test_srun_elastic_run_is_the_whole_line(submit):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert sorted(job.starts) == BOTH
    assert "elastic:" not in without_waiting(job.out)


def test_a_crash_begins_a_round_anew(submit):
    job = submit("srun elastic run --max-restarts 1 train.py")
    job.wait_for_starts(2)
    (job.folder / "crash.1").touch()
    job.wait_for_starts(4)
    job.wait_for("rank 1 failed: ValueError: bad sample")  # what an agent says goes by way of srun
    job.go()
    assert job.end() == "COMPLETED 0:0"


def test_a_crash_for_good_is_the_jobs_verdict(submit):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    (job.folder / "crash.0").touch()
    assert job.end() == "FAILED 1:0"
    assert "ValueError: bad sample" in job.out


def test_a_second_agent_of_a_node_is_refused(submit):
    line = "srun --ntasks-per-node=2 --overcommit elastic run --nnodes $SLURM_NNODES train.py"
    job = submit(line, "--ntasks-per-node=2")
    assert job.end() == "FAILED 2:0"
    assert job.out.count("Try: srun --ntasks-per-node 1") == 1
    assert not job.starts


def test_a_cleaned_environment_is_a_line(submit):
    job = submit("srun env -i PATH=$PATH FOLDER=$FOLDER XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR elastic run train.py")
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert job.out.count(f"this process is in step {job.number}.0 of Slurm, but has no SLURM_JOB_ID") == 2


def test_the_others_train_on_without_a_killed_agent(submit):
    job = submit("srun -K0 elastic run --nnodes 1:2 train.py")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    other = max(job.agents())
    os.kill(job.agents()[other], signal.SIGKILL)
    job.wait_for_starts(3)
    assert job.starts[2].startswith("rank 0 of 1, attempt 0, from ")
    job.go()
    assert job.end() == "FAILED 137:0"  # srun's word, of the lost task: the run has ended well
    assert f"round 0 is over: {other} lost; 1 node with 1 worker goes on" in job.out


def test_a_cancelled_job_stops_in_order_and_stays_cancelled(submit, cluster):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    cluster.call("scancel", job.number)
    assert job.end().startswith("CANCELLED")
    job.wait_for("SIGTERM")
    assert job.said()["Restarts"] == "0"


def test_nodes_of_a_step_meet_before_a_run_with_nothing_typed(submit):
    job = submit("srun elastic doctor --nnodes auto --time-limit 60 || true; srun elastic run train.py")
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert "2 have met" in job.out
    assert job.out.count("agents' ports  1 tried") == 1
    assert sorted(job.starts) == BOTH


def test_a_job_is_shown_and_stopped_by_its_number(submit, cluster):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    running = f"run '{job.number}.0': running"
    job.wait(lambda: running in cluster.call("elastic", "status", job.number), what=running)
    assert "is to stop: 2 nodes" in cluster.call("elastic", "stop", "--deadline", "20", job.number)
    assert job.end() == "FAILED 143:0"
    assert f"job {job.number} is FAILED; expected RUNNING" in cluster.call("elastic", "status", job.number, ok=False)


def test_a_job_that_has_lost_an_agent_does_not_wait_for_it(submit):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    other = max(job.agents())
    os.kill(job.agents()[other], signal.SIGKILL)
    assert job.end() == "FAILED 137:0"  # within a minute: --join-timeout is ten
    assert f"{other} lost its agent, and nothing in a step of Slurm starts it again: this run ends" in job.out
    assert f"has lost the agent of {other}, and is not begun again. Try: --requeue auto" in job.out


@pytest.mark.parametrize("which", [min, max], ids=["first", "other"])
def test_a_job_that_has_lost_an_agent_is_begun_again_if_asked(submit, which):
    job = submit("srun elastic run --requeue auto train.py")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    lost = which(job.agents())
    os.kill(job.agents()[lost], signal.SIGKILL)
    job.wait_for(f"has lost the agent of {lost}: Slurm is asked to begin it again")
    job.begin_again()
    job.wait_for_starts(4)
    job.go()
    assert job.end() == "COMPLETED 0:0"
