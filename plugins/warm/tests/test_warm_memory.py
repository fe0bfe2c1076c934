"""`--warm-memory`: a folder in memory for the commits of workers, which the run leaves behind in no case."""

import json
import os
import signal
from pathlib import Path

import pytest

from support import wait_for

SHOW = """
import json, os, pathlib, stat, sys, time
folder = pathlib.Path(os.environ["TRAINING_WARM_DIR"])
(folder / ("commit-" + os.environ["LOCAL_RANK"])).write_bytes(b"state")
mode = stat.S_IMODE(folder.stat().st_mode)
os.write(1, (json.dumps([str(folder), mode, int(os.environ["TRAINING_WARM_BYTES"])]) + os.linesep).encode())
while "wait" in sys.argv:
    time.sleep(0.05)
"""


@pytest.fixture
def start(elastic, script):
    def start(*words):
        return elastic("--nproc-per-node", "2", "--max-restarts", "1", "--warm-memory", "3", script(SHOW), *words)

    return start


def test_workers_share_a_folder_of_their_user_that_ends_with_the_run(start):
    agent = start()
    assert agent.wait() == 0, agent.err
    shown = {tuple(json.loads(line)) for line in agent.out.splitlines()}
    ((folder, mode, size),) = shown
    assert (mode, size) == (0o700, 3 << 20)
    assert not Path(folder).exists()


def test_what_a_killed_agent_leaves_is_removed_by_the_next(start):
    killed = start("wait")
    wait_for(lambda: len(killed.out.splitlines()) == 2, what="both workers")
    left = Path(json.loads(killed.out.splitlines()[0])[0])
    os.kill(killed.pid, signal.SIGKILL)
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # agents of other tests remove it once its pid is gone
    assert left.exists()
    killed.wait()
    agent = start()
    assert agent.wait() == 0, agent.err
    assert not left.exists()


def test_without_it_there_is_none(elastic, script):
    agent = elastic("--max-restarts", "1", script("import os; print(os.environ.get('TRAINING_WARM_DIR', 'none'))"))
    assert agent.wait() == 0, agent.err
    assert agent.out.strip() == "none"
