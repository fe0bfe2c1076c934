"""A Slurm of our own on the loopback interface: munged, slurmctld and four slurmd, ended by pid.

One cluster serves all tests of this folder, which run in one process (`xdist_group`). Its nodes are called `127.1` to
`127.4`: names that every resolver takes for addresses of this machine, and that Slurm writes with brackets.

Processes are tracked by proctrack/linuxproc, which needs no cgroup: Slurm's signals reach workers, too, not agents
alone as with proctrack/cgroup. So the script below waits a moment for its agent's word before it ends by one.

A missing Slurm skips the tests here; `make slurm` and `.ci/run` install it.
"""

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ports import free_port
from proc_kit import is_alive
from support import lacks, places_of_runs, wait_for

NODES = 4
GRACE_S, KILL_WAIT_S = 6, 60
CONF = """
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait={kill_wait}
InactiveLimit=0
SlurmctldTimeout=300
SlurmdTimeout=300
MessageTimeout=60
MinJobAge=3600
JobRequeue=1
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE PriorityTier=1
PartitionName=main Default=YES GraceTime={grace}
PartitionName=patient GraceTime=600
PartitionName=cancelled GraceTime=60 PreemptMode=CANCEL
PartitionName=urgent PriorityTier=10
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"
THEIRS = ("PET_", "ELASTIC_", "TORCHELASTIC_", "SLURM_", "SBATCH_", "SALLOC_", "OMP_", "PYTEST")
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
TRAIN = """
import os, pathlib, signal, sys, time

ends = []
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: ends.append(time.monotonic() + 3))
from elastic_train import should_stop

folder, rank = pathlib.Path(os.environ["FOLDER"]), int(os.environ["RANK"])
kept = folder / f"kept.{rank}"
step = int(kept.read_text()) if kept.exists() else 0
should_stop(step=step)  # whoever has not asked yet is not waited for
with (folder / "starts").open("a") as file:
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    file.write(f"rank {rank} of {os.environ['WORLD_SIZE']}, attempt {attempt}, from {step} on {os.uname().nodename}\\n")
while not (folder / "go").exists():
    step += 1
    if (folder / f"crash.{rank}").exists():
        (folder / f"crash.{rank}").unlink()
        raise ValueError("bad sample")
    if should_stop(step=step):
        kept.write_text(str(step))
        sys.exit(0)
    if ends and time.monotonic() > ends[0]:  # nobody has asked it to save: it does so by itself
        kept.write_text(str(step))
        sys.exit(143)
    time.sleep(0.05)
"""


class Job:
    """One job: its folder, where its script runs, and what Slurm says of it."""

    def __init__(self, cluster, number, folder):
        self.cluster, self.number, self.folder = cluster, number, folder

    def said(self):
        """Return what Slurm says of it, by name."""
        text = self.cluster.call("scontrol", "show", "job", self.number)
        return dict(re.findall(r"(?:^|\s)([A-Z]\w*(?::\w+)*)=(\S*)", text))

    @property
    def out(self):
        """What its processes have written."""
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    @property
    def starts(self):
        """The workers' first lines, in order of their ranks and rounds: `rank 0 of 2, attempt 0, from 0`."""
        path = self.folder / "starts"
        return [line.partition(" on ")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_starts(self, count):
        """Wait until so many workers have begun."""
        self.wait(lambda: len(self.starts) >= count, what=f"{count} workers have begun")

    def wait_for(self, words):
        """Wait until something stands in its output."""
        self.wait(lambda: words in self.out, what=repr(words))

    def wait(self, condition, *, what):
        """Wait, and show what the job has written where it comes to nothing."""
        try:
            wait_for(condition, within_s=60)
        except AssertionError as err:
            shown = self.cluster.call("scontrol", "show", "job", self.number, ok=False)
            raise AssertionError(f"{what}: {err}\n{shown}\n{self.out}") from None

    def go(self):
        """Let its workers end well."""
        (self.folder / "go").touch()

    def end(self):
        """Wait until it is over, and return its state and exit code: `COMPLETED 0:0`."""
        self.wait(lambda: self.said()["JobState"] in ENDED, what="the job is over")
        said = self.said()
        return f"{said['JobState']} {said['ExitCode']}"

    def begin_again(self):
        """Spare it the two minutes for which Slurm holds what was requeued, but for the seconds that it needs."""
        self.wait(lambda: self.said()["JobState"] == "PENDING", what="the job waits to begin again")
        self.wait(self.cluster.idle, what="all nodes are idle")
        # A node that has ended a job refuses to start it in the same second: its credential is revoked, by time.
        self.cluster.call("scontrol", "update", f"job={self.number}", "StartTime=now+3")

    def agents(self):
        """Return the pids of its agents, by node."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"elastic\0run\0" in words.replace(b"/", b"\0") and not words.startswith(b"srun\0"):
                    lines = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    values = dict(line.partition("=")[::2] for line in lines)
                    if values.get("FOLDER") == str(self.folder) and "RANK" not in values:
                        found[values["SLURMD_NODENAME"]] = int(entry.name)
        return found


class Cluster:
    """The daemons, and calls of Slurm's programs."""

    def __init__(self, root):
        self.root = root
        self._started = []
        host = socket.gethostname().partition(".")[0]
        names = [f"127.{number}" for number in range(1, NODES + 1)]
        self.conf = root / "slurm.conf"
        values = {"host": host, "user": getpass.getuser(), "root": root, "port": free_port()}
        nodes = "".join(NODE.format(name=name, host=host, port=free_port()) for name in names)
        (root / "state").mkdir()
        self.conf.write_text(nodes + CONF.format(**values, kill_wait=KILL_WAIT_S, grace=GRACE_S))
        (root / "train.py").write_text(TRAIN)
        (root / "runtime").mkdir(mode=0o700)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(THEIRS)}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"))
        ours = {"SLURM_CONF": str(self.conf), "PATH": path, "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
        ours["ELASTIC_C10D_SECRETS"] = str(root / "secrets")
        self.env = inherited | places_of_runs(root / "runtime") | ours
        self._names = names

    def start(self):
        """Start the daemons, and wait until all nodes are there."""
        self._munge()
        self._start("slurmctld", "-D", "-f", self.conf)
        for name in self._names:
            self._start("slurmd", "-D", "-f", self.conf, "-N", name)
        wait_for(self.idle, within_s=60)

    def idle(self):
        """Whether all nodes are there, and free."""
        return self.call("sinfo", "-h", "-o", "%t %D", ok=False) == f"idle {NODES}\n"

    def _munge(self):
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        files = {
            "socket": "munge.socket",
            "log-file": "munged.log",
            "pid-file": "munged.pid",
            "seed-file": "munged.seed",
        }
        words = [f"--{option}={self.root / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *words)
        wait_for((self.root / "munge.socket").exists)

    def _start(self, program, *words):
        with (self.root / f"{program}.out").open("ab") as out:
            line = [shutil.which(program, path=self.env["PATH"]), *map(str, words)]
            self._started.append(
                subprocess.Popen(line, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.root)
            )

    def stop(self):
        """End all jobs, then all daemons."""
        self.call("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full", ok=False)
        self.call("scancel", "--user", getpass.getuser(), ok=False)
        with suppress(AssertionError):
            wait_for(lambda: not self.call("squeue", "-h", ok=False), within_s=15)
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self._steps():  # slurmstepd outlives its slurmd
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, self._steps())))

    def _steps(self):
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                foreign = entry.name.isdigit() and int(entry.name) != os.getpid()
                if foreign and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def call(self, *words, ok=True, **options):
        """Return what a program of Slurm's writes."""
        done = subprocess.run(
            list(map(str, words)),
            env=self.env | options.pop("env", {}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=90,
            check=False,
            **({"cwd": self.root} | options),
        )
        assert done.returncode == 0 or not ok, (words, done.stdout)
        return done.stdout

    def submit(self, folder, script, *options, nodes=2, env=None):
        """Submit a batch script of two nodes, with one task on each."""
        folder.mkdir(exist_ok=True)
        (folder / "job.sbatch").write_text(f"#!/bin/bash\n{script}\n")
        words = ["--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--open-mode=append", *options]
        words += [f"--output={folder / 'out'}", f"--chdir={folder}"]
        shown = self.call("sbatch", *words, folder / "job.sbatch", env={"FOLDER": str(folder)} | (env or {}))
        return Job(self, shown.split(";")[0].strip(), folder)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The cluster."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if not all(shutil.which(program, path=path) for program in ("slurmctld", "slurmd", "munged", "srun")):
        lacks("Slurm", install="" if os.environ.get("CI") else "make slurm")  # .ci/run has tried to install it
    root = tmp_path_factory.mktemp("slurm")
    ours = Cluster(root)
    try:
        ours.start()
        yield ours
    finally:
        ours.stop()


@pytest.fixture
def submit(cluster, tmp_path):
    """Return what submits a batch script in this test's folder; what is left of its jobs is cancelled."""
    jobs = []

    def submit(script, *options, name="job", **more):
        jobs.append(
            cluster.submit(
                tmp_path / name, script.replace("train.py", str(cluster.root / "train.py")), *options, **more
            )
        )
        return jobs[-1]

    yield submit
    for job in jobs:
        cluster.call("scancel", "--full", job.number, ok=False)
        job.go()


@pytest.fixture
def submit_by_us(cluster, tmp_path):
    """Return what submits a batch script by `elastic slurm submit`: its jobs, which share this test's folder."""
    jobs = []

    def submit(script, *options):
        text = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --output={tmp_path / 'out'}\n{script}\n"
        (tmp_path / "train.sbatch").write_text(text.replace("train.py", str(cluster.root / "train.py")))
        line = ["elastic", "slurm", "submit", *options, tmp_path / "train.sbatch"]
        shown = cluster.call(*line, env={"FOLDER": str(tmp_path)}, cwd=tmp_path)
        jobs.extend(Job(cluster, words.split()[1], tmp_path) for words in shown.splitlines())
        return jobs

    yield submit
    for job in jobs:
        cluster.call("scancel", "--full", job.number, ok=False)
        job.go()
