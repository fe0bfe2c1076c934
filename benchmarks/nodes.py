"""Several nodes on this machine: agents of one run, and one pipe on which all of their workers say what they do."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import workers
from benchmarks.launchers import RUN_MODULE, free_port
from benchmarks.measure import MeasureError
from benchmarks.stats import OURS, TORCHRUN

ON_ETCD = f"{OURS}, etcd"
"""Ours without a word more is over Redis."""
LIMIT_S = 60.0
_END_S = 10.0
_BIN = Path(sys.executable).parent

WORKER = """
import os, signal, sys, time
pipe = os.open(sys.argv[1], os.O_WRONLY)
def speak(word):
    about = os.environ["BENCH_NODE"], os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), time.monotonic_ns()
    os.write(pipe, " ".join(map(str, (word, *about))).encode() + b"\\n")
def leave(*_):
    speak("last")
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
speak("first")
time.sleep(600)
"""


class SilenceError(MeasureError):
    """The workers did not say what was waited for."""


@dataclass(frozen=True)
class Said:
    """One line of a worker: its first, or its last before it was stopped."""

    word: str
    node: str
    rank: int
    world_size: int
    pid: int
    at_ns: int


def ours(backend: str, endpoint: str) -> "Command":
    """Return how `elastic run` is started, over a backend."""
    program = [str(_BIN / "elastic"), "run"] if (_BIN / "elastic").exists() else [sys.executable, "-m", RUN_MODULE]
    return lambda node, run: [*program, *_shared(backend, endpoint, run), "--node-id", node]


def torchrun() -> "Command":
    """Return how torchrun is started, over c10d, the store in the first agent."""
    program = _BIN / "torchrun"
    start = [str(program)] if program.exists() else [sys.executable, "-m", "torch.distributed.run"]
    return lambda _, run: [*start, *_shared("c10d", f"127.0.0.1:{run.port}", run)]


def _shared(backend: str, endpoint: str, run: "Nodes") -> list[str]:
    return [
        *("--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", run.run_id, "--nnodes", run.nnodes),
        *("--nproc-per-node", str(run.nproc), "--max-restarts", "3", "--local-addr", "127.0.0.1"),
        *("--rdzv-conf", "last_call_timeout=1,join_timeout=60"),
    ]


Command = Callable[[str, "Nodes"], list[str]]


class Nodes:
    """One run. Leaving it ends all agents, and every worker that spoke."""

    _runs = 0

    def __init__(self, folder: Path, command: Command, *, nnodes: str, nproc: int, script: str = WORKER) -> None:
        """Start nothing yet."""
        Nodes._runs += 1
        self.run_id = f"bench-{os.getpid()}-{Nodes._runs}"
        self.nnodes, self.nproc, self.port = nnodes, nproc, free_port()
        self._command = command
        self._pipe = folder / f"said-{Nodes._runs}"
        os.mkfifo(self._pipe)
        self._fd = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)  # for both: it never ends
        self._script = workers.write(folder, "node", script)
        self._stderr = (folder / f"stderr-{Nodes._runs}").open("wb")
        self._buffer = b""
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.said: list[Said] = []

    def start(self, node: str) -> int:
        """Start a node's agent; return the time just before, in ns."""
        # Without it, torchrun's agents of both nodes die when a node joins.
        env = os.environ | {"BENCH_NODE": node, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [*self._command(node, self), self._script, str(self._pipe)]
        began_ns = time.monotonic_ns()
        self.agents[node] = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )
        return began_ns

    def firsts(self, count: int, *, world_size: int, after_ns: int = 0, within_s: float = LIMIT_S) -> Sequence[Said]:
        """Wait for so many first lines of workers that began after a time, in a world of this size.

        Raises:
            SilenceError: they did not come.
        """
        end_s = time.monotonic() + within_s
        while True:
            found = [
                said
                for said in self.said
                if said.word == "first" and said.world_size == world_size and said.at_ns > after_ns
            ]
            if len(found) >= count:
                return found
            self._read(end_s)

    def _read(self, end_s: float) -> None:
        if not select.select([self._fd], [], [], max(0.0, end_s - time.monotonic()))[0]:
            raise SilenceError(f"{self.run_id}: {len(self.said)} lines, and no more. {self._stderr.name}")
        *lines, self._buffer = (self._buffer + os.read(self._fd, 65536)).split(b"\n")
        for line in lines:
            word, node, *numbers = line.decode().split()
            self.said.append(Said(word, node, *map(int, numbers)))

    def lasts(self, node: str, *, after_ns: int) -> Sequence[Said]:
        """Return the last lines of a node's workers that were stopped after a time."""
        return [said for said in self.said if said.word == "last" and said.node == node and said.at_ns > after_ns]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents.values():
            agent.terminate()
        for agent in self.agents.values():
            try:
                agent.wait(_END_S)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        with suppress(SilenceError):
            self._read(time.monotonic())
        for said in self.said:
            if Path(f"/proc/{said.pid}/cmdline").exists() and self._is_ours(said.pid):
                with suppress(ProcessLookupError):
                    os.kill(said.pid, signal.SIGKILL)
        os.close(self._fd)
        self._pipe.unlink()
        self._stderr.close()

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):  # it has ended
            return str(self._pipe).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False


def commands(redis: str, etcd: str, *, torch: bool) -> dict[str, Command]:
    """Return who takes part."""
    own = {OURS: ours("redis", redis), ON_ETCD: ours("etcd", etcd)}
    return own | ({TORCHRUN: torchrun()} if torch else {})
