"""Run directories of many launches at once, and of a killed one."""

import os
import signal
import subprocess
import sys

from patience import patience

RUN = """
import sys
from elastic_core.rundir.directory import RunDirectory
for number in range(100):
    run = RunDirectory(None, f"job/{number}")
    (run.path / "file").touch()
    assert run.finish(success=True) is False
"""

KILLED = """
import os, signal
from elastic_core.rundir.directory import RunDirectory
print(RunDirectory(None, "job").path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(code, runtime):
    runtime.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def test_racing_launches_leave_nothing(tmp_path):
    processes = [start(RUN, tmp_path / "runtime") for _ in range(6)]
    for process in processes:
        process.communicate(timeout=patience(60))
    assert [process.returncode for process in processes] == [0] * 6
    assert list((tmp_path / "runtime").glob("elastic-*/*")) == []


def test_the_directory_of_a_killed_agent_stays_and_disturbs_nobody(tmp_path):
    killed = start(KILLED, tmp_path / "runtime")
    path = killed.communicate(timeout=patience(60))[0].strip()
    assert killed.returncode == -signal.SIGKILL
    later = start(RUN, tmp_path / "runtime")
    later.communicate(timeout=patience(60))
    assert later.returncode == 0
    assert [str(p) for p in (tmp_path / "runtime").glob("*/*")] == [path]
