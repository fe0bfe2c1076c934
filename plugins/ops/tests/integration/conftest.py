"""Fixtures of the tests in these folders."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from elastic_core.cli.main import main
from worker_main_kit import HEAD


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="ec-", dir="/tmp") as path:  # short: sockets are in it
        yield Path(path)


@pytest.fixture
def worker(folder):
    """Start a script with a socket's path in its environment."""
    started = []

    def start(text, *, path=None, head=HEAD, **env):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "ELASTIC_"))}
        own = {"TORCH_WORKER_SERVER_SOCKET": str(folder / "w.sock") if path is None else path}
        process = subprocess.Popen(
            [sys.executable, "-c", head + text],
            env=inherited | {"TEST_FOLDER": str(folder)} | (own if path != "" else {}) | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def ask(capsys, monkeypatch):
    """Return what gives a command to `elastic`, and returns its code and its lines."""
    for name in ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF"):
        monkeypatch.delenv(name, raising=False)

    def call(*words):
        capsys.readouterr()
        code = main([*map(str, words)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert said.err.count("\n") <= 1
        return code, said.out + said.err

    return call
