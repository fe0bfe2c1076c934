"""The secret of a run's store under a real Slurm: how nodes and commands find it, and what a killed node leaves."""

import os
import shutil
import signal

import pytest

from support import without_waiting

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(400)]  # a wait says itself what it waited for

APART = "srun bash -c 'export ELASTIC_C10D_SECRETS=$FOLDER/secrets.$SLURM_NODEID; {}exec elastic run train.py'"
"""Nodes that share no folder for secrets."""


@pytest.fixture
def munge(cluster, tmp_path):
    """Return the folder with MUNGE's programs that ask this cluster's own daemon."""
    folder = tmp_path / "munge"
    folder.mkdir()
    for name in ("munge", "unmunge"):
        program = shutil.which(name)
        (folder / name).write_text(f'#!/bin/sh\nexec {program} --socket={cluster.root / "munge.socket"} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def secrets(cluster, job):
    return [path.name.rpartition(".")[0] for path in (cluster.root / "secrets").glob(f"{job.number}*")]


def test_the_first_node_makes_a_secret_that_only_the_jobs_user_finds(submit, cluster, tmp_path):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    assert secrets(cluster, job) == [f"{job.number}.0@slurm%20{job.number}.0"]
    (path,) = (cluster.root / "secrets").glob(f"{job.number}*")
    assert path.stat().st_mode & 0o777 == 0o600
    port = path.name.rpartition(".")[2]
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", f"{job.number}.0"]
    theirs = {"ELASTIC_C10D_SECRETS": str(tmp_path / "another user's")}
    for words in (["status"], ["stop", "--user", "root"], ["logs"]):
        refused = cluster.call("elastic", *words, *where, ok=False, env=theirs)
        assert "its password is made of the secret in the file" in refused
        assert refused.count("\n") == 1
    job.wait(lambda: "running" in cluster.call("elastic", "status", *where), what="a run that is under way")
    assert "running" in cluster.call("srun", f"--jobid={job.number}", "--overlap", "-N1", "elastic", "status", *where)
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert not secrets(cluster, job)
    assert "elastic:" not in without_waiting(job.out)


def test_nodes_without_a_shared_folder_find_it_by_munge(submit, munge):
    job = submit(APART.format(f"PATH={munge}:$PATH; "))
    job.wait_for_starts(2)
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert len(list(job.folder.glob("secrets.*"))) == 1  # the first node's
    assert "elastic:" not in without_waiting(job.out)


def test_nodes_without_anything_in_common_end_with_a_line_that_names_both(submit):
    job = submit(APART.format("").replace("srun", "srun -K1", 1))
    assert job.end().startswith("FAILED ")
    ours = f"its password is made of the secret in the file {job.folder}/secrets.0/{job.number}.0@"
    assert ours in job.out
    assert f"; on this node: no file of the run in {job.folder}/secrets.1. Try: " in job.out
    assert not job.starts


def test_a_killed_first_node_leaves_nothing_to_the_next_attempt(submit, cluster):
    job = submit("srun elastic run train.py")
    job.wait_for_starts(2)
    job.wait(lambda: len(job.agents()) == 2, what="two agents")
    agents = job.agents()
    os.kill(agents[min(agents)], signal.SIGKILL)
    job.end()
    assert secrets(cluster, job) == [f"{job.number}.0@slurm%20{job.number}.0"]
    cluster.call("scontrol", "requeue", job.number)
    job.begin_again()
    job.wait_for_starts(4)
    assert secrets(cluster, job) == [f"{job.number}.0@slurm%20{job.number}.1"]
    job.go()
    assert job.end() == "COMPLETED 0:0"
    assert not secrets(cluster, job)


def test_tasks_of_an_array_have_a_secret_each(submit, cluster):
    job = submit("srun elastic run train.py", "--array=1-2")
    job.wait(lambda: len(job.starts) == 4, what="both tasks have begun")
    runs = sorted(name.partition("@")[0] for name in secrets(cluster, job))
    assert runs == [f"{job.number}_{task}.0" for task in (1, 2)]
    job.go()
    job.wait(lambda: not secrets(cluster, job), what="both tasks have removed their secrets")


def test_the_parts_of_a_heterogeneous_job_share_one(cluster, submit):
    words = ("-N1", ":", "-N1")
    shown = cluster.call("salloc", *words, "srun", "--het-group=0,1", "elastic", "run", "--no-python", "true")
    assert "elastic: error" not in shown
    assert not list((cluster.root / "secrets").iterdir())
