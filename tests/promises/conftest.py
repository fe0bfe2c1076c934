"""Fixtures of this folder: runs of several nodes, whole command lines, other commands, and Python programs."""

import os
import subprocess
import sys

import pytest

from chaos.multi_node import redis_run  # noqa: F401
from etcd_servers import etcd_private  # noqa: F401
from patience import patience
from redis_servers import redis_server  # noqa: F401
from support import places_of_runs

ELASTIC = [sys.executable, "-m", "elastic_core"]


@pytest.fixture
def run_elastic(tmp_path):
    """Return a function that runs `elastic COMMAND …` and returns the ended process.

    The command sees the run directories of the agent that is given, or none.
    """

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)

    def run_elastic(*words, agent=None):
        return _ended([*ELASTIC, *words], tmp_path, places_of_runs(agent.runtime if agent else elsewhere))

    return run_elastic


@pytest.fixture
def run_program(tmp_path):
    """Return a function that writes a Python program to a file, runs it, and returns the ended process."""
    (tmp_path / "runtime").mkdir(mode=0o700)

    def run_program(text, **variables):
        path = tmp_path / "program.py"
        path.write_text(text)
        return _ended([sys.executable, path], tmp_path, places_of_runs(tmp_path / "runtime") | variables)

    return run_program


@pytest.fixture
def start_line(tmp_path):
    """Return a function that starts `elastic run` with exactly these words; it returns the process and its output file.

    All are killed after the test; the guard of each agent ends its workers.
    """
    started = []

    def start_line(*words, **variables):
        folder = tmp_path / f"line{len(started)}"
        folder.mkdir()
        (folder / "runtime").mkdir(mode=0o700)
        env = _environment(places_of_runs(folder / "runtime"), variables)
        command = [*ELASTIC, "run", *map(str, words)]
        with (folder / "output").open("wb") as output:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            )
        return started[-1], folder / "output"

    yield start_line
    for process in started:
        process.kill()
        process.wait()


def _ended(command, folder, variables):
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=_environment(variables), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=patience(30), check=False,
    )  # fmt: skip


def _environment(*variables):
    found = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
    for each in variables:
        found |= each
    return found
