"""Where the run of a job meets, from what Slurm shows of the job and its steps."""

import shutil

import pytest

from elastic_core.api import ConfigError
from elastic_env_slurm import scheduler
from elastic_env_slurm.environment import SlurmEnvironment
from elastic_env_slurm.job_runs import run_of_job

JOB = "JobId=4711 JobName=train\n   JobState=RUNNING Reason=None\n   NodeList=n[1-3]\n\n"
ARRAY = """JobId=4711 ArrayJobId=4711 ArrayTaskId=2 JobName=train
   JobState=RUNNING NodeList=n[1-2]

JobId=4712 ArrayJobId=4711 ArrayTaskId=1 JobName=train
   JobState=RUNNING NodeList=n[3-4]
"""
TASK = "JobId=4712 ArrayJobId=4711 ArrayTaskId=1 JobName=train\n   JobState=RUNNING\n"


def step(number, nodes="n[1-3]", count=3, name="elastic"):
    return f"StepId=4711.{number} UserId=0\n   State=RUNNING NodeList={nodes}\n   Nodes={count} CPUs=4 Name={name}\n\n"


BATCH = step("batch", nodes="n1", count=1, name="batch") + step("extern")


@pytest.fixture
def slurm(monkeypatch):
    """Return what sets the texts that scontrol shows."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def shows(job=JOB, steps=""):
        texts = {"job": job, "step": steps}

        def scontrol(*words):
            if isinstance(texts[words[1]], Exception):
                raise texts[words[1]]
            return texts[words[1]]

        monkeypatch.setattr(scheduler, "_scontrol", scontrol)

    return shows


def test_it_is_where_the_agents_of_the_step_meet(slurm):
    slurm(steps=BATCH + step(0))
    variables = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2"}
    there = SlurmEnvironment(variables | {"SLURM_STEP_NODELIST": "n[1-3]"}).propose({})
    found = run_of_job("4711")
    assert found == {each.option: each.value for each in there if each.option.startswith("rdzv_")}
    assert (found["rdzv_id"], found["rdzv_endpoint"].partition(":")[0]) == ("4711.0", "n1")
    assert found["rdzv_conf"].startswith("is_host=false")
    assert run_of_job("4711.0") == found


def test_a_task_of_an_array_is_a_job_of_its_own(slurm):
    slurm(job=TASK, steps=step(0))
    assert run_of_job("4711_1")["rdzv_id"] == "4711_1.0"
    slurm(job=ARRAY)
    with pytest.raises(ConfigError, match="job 4711 is an array of 2 jobs; expected one") as caught:
        run_of_job("4711")
    assert caught.value.hint == "4711_2"


def test_of_several_steps_the_one_of_elastic_counts(slurm):
    slurm(steps=step(0, name="hostname") + step(1) + step(2, nodes="n1", count=1))
    assert run_of_job("4711")["rdzv_id"] == "4711.1"
    assert run_of_job("4711.0")["rdzv_id"] == "4711.0"
    slurm(steps=step(0) + step(1))
    with pytest.raises(ConfigError, match=r"job 4711 has steps 4711\.0, 4711\.1; expected one"):
        run_of_job("4711")


@pytest.mark.parametrize(
    ("shown", "line", "hint"),
    [
        ({"job": JOB.replace("RUNNING", "PENDING")}, "job 4711 is PENDING; expected RUNNING", "squeue --me"),
        ({"steps": BATCH}, "job 4711 has no step of several nodes", "srun --jobid 4711 --overlap elastic status"),
        ({"steps": step(0, count=1)}, "job 4711 has no step of several nodes", "srun --jobid 4711 --overlap"),
        ({"job": scheduler.SlurmError("Invalid job id specified")}, "job 4711: Invalid job id specified", "squeue"),
        ({"job": ""}, "job 4711: Slurm shows none", "squeue"),
    ],
)
def test_a_job_without_a_run_in_a_store_is_a_line(slurm, shown, line, hint):
    slurm(**shown)
    with pytest.raises(ConfigError) as caught:
        run_of_job("4711")
    assert str(caught.value).startswith(line)
    assert caught.value.hint.startswith(hint)


def test_without_slurm_or_for_another_name_nothing_is_known(slurm, monkeypatch):
    slurm()
    assert run_of_job("4711.bert") is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert run_of_job("4711") is None
