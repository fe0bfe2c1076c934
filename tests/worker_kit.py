"""A worker's interpreter with the environment that the agent gives it, and what it left."""

import os
import subprocess
import sys
import time
from pathlib import Path

from elastic_core.failure.classify import judge
from elastic_core.processes.errors.reader import read_error
from elastic_core.types import WorkerExit
from patience import patience

TIMEOUT_S = 60


class Worker:
    """One finished worker and what it left."""

    def __init__(self, folder: Path, arguments, environment, interpreter=(sys.executable,)):
        self.error_file = folder / "error.json"
        self.fault_file = folder / "fault.txt"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTIC_", "PYTHON"))}
        hooks = {
            "TORCHELASTIC_ERROR_FILE": str(self.error_file),
            "ELASTIC_FAULT_FILE": str(self.fault_file),
            "ELASTIC_WORKER_HOOKS": "1",
        }
        began_ns = time.time_ns()
        with subprocess.Popen(
            [*interpreter, *arguments],
            env=inherited | hooks | environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as done:
            try:
                self.stdout, self.stderr = done.communicate(timeout=patience(TIMEOUT_S))
            except subprocess.TimeoutExpired:
                done.kill()
                raise
        at_ns = time.time_ns()
        self.exit = WorkerExit(
            local_rank=0,
            global_rank=0,
            pid=done.pid,
            code=done.returncode,
            at_s=1.0,
            at_ns=at_ns,
            runtime_s=(at_ns - began_ns) / 1e9,
        )

    def record(self, *, stderr=False):
        return read_error(self.error_file, self.fault_file, self.stderr.encode() if stderr else None, exit=self.exit)

    def judged(self):
        return judge(self.exit, self.record())


UNDECORATED = """\
    def step():
        raise ValueError("boom")

    def main():
        step()

    main()
    """
