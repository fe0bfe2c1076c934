"""What pages and examples have for schedulers runs as it stands, under what the scheduler gives to its processes."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from page_kit import BLOCK, DOCS, written
from patience import patience
from ports import free_port
from redis_servers import RedisServer
from support import without_waiting

TRAIN = """
import os, pathlib
folder = pathlib.Path(os.environ["RANKS"])
(folder / os.environ["RANK"]).write_text(os.environ["WORLD_SIZE"] + " " + os.environ["GROUP_RANK"])
"""
SRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words.pop(0)
count = int(os.environ["SLURM_NNODES"])
tasks = []
for node in range(count):
    own = dict(SLURM_NODEID=node, SLURM_PROCID=node, SLURM_LOCALID=0, SLURM_STEP_ID=0, SLURM_STEP_NUM_NODES=count)
    own.update(SLURMD_NODENAME="127.%d" % (node + 1), SLURM_STEP_NODELIST=os.environ["SLURM_JOB_NODELIST"])
    env = os.environ | {{name: str(value) for name, value in own.items()}}
    tasks.append(subprocess.Popen(words, env=env))
sys.exit(max(task.wait() for task in tasks))
"""
JOB = {
    "SLURM_JOB_NODELIST": "127.[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
}  # fmt: skip
"""What a batch script of two nodes finds: names that every resolver takes for addresses of this machine."""


def recipes():
    for page in sorted(DOCS.glob("*/*.md")):
        for name, text in written(BLOCK.finditer(page.read_text())):
            if name.endswith(".sbatch"):
                yield pytest.param(name, text, id=name.removesuffix(".sbatch"))


@pytest.fixture
def cluster(tmp_path):
    """The folder of a job, and the environment that its processes begin with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN.format(python=sys.executable))
    (programs / "srun").chmod(stat.S_IRWXU)
    (tmp_path / "runtime").mkdir(mode=0o700)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    theirs = ("PET_", "ELASTIC_", "TORCHELASTIC_", "SLURM_", "OMP_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return tmp_path, inherited | {
        "PATH": os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"])),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "RANKS": str(tmp_path / "ranks"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()


def here(text, redis):
    """Put ports of this machine, a server that is there, and one worker a node into a recipe."""
    text = re.sub(r"(?<![.\w])(?:redis\.example|rendezvous):6379", redis.endpoint, text)
    text = re.sub(r"(?<=:)(?:29400|29500)\b", lambda _: str(free_port()), text)
    return re.sub(r"--nproc-per-node[ =]\w+", "--nproc-per-node=1", text)


def ranks(folder):
    return {path.name: path.read_text() for path in (folder / "ranks").iterdir()}


@pytest.mark.parametrize(("name", "text"), list(recipes()))
def test_a_batch_script_of_a_page_runs_under_slurm(cluster, redis, name, text):
    folder, env = cluster
    (folder / name).write_text(here(text, redis))
    job = env | JOB | {"SLURM_JOB_ID": str(os.getpid())}
    done = subprocess.run(
        ["bash", name], cwd=folder, env=job, capture_output=True, text=True, timeout=patience(90), check=False
    )
    assert done.returncode == 0, done.stderr
    assert ranks(folder) == {"0": "2 0", "1": "2 1"}
    assert "elastic:" not in without_waiting(done.stderr)
