"""An agent that loses its way (a defect of ours) still leaves nothing behind."""

import os
import subprocess
import sys

from patience import patience
from support import processes_with, wait_for

LOST = """
import sys
from elastic_core.agent import loop
from elastic_core.cli.main import elastic_process

def lose_the_way(self, exit):
    raise RuntimeError("what was I doing?")

loop.Agent.on_worker_exit = lose_the_way
elastic_process(["run", "--nproc-per-node", "2", "--omp-threads", "1", sys.argv[1]])
"""

WORKER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if os.environ["RANK"] == "1":
    sys.exit(5)
time.sleep(600)
"""


def test_unexpected_error_in_the_agent_ends_in_one_line_and_leaves_no_process(script, tmp_path):
    mark = f"lost-{os.getpid()}"
    done = subprocess.run(
        [sys.executable, str(script(LOST, "lost.py")), str(script(WORKER))],
        capture_output=True, text=True, timeout=patience(60), check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "TEST_MARK": mark},
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "RuntimeError: what was I doing?" in line
    wait_for(lambda: not processes_with(f"TEST_MARK={mark}"), within_s=5)
