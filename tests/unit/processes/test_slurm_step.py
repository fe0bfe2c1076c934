"""Processes in a step of Slurm without the variables of the step: a table of cgroups and command lines."""

import pytest

from elastic_core.options.resolve import resolve
from elastic_core.processes import slurm_step
from elastic_core.processes.slurm_step import step_of

V1 = "5:devices:/slurm/uid_0/job_4711/step_3/task_0\n0::/system.slice/slurmd.service\n"
V2 = "0::/system.slice/slurmstepd.scope/job_4711/step_3/user/task_0\n"


@pytest.mark.parametrize(
    ("cgroup", "titles", "step"),
    [
        (V1, (), "4711.3"),
        (V2, (), "4711.3"),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_3\n", (), "4711.3"),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_special\n", (), ""),
        ("0::/user.slice\n", ("apptainer\0exec", "slurmstepd: [4711.0]\0"), "4711.0"),
        ("0::/user.slice\n", ("slurmstepd: [4711.batch]", "vim\0slurmstepd: [4711.0]"), ""),
        ("", (), ""),
    ],
)
def test_a_step_is_found_by_its_cgroup_or_by_the_process_that_started_it(cgroup, titles, step):
    assert step_of(cgroup, titles) == step


@pytest.mark.parametrize(
    ("given", "environ", "shown"),
    [
        ({}, {}, True),
        ({}, {"SLURM_JOB_ID": ""}, False),
        ({"nnodes": "2", "rdzv_endpoint": "h:1", "rdzv_backend": "c10d", "rdzv_id": "r"}, {}, False),
        ({"standalone": True}, {}, False),
        ({"environment": "none"}, {}, False),
    ],
)
def test_a_node_that_trains_alone_in_a_step_is_a_line(monkeypatch, given, environ, shown):
    monkeypatch.setattr(slurm_step, "read_file", lambda path: V2.encode() if path == "/proc/self/cgroup" else None)
    notices = [line for line in resolve(given, __file__, environ=environ).settings.notices if "Slurm" in line]
    line = (
        "this process is in step 4711.3 of Slurm, but has no SLURM_JOB_ID: its environment was cleaned, and this node "
        "trains alone. Try: apptainer exec without --cleanenv, or pass on SLURM_*"
    )
    assert notices == ([line] if shown else [])
