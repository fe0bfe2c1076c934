"""Timers of torch's beside ours: each client with the other's server."""

import subprocess
import sys

from patience import patience
from timer_kit import LATE, ON

TORCHS = LATE.replace(
    "from elastic_core.compat.elastic import timer", "from torch.distributed.elastic import timer"
).replace('rank == "1"', 'rank == "0"')


def test_torchs_client_works_with_our_agent(elastic, script):
    agent = elastic(
        "--max-restarts", "1", script(TORCHS), env=ON | {"PYTHON_EXEC": sys.executable}
    )  # a timer is of its process
    assert agent.wait(100) == 0, agent.err
    assert "rank 0 is over its time for 'load'" in agent.err
    assert agent.out.count("round 1") == 1


def test_our_client_works_with_torchs_server(tmp_path):
    limit_s = patience(1)  # that a worker which gets no turn for a moment is in time
    over = tmp_path / "over"
    code = f"""
import pathlib, subprocess, sys
from torch.distributed.elastic.timer import FileTimerServer
def heard(name, request):
    if request is not None:
        print(name, request.scope_id, request.signal, flush=True)
        pathlib.Path({str(over)!r}).touch()
server = FileTimerServer({str(tmp_path / "pipe")!r}, "run", max_interval=0.1, log_event=heard)
server.start()
worker = '''
import os, time
from elastic_core.compat.elastic import timer
client = timer.FileTimerClient({str(tmp_path / "pipe")!r}, signal=0)
with timer.expires({limit_s}, scope="in time", client=client):
    pass
with timer.expires({limit_s}, scope="late", client=client):
    while not os.path.exists({str(over)!r}):
        time.sleep(0.01)
'''
subprocess.run([sys.executable, "-c", worker], check=True)
server.stop()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["timer expired late 0"]
