"""The run of the report's picture: three nodes, one of which is lost, and two failures.

`python docs/_ext/report_run.py` makes the run (two minutes) and writes its report as docs/pictures/report.json.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import msgspec
from pictures import PICTURES

from elastic_report.combining.combine import combine
from elastic_report.model import Report
from elastic_report.sources.choosing import read_run

RUN_ID: Final = "bert-7"
REPORT: Final = PICTURES / "report.json"
NODES: Final = ("gpu-1", "gpu-2", "gpu-3")
LIMIT_S: Final = 300
PORT: Final = 29872

TRAINING: Final = """\
import os, time
from pathlib import Path

from elastic_train import restoring, saving, should_stop

rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
checkpoint, step = Path("checkpoint"), 0
with restoring():
    if checkpoint.exists():
        step = int(checkpoint.read_text())
        time.sleep(1.0)
while step < 1000:
    time.sleep(0.1)
    step += 1
    if should_stop(step=step):
        break
    if step % 100 == 0:
        with saving():
            time.sleep(2.0)
            if rank == 0:
                checkpoint.with_suffix(".new").write_text(str(step))
                checkpoint.with_suffix(".new").replace(checkpoint)
    if rank == 0 and step == 260:
        Path("lose").touch()
    if rank == 3 and step == 170 and restarts == 0:
        raise ValueError("label 11 is not a digit")
    if rank == 1 and step == 390 and restarts == 1:
        raise FloatingPointError("loss is nan")
"""


def recorded_report() -> Report:
    """Make the run in a folder of its own, and return its report."""
    with tempfile.TemporaryDirectory(prefix="elastic-report-") as folder, ExitStack() as ends:
        Path(folder, "train.py").write_text(TRAINING)
        os.environ.update(XDG_RUNTIME_DIR=folder, TMPDIR=folder)  # its records, and where the report reads them
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        agents = {}
        for node in NODES:
            words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{PORT}", "--rdzv-id", RUN_ID]
            words += ["--nnodes", "2:3", "--nproc-per-node", "2", "--omp-threads", "1", "--max-restarts", "1"]
            words += ["--rdzv-conf", "lease_ttl=3,last_call_timeout=10", "--node-id", node, "--run-dir", node]
            agents[node] = subprocess.Popen(
                [sys.executable, "-m", "elastic_core.run", *words, "train.py"], env=env, cwd=folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            ends.callback(agents[node].wait)
            ends.callback(agents[node].kill)
            _wait(_listening, "a store on the first node")
        _wait(Path(folder, "lose").exists, "step 260")
        agents[NODES[-1]].send_signal(signal.SIGKILL)
        for agent in agents.values():
            agent.wait(LIMIT_S)
        return _without(folder, combine(read_run((RUN_ID,), {})))


def _listening() -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("localhost", PORT)) == 0


def _wait(ready: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.1)  # noqa: TID251  # a recording has no clock to inject


def _without(folder: str, report: Report) -> Report:
    """Return the report with the name of a usual folder in place of the temporary one."""
    text = msgspec.json.encode(report).replace(folder.encode(), b"/home/ada/bert")
    return msgspec.json.decode(text.replace(sys.executable.encode(), b"/venv/bin/python"), type=Report)


if __name__ == "__main__":
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(recorded_report()), indent=1) + b"\n")
