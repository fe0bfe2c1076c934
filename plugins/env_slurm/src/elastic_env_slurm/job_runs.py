"""The rendezvous of a job's run, for a command outside the job: `elastic status 4711` on a login node."""

import re
import shutil
from collections.abc import Mapping
from typing import Final

from elastic_core.api import ConfigError
from elastic_env_slurm import scheduler
from elastic_env_slurm.environment import SlurmEnvironment

_NAME: Final = re.compile(r"(\d+(?:_\d+)?)(?:\+0)?(?:\.(\d+))?", re.ASCII)
_STEP: Final = re.compile(r".*\.(\d+)", re.ASCII)
_COMMAND: Final = "elastic"


def run_of_job(name: str) -> Mapping[str, str] | None:
    """Return the options of the run of a job, or of one of its steps: `4711`, `4711_3`, `4711.1`.

    These are the options of the step's agents if the user typed none of them.

    Returns:
        Option identifiers to texts. `None` if the name is not a job's, or this host has no Slurm.

    Raises:
        ConfigError: Slurm has no such job, or the job has no step of several nodes, or more than one.
    """
    found = _NAME.fullmatch(name)
    if not found or shutil.which("scontrol") is None:
        return None
    try:
        jobs = scheduler.show_all("job", found[1])
        job = next((each for each in jobs if each.get("HetJobId") == each["JobId"]), jobs[0])
        if len(jobs) > 1 and job.get("ArrayTaskId"):
            first = f"{job['ArrayJobId']}_{job['ArrayTaskId']}"
            raise ConfigError(f"job {name} is an array of {len(jobs)} jobs; expected one", hint=first)
        steps = scheduler.show_all("step", job["JobId"]) if job.get("JobState") == "RUNNING" else []
    except scheduler.SlurmError as err:
        raise ConfigError(f"job {name}: {err}", hint="squeue --me") from None
    step = _step(name, found[2], job, steps)
    return {dest: text for dest, text in _proposed(job, step).items() if dest.startswith("rdzv_")}


def _step(name: str, wanted: str | None, job: Mapping[str, str], steps: list[dict[str, str]]) -> Mapping[str, str]:
    if job.get("JobState") != "RUNNING":
        raise ConfigError(f"job {name} is {job.get('JobState', 'unknown')}; expected RUNNING", hint="squeue --me")
    numbered = {found[1]: each for each in steps if (found := _STEP.fullmatch(each["StepId"]))}
    if wanted is not None:
        numbered = {number: each for number, each in numbered.items() if number == wanted}
    chosen = {number: each for number, each in numbered.items() if each.get("Nodes") != "1"}
    ours = {number: each for number, each in chosen.items() if each.get("Name") == _COMMAND}
    chosen = ours if len(ours) == 1 else chosen
    if not chosen:
        # A run of one node keeps no store.
        hint = f"srun --jobid {job['JobId']} --overlap elastic status"
        raise ConfigError(f"job {name} has no step of several nodes, whose agents meet in a store", hint=hint)
    if len(chosen) > 1:
        shown = ", ".join(each["StepId"] for each in chosen.values())
        raise ConfigError(f"job {name} has steps {shown}; expected one", hint=next(iter(chosen.values()))["StepId"])
    ((number, step),) = chosen.items()
    return {**step, "number": number}


def _proposed(job: Mapping[str, str], step: Mapping[str, str]) -> Mapping[str, str]:
    """Return the proposals of the step's environment on a node that does not host the store."""
    variables = {
        "SLURM_JOB_ID": job["JobId"],
        "SLURM_ARRAY_JOB_ID": job.get("ArrayJobId", ""),
        "SLURM_ARRAY_TASK_ID": job.get("ArrayTaskId", ""),
        "SLURM_STEP_ID": step["number"],
        "SLURM_STEP_NUM_NODES": step.get("Nodes", ""),
        "SLURM_STEP_NODELIST": step.get("NodeList", ""),
        "SLURM_NODEID": "1",
    }
    return {each.option: each.value for each in SlurmEnvironment(variables).propose({})}
