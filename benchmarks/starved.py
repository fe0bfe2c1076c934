"""How late the agents of a run are while their workers import, by the scheduling class in which the workers start.

Seven agents with four workers each meet over one Redis server on this machine. A worker compiles the standard library
for some CPU time, as imports do. A thread of each agent sleeps 50 ms again and again and notes how late it wakes. Shows
for each class, in turns: the lateness, and how many rounds the run began. Each round after the first one means that
nodes were lost by starvation alone.

The agents share a session with the server unless `--own-sessions` is given. If the kernel has autogroups, they then
share the CPU time of one group, while each worker has a session, and so a group, of its own.

    python -m benchmarks.starved [--repetitions N] [--cpu-s S] [--lease-ttl S] [--own-sessions] [--ways plain,batch,...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.launchers import clean_environment
from benchmarks.redis_server import RedisServer
from benchmarks.standby import wait_for
from elastic_core.api import AgentHook, AgentStarted, RoundJoined

AGENTS, WORKERS = 7, 4
TICK_S: Final = 0.05
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
    "plain": [],
    "batch": ["chrt", "--batch", "0"],
    "idle": ["chrt", "--idle", "0"],
    "nice": ["nice", "-n", "19"],
}
"""What is put before a worker's command."""


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


def command(way: str, port: int, arguments: argparse.Namespace) -> list[str]:
    """Return an agent's."""
    rendezvous = ["--rdzv-backend", "redis", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "starved"]
    rendezvous += ["--rdzv-conf", f"lease_ttl={arguments.lease_ttl:g}", "--nnodes", str(AGENTS)]
    worker = ["--nproc-per-node", str(WORKERS), "--no-python", *WAYS[way], sys.executable, "worker.py"]
    agent = [sys.executable, "-m", "elastic_core.run", "-p", "benchmarks.starved:Lateness"]
    return [*agent, *rendezvous, *worker, str(arguments.cpu_s)]


def ready(folder: Path) -> bool:
    """Return whether all workers of one round are."""
    rounds = [path.name.split(".")[1] for path in folder.glob("ready.*")]
    return any(rounds.count(index) == AGENTS * WORKERS for index in rounds)


def take(way: str, arguments: argparse.Namespace) -> tuple[list[float], int]:
    """Return the sorted lateness of all agents until all workers were ready, and the number of rounds."""
    environment = clean_environment(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name) / "redis") as server:
        folder = Path(name)
        (folder / "worker.py").write_text(WORKER)
        agents = [
            subprocess.Popen(
                command(way, server.port, arguments),
                cwd=folder,
                env=environment,
                stderr=subprocess.DEVNULL,
                start_new_session=arguments.own_sessions,
            )
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
    return sorted(float(late_s) for late_s, _ in whole), max(int(rounds) for _, rounds in whole)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cpu-s", type=float, default=1.0)
    parser.add_argument("--lease-ttl", type=float, default=5.0)
    parser.add_argument("--own-sessions", action="store_true")
    parser.add_argument("--ways", default="plain,batch")
    arguments = parser.parse_args()
    print(f"{AGENTS} agents, {AGENTS * WORKERS} workers, {len(os.sched_getaffinity(0))} cores: lateness in ms, rounds")
    for _ in range(arguments.repetitions):
        for way in arguments.ways.split(","):
            late_s, rounds = take(way, arguments)
            parts = {part: late_s[int(part * (len(late_s) - 1))] * 1e3 for part in (0.5, 0.9, 0.99, 1.0)}
            words = "  ".join(f"p{part * 100:g} {late_ms:5.0f}" for part, late_ms in parts.items())
            print(f"  {way:<6} {words}  rounds {rounds}", flush=True)


if __name__ == "__main__":
    main()
