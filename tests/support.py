"""Starting `elastic` for real: own run directory, nothing left behind, every wait with a deadline."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import what_ran
from elastic_core.processes import procfs
from patience import Deadline, patience

ELASTIC = [sys.executable, "-m", "elastic_core.run"]
"""The same as `elastic run`, whatever PATH says."""


def wait_for(condition: Callable[[], object], *, within_s: float = 20.0, what: str = "") -> object:
    """Return the condition's first true value; fail when none comes in time, which is longer on a slow machine."""
    pause = threading.Event()
    end = Deadline(within_s)
    while not (value := condition()):
        if end.passed():
            raise AssertionError(f"not within {patience(within_s):.1f} s: {what or condition}")
        pause.wait(0.01)
    return value


class Lines(list[str]):
    """A logger that keeps what it would print."""

    times = ""

    def notice(self, text: str, *more: str, painter: object = None) -> None:
        self.extend((text, *more))

    def block(self, *lines: str, painter: object = None) -> None:
        self.extend(lines)


def without_waiting(said: str) -> str:
    """Return what agents have said, but for lines about the first node's store: on a busy machine that comes late."""
    about = r"elastic: (store unreachable: .*; no node hosts the store there yet; trying again|store back: .*)\n"
    return re.sub(about, "", said)


def lacks(what: str, *, install: str = "") -> NoReturn:
    """Skip the test for want of something; in CI, where all is installed that can be, fail it."""
    missing = f"for want of {what}" + (f". Try: {install}" if install else "")
    if install and os.environ.get("CI"):
        pytest.fail(f"not possible {missing}")
    pytest.skip(missing)


def processes_with(mark: str) -> list[int]:
    """Return the live (not zombie) processes whose environment has the entry `mark` (NAME=value)."""

    def look() -> list[int]:
        alive = [stat.pid for stat in procfs.all_stats() if stat.state not in "ZX"]
        return [pid for pid in alive if procfs.has_environment_entry(pid, mark.encode())]

    return procfs.unblocked(look)  # a test beside this one may have a process hang


def places_of_runs(folder: Path) -> dict[str, str]:
    """The variables by which a run directory is made in this folder, with a terminal and without."""
    return {"XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}


class Elastic:
    """One agent process and its surroundings."""

    def __init__(self, folder: Path, args: list[str], *, env: dict[str, str] | None = None, **options: object) -> None:
        self.run_id = f"test-{os.getpid()}-{folder.name}-{time.monotonic_ns()}"
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.out_path, self.err_path = folder / "agent.out", folder / "agent.err"
        self._files = [self.out_path.open("wb"), self.err_path.open("wb")]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._files[0], "stderr": self._files[1]}
        self.process = subprocess.Popen(
            [*ELASTIC, "--rdzv-id", self.run_id, *args],
            env=inherited | places_of_runs(self.runtime) | (env or {}),
            **(streams | {"cwd": folder} | options),  # type: ignore[call-overload]  # options are Popen's own
        )
        what_ran.writes_to(self.process, self.err_path, self.out_path)

    @property
    def pid(self) -> int:
        """The agent."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What reached the agent's stdout so far."""
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What reached the agent's stderr so far."""
        return self.err_path.read_text(errors="replace")

    def lines(self) -> list[dict[str, object]]:
        """The JSON objects that workers printed so far, one after another on a line where two wrote at once."""
        decoder, found = json.JSONDecoder(), []
        for line in self.out.splitlines():
            at = 0
            while line.startswith("{", at):
                try:
                    value, at = decoder.raw_decode(line, at)
                except json.JSONDecodeError:
                    break  # being written
                found.append(value)
        return found

    def survivors(self) -> list[int]:
        """Processes with this run's id in their environment."""
        return processes_with(f"TORCHELASTIC_RUN_ID={self.run_id}")

    def incident_path(self) -> Path:
        """Where the incident file is that the run left."""
        (path,) = self.runtime.glob("elastic-*/*/incident.json")
        return path

    def incident(self) -> dict[str, object]:
        """What is in it."""
        return json.loads(self.incident_path().read_text())

    def wait(self, within_s: float = 60.0) -> int:
        """Return the exit code; a slow machine gets longer."""
        try:
            return self.process.wait(patience(within_s))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience(within_s):.1f} s\n{self.err}") from None

    def signal(self, signum: int) -> None:
        """Signal the agent alone."""
        os.kill(self.pid, signum)

    def close(self) -> None:
        """End whatever is left, by pid."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.survivors():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for file in self._files:
            file.close()


def launcher(folder: Path) -> Iterator[Callable[..., Elastic]]:
    """Yield a function that starts agents, and end them all afterwards."""
    started: list[Elastic] = []

    def start(*args: str, **options: object) -> Elastic:
        own = folder / f"agent{len(started)}"
        own.mkdir()
        started.append(Elastic(own, [str(a) for a in args], **options))  # type: ignore[arg-type]  # Popen's own
        return started[-1]

    yield start
    for agent in started:
        agent.close()
