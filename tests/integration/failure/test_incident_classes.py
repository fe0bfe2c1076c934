"""Each class of failure that one node can have, from a real event to the incident."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.failure.incident import read_incident
from patience import patience
from support import lacks, wait_for

DIES = {
    "user exception": "raise ValueError('boom')",
    "import or usage error": "import nowhere_to_be_found",
    "non-zero exit": "import os\nos._exit(7)",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "out of memory on host": "x = bytearray(1 << 62)",
    "device": "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')",
    "out of memory on device": "class OutOfMemoryError(RuntimeError):\n    pass\nraise OutOfMemoryError('CUDA')",
    "hang": "from elastic_core.worker import heartbeat\nimport time\nheartbeat(step=3)\ntime.sleep(60)",
}


@pytest.mark.parametrize("kind", DIES)
def test_worker_fails(elastic, script, kind):
    agent = elastic("--hang-timeout", "1", script(DIES[kind]))
    assert agent.wait(60) > 0
    incident = agent.incident()
    assert (incident["failure_class"], incident["source"]) == (kind, "worker")
    assert incident["progress"] == (3 if kind == "hang" else None)


@pytest.mark.parametrize("line", ["exec PYTHON SCRIPT", "PYTHON SCRIPT; exit $?"])
def test_program_that_starts_an_interpreter_fails(elastic, script, line):
    """Its exception is known, and that another try would fail alike."""
    path = script(DIES["import or usage error"])
    line = line.replace("PYTHON", sys.executable).replace("SCRIPT", str(path))
    agent = elastic("--max-restarts", "3", "--no-python", "sh", "-c", line)
    assert agent.wait(60) == 1
    incident = agent.incident()
    assert (incident["failure_class"], incident["restart_count"]) == ("import or usage error", 0)
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in agent.err


def test_program_that_ends_without_a_word_has_advice(elastic):
    agent = elastic("--no-python", "sh", "-c", "exit 7")
    assert agent.wait(60) == 7
    assert "\nLogs: none, what it printed last is not kept. Try: --tee 3\n" in agent.err


def test_worker_can_not_be_started(elastic, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF, but not really")
    program.chmod(0o755)
    agent = elastic("--no-python", str(program))
    assert agent.wait(60) > 0
    incident = agent.incident()
    assert (incident["failure_class"], incident["source"], incident["node_count"]) == ("start-up", "launcher", 1)


# --- the kernel's own counters

LIMIT_BYTES = 160 << 20
EATS = """
import time
held = []
while True:
    held.append(bytearray(8 << 20))
    for at in range(0, 8 << 20, 4096):
        held[-1][at] = 1
"""


def memory_folder():
    """Return this process's folder of the memory controller, and the name of the limit in it."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory") / path.lstrip("/")
            return folder if folder.is_dir() else Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    path = next((path for number, _, path in lines if number == "0"), "/")
    return Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"


@pytest.fixture
def small():
    """A cgroup with little memory, if one can be had here."""
    parent, limit = memory_folder()
    folder = parent / f"elastic-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT_BYTES))
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        lacks("a memory cgroup of our own")
    yield folder
    wait_for(lambda: (folder / "cgroup.procs").read_text() == "")
    folder.rmdir()


def test_worker_is_killed_by_the_kernel_for_its_memory(small, script, tmp_path):
    """Beside one that needs little: the kernel takes the larger, and the agent is in the same cgroup."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "elastic_core.run", "--run-dir", str(run_dir), str(script(EATS))]
    agent = subprocess.run(
        ["sh", "-c", f'echo $$ > {small}/cgroup.procs && exec "$@"', "sh", *command],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert agent.returncode == 137, agent.stderr
    incident = read_incident(run_dir / "incident.json")
    assert (incident.failure_class.value, incident.first.exit.oom_kills) == ("out of memory on host", 1), agent.stderr
