"""Stops under a real Slurm: preemption, time limits, warnings, a requeue, and the attempt that goes on."""

import pytest

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(400)]  # a wait says itself what it waited for


def goes_on(job, nodes=2):
    """Check that the job's second attempt begins where the first has saved, and let it end."""
    job.begin_again()
    job.wait_for_starts(2 * nodes)
    kept = [int((job.folder / f"kept.{rank}").read_text()) for rank in range(nodes)]
    assert min(kept) > 0
    again = [f"rank {rank} of {nodes}, attempt 1, from {kept[rank]}" for rank in range(nodes)]
    assert sorted(job.starts[nodes:]) == again, job.out
    job.go()
    assert job.end() == "COMPLETED 0:0"


@pytest.mark.parametrize(
    ("partition", "requeue", "line"),
    [
        ("main", "", "was preempted: this agent stays until Slurm ends it and begins it again"),
        ("cancelled", "--requeue auto", "was preempted: Slurm is asked to begin it again"),
    ],
    ids=["by itself", "asked"],
)
def test_a_preempted_job_goes_on_from_its_checkpoint(submit, cluster, partition, requeue, line):
    job = submit(f"srun elastic run {requeue} train.py", "--partition", partition, nodes=4)
    job.wait_for_starts(4)
    urgent = submit("true", "--partition=urgent", nodes=4, name="urgent")
    job.wait_for(line)
    assert urgent.end() == "COMPLETED 0:0"
    goes_on(job, nodes=4)
    assert job.out.count(line) == 1


def test_a_time_limit_is_followed_by_another_attempt(submit, cluster):
    job = submit("srun elastic run --requeue auto train.py", "--time=2")
    job.wait_for_starts(2)
    cluster.call("scontrol", "update", f"job={job.number}", "EndTime=now+2")  # in whole seconds: `now` may have passed
    job.wait_for("is out of time: Slurm is asked to begin it again")
    cluster.call("scontrol", "update", f"job={job.number}", "TimeLimit=10", ok=False)
    goes_on(job)


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
def test_a_warning_saves_and_begins_again(submit, cluster, early):
    job = submit("srun elastic run --requeue auto --preemption-signal USR1 train.py", "--time=10")
    if early:  # while workers start: in the import of torch, say
        job.wait(lambda: len(job.agents()) == 2, what="two agents")
        job.wait_for_starts(1)
    else:
        job.wait_for_starts(2)
    cluster.call("scancel", "--signal=USR1", job.number)
    job.wait_for("is soon out of time: Slurm is asked to begin it again")
    if not early:
        goes_on(job)
        kept = [(job.folder / f"kept.{rank}").read_text() for rank in range(2)]
        assert kept[0] == kept[1], job.out  # all nodes were told at once
    else:  # what was saved depends on how far the workers were
        job.begin_again()
        job.wait(lambda: sum(", attempt 1, " in line for line in job.starts) == 2, what="both begin again")
        job.go()
        assert job.end() == "COMPLETED 0:0"


def test_a_requeue_by_hand_goes_on_from_the_checkpoint(submit, cluster):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    cluster.call("scontrol", "requeue", job.number)
    goes_on(job)


def test_a_cancelled_job_is_not_asked_for(submit, cluster):
    job = submit("srun elastic run --requeue auto train.py")
    job.wait_for_starts(2)
    cluster.call("scancel", job.number)
    assert job.end().startswith("CANCELLED")
    job.wait_for("was cancelled")
    assert job.said()["Restarts"] == "0"


def test_no_permission_to_requeue_is_one_line(submit, cluster):
    job = submit("srun elastic run --requeue auto train.py", "--time=2", "--no-requeue")
    job.wait_for_starts(2)
    cluster.call("scontrol", "update", f"job={job.number}", "EndTime=now+2")
    job.wait_for("is out of time, and Slurm may not begin it again. Try: sbatch --requeue")
    assert job.end().startswith("TIMEOUT")
    assert (job.folder / "kept.0").exists()


def test_a_grace_longer_than_slurms_is_a_line_at_the_start(submit):
    job = submit("srun elastic run --shutdown-timeout 90 train.py")
    job.wait_for_starts(2)
    job.wait_for("(KillWait), and --shutdown-timeout is 90 s. Try: --shutdown-timeout 55")
    job.go()
    assert job.end() == "COMPLETED 0:0"


def test_a_save_longer_than_slurms_is_a_line_when_workers_ask(submit):
    job = submit("srun elastic run --save-timeout 45 train.py", "--time=10")
    job.wait_for("after the time limit (KillWait), and workers may take 75 s to save and stop (--save-timeout 45 s, ")
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert job.out.count("KillWait") == 1


SLEEP = "srun elastic run --requeue auto {} --no-python sleep 600"


def test_an_attempt_that_got_nowhere_is_the_last_at_a_time_limit(submit, cluster):
    job = submit(SLEEP.format(""), "--time=2")
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    cluster.call("scontrol", "update", f"job={job.number}", "EndTime=now+2")
    assert job.end().startswith("TIMEOUT")
    assert job.said()["Restarts"] == "0"


def test_a_limit_bounds_the_attempts_of_a_script_that_shows_no_steps(submit, cluster):
    job = submit(SLEEP.format("--requeue-limit 1"), "--time=2")
    for attempt in range(2):
        job.wait(lambda: len(job.agents()) == 2, what="two agents")
        cluster.call("scontrol", "update", f"job={job.number}", "EndTime=now+2")
        if not attempt:
            job.begin_again()
            cluster.call("scontrol", "update", f"job={job.number}", "TimeLimit=2", ok=False)
    assert job.end().startswith("TIMEOUT")
    assert job.said()["Restarts"] == "1"


def test_the_default_ends_at_a_time_limit(submit, cluster):
    job = submit("srun elastic run train.py", "--time=2")
    job.wait_for_starts(2)
    cluster.call("scontrol", "update", f"job={job.number}", "EndTime=now+2")
    job.wait_for("is out of time, and is not begun again. Try: --requeue auto")
    assert job.end().startswith("TIMEOUT")
    assert job.said()["Restarts"] == "0"


def test_a_notice_in_a_job_without_a_limit_is_a_line(submit, cluster):
    job = submit("srun elastic run --requeue auto --preemption-signal USR1 train.py")
    job.wait_for_starts(2)
    cluster.call("scancel", "--signal=USR1", job.number)
    job.wait_for(f"it is not begun again. Try: scontrol requeue {job.number}")
    assert job.end() == "FAILED 138:0"
