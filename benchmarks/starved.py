"""How late the agents of a run are while their workers import, by the scheduling class in which the workers start.

Seven agents with four workers each meet over one Redis server on this machine. A worker compiles the standard library
for some CPU time, as imports do. A thread of each agent sleeps 50 ms again and again and notes how late it wakes. Each
round after the first one means that nodes were lost by starvation alone.

The agents share a session with the server. If the kernel has autogroups, they then share the CPU time of one group,
while each worker has a session, and so a group, of its own.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.bench import Bench
from benchmarks.measure import Figure, Take
from benchmarks.redis_server import RedisServer
from benchmarks.standby import wait_for
from benchmarks.stats import OURS
from elastic_core.api import AgentHook, AgentStarted, RoundJoined

AGENTS, WORKERS = 7, 4
TICK_S: Final = 0.05
CPU_S: Final = 1.0
"""That a worker uses before it is ready."""
LEASE_S: Final = 5.0
WORKER: Final = """
import os, sys, sysconfig, time
from pathlib import Path
sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
count = 0
while time.process_time() < float(sys.argv[1]):
    source = sources[count % len(sources)]
    compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    count += 1
Path(f"ready.{os.environ['ELASTIC_ROUND']}.{os.environ['RANK']}").touch()
time.sleep(600)
"""
WAYS: Final = {
    OURS: [],
    f"{OURS}, batch": ["chrt", "--batch", "0"],
    f"{OURS}, idle": ["chrt", "--idle", "0"],
    f"{OURS}, nice": ["nice", "-n", "19"],
}
"""What is put before a worker's command."""
_PARTS: Final = {"p50": 0.5, "p99": 0.99, "most": 1.0}
_LATE: Final = "lateness of an agent's thread while workers import"
FIGURES: Final = {
    "starved-p50": Figure(f"{_LATE}, half of all times", "ms"),
    "starved-p99": Figure(f"{_LATE}, 99 of 100 times", "ms"),
    "starved-most": Figure(f"{_LATE}, the latest", "ms"),
    "starved-rounds": Figure("rounds until all of 28 importing workers are ready", "rounds"),
}


class Lateness(AgentHook):
    """Writes how late a thread of the agent wakes, in seconds, a line each, with the number of rounds so far."""

    api_version: ClassVar[int] = 1
    rounds = 0

    def on_agent_started(self, event: AgentStarted) -> None:
        """Begin."""
        threading.Thread(target=self._tick, daemon=True).start()

    def on_round_joined(self, event: RoundJoined) -> None:
        """Count."""
        self.rounds += 1

    def _tick(self) -> None:
        pause = threading.Event()
        with Path(f"late.{os.getpid()}").open("w", buffering=1) as file:
            due_s = time.monotonic() + TICK_S
            while True:
                pause.wait(due_s - time.monotonic())
                now_s = time.monotonic()
                file.write(f"{now_s - due_s} {self.rounds}\n")
                due_s = now_s + TICK_S


def command(way: list[str], port: int) -> list[str]:
    """Return an agent's."""
    rendezvous = ["--rdzv-backend", "redis", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "starved"]
    rendezvous += ["--rdzv-conf", f"lease_ttl={LEASE_S:g}", "--nnodes", str(AGENTS)]
    worker = ["--nproc-per-node", str(WORKERS), "--no-python", *way, sys.executable, "worker.py"]
    agent = [sys.executable, "-m", "elastic_core.run", "-p", "benchmarks.starved:Lateness"]
    return [*agent, *rendezvous, *worker, str(CPU_S)]


def ready(folder: Path) -> bool:
    """Return whether all workers of one round are."""
    rounds = [path.name.split(".")[1] for path in folder.glob("ready.*")]
    return any(rounds.count(index) == AGENTS * WORKERS for index in rounds)


def takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of a measure, one for each scheduling class."""
    server = bench.redis()
    return {name: partial(_take, way, server) for name, way in WAYS.items()}


def _take(way: list[str], server: RedisServer) -> Mapping[str, float]:
    server.reset()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "worker.py").write_text(WORKER)
        agents = [
            subprocess.Popen(command(way, server.port), cwd=folder, env=environment, stderr=subprocess.DEVNULL)
            for _ in range(AGENTS)
        ]
        try:
            wait_for(lambda: ready(folder))
            lines = [line.split() for path in folder.glob("late.*") for line in path.read_text().splitlines()]
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait()
    whole = [line for line in lines if len(line) == 2]
    late_s = sorted(float(late) for late, _ in whole)
    found = {f"starved-{name}": late_s[int(part * (len(late_s) - 1))] * 1e3 for name, part in _PARTS.items()}
    return {**found, "starved-rounds": float(max(int(rounds) for _, rounds in whole))}
