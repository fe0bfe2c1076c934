"""How each launcher is started, and one run of one of them: what its workers say, when, and how it is ended."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measure import MeasureError
from benchmarks.stats import FLOOR, OURS, TORCHRUN

DEADLINE_S = 120.0
_BIN = Path(sys.executable).parent
Launcher = Callable[..., list[str]]
"""Makes a command of (workers, restarts), the launcher's further options, and the script with its arguments."""


def _program(name: str, module: str) -> list[str]:
    """Return a console script beside our interpreter, as users start it; else its module."""
    return [str(_BIN / name)] if (_BIN / name).exists() else [sys.executable, "-m", module]


def floor(workers: int, restarts: int, script: list[str], options: tuple[str, ...] = ()) -> list[str]:
    """Return the command of the minimal supervisor."""
    return [sys.executable, str(Path(__file__).with_name("floor.py")), str(workers), str(restarts), *script]


def ours(workers: int, restarts: int, script: list[str], options: tuple[str, ...] = ()) -> list[str]:
    """Return the command of `elastic run`."""
    program = [str(_BIN / "elastic"), "run"] if (_BIN / "elastic").exists() else [sys.executable, "-m", RUN_MODULE]
    return [*program, "--nproc-per-node", str(workers), "--max-restarts", str(restarts), *options, *script]


def torchrun(workers: int, restarts: int, script: list[str], options: tuple[str, ...] = ()) -> list[str]:
    """Return the command of torchrun, each time with a port that is free."""
    return _like_torchrun(_program("torchrun", "torch.distributed.run"))(workers, restarts, script, options)


def _like_torchrun(program: list[str]) -> Launcher:
    def command(workers: int, restarts: int, script: list[str], options: tuple[str, ...] = ()) -> list[str]:
        own = ["--nproc-per-node", str(workers), "--max-restarts", str(restarts), "--master-port", free_port()]
        return [*program, *own, *options, *script]

    return command


def ft_launcher(environment: Path) -> Launcher:
    """Return what makes commands of NVRx's ft_launcher in a virtual environment; its workers run there, too."""
    return _like_torchrun([str(_installed(environment, "ft_launcher", "nvidia-resiliency-ext"))])


def beside(environment: Path) -> Launcher:
    """Return what makes commands of the elastic-core in another virtual environment, such as an older version."""
    program = [str(_installed(environment, "elastic", "elastic-core")), "run"]

    def other(workers: int, restarts: int, script: list[str], options: tuple[str, ...] = ()) -> list[str]:
        return [*program, "--nproc-per-node", str(workers), "--max-restarts", str(restarts), *options, *script]

    return other


def _installed(environment: Path, name: str, distribution: str) -> Path:
    """Return a program of a virtual environment.

    Raises:
        SystemExit: it is not there.
    """
    program = environment.absolute() / "bin" / name
    if not program.exists():
        raise SystemExit(f"{environment} has no bin/{name}. Try: {environment}/bin/pip install {distribution}")
    return program


def version_of(distribution: str, environment: Path) -> str:
    """Return the version of a distribution in a virtual environment."""
    folders = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    return next((found.version for found in metadata.distributions(name=distribution, path=folders)), "unknown")


RUN_MODULE = "elastic_core.run"
ALL: dict[str, Launcher] = {FLOOR: floor, OURS: ours, TORCHRUN: torchrun}


def free_port() -> str:
    """Return a port that nobody has now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which nobody's options are set, and bytecode is kept as for any installed package."""
    ours = ("PET_", "ELASTIC_", "TORCHELASTIC_", "_ELASTIC")
    kept = {name: value for name, value in environ.items() if not name.startswith(ours)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"OMP_NUM_THREADS": "1"}


class Run:
    """One run of a launcher whose workers write lines `WORD RANK ATTEMPT PID NANOSECONDS` to stdout.

    Leaving it ends the launcher and every worker that spoke.
    """

    def __init__(self, command: list[str]) -> None:
        """Start it and note the time just before."""
        self._command = command
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed when the run is left
        self.workers: set[int] = set()
        self._buffer = b""
        self.began_ns = time.monotonic_ns()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0
        )

    @property
    def pid(self) -> int:
        """The launcher."""
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.workers:
            with suppress(ProcessLookupError):  # most launchers have ended them
                os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()

    def lines(self, word: str, count: int, *, attempt: int = 0) -> dict[int, int]:
        """Wait for so many lines of an attempt; return the workers' own time in ns by their pid."""
        found: dict[int, int] = {}
        end_s = time.monotonic() + DEADLINE_S
        while len(found) < count:
            said, _, of_attempt, pid, at_ns = self._line(end_s).split()
            self.workers.add(int(pid))
            if said == word and int(of_attempt) == attempt:
                found[int(pid)] = int(at_ns)
        return found

    def _line(self, end_s: float) -> str:
        stdout = self.process.stdout
        if stdout is None:
            raise RuntimeError("the run has no pipe")
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, end_s - time.monotonic()))
            chunk = os.read(stdout.fileno(), 65536) if ready else b""
            if not chunk:
                raise MeasureError(self._complaint("ended" if ready else f"said nothing for {DEADLINE_S:g} s"))
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def _complaint(self, what: str) -> str:
        self._stderr.seek(0)
        return f"{' '.join(self._command)!r} {what}:\n{self._stderr.read().decode(errors='replace')[-2000:]}"

    def end(self) -> int:
        """Wait until the launcher has ended; return the time in ns."""
        code = self.process.wait(DEADLINE_S)
        ended_ns = time.monotonic_ns()
        if code:
            raise MeasureError(self._complaint(f"ended with {code}"))
        return ended_ns
