"""How long restarts take if kills come in a row: each as soon as all workers of the last restart are ready.

Compares `elastic run`, `elastic run --standby` and the floor (`benchmarks/floor.py`, which starts every worker from
nothing), in turns, on one machine. Prints for each the median, the ninth decile and the longest time from a SIGKILL of
one worker until all workers are ready again. With torch a worker is ready after a collective of gloo; without it
(`--no-torch`) when its interpreter runs.

    python -m benchmarks.kills [--workers N] [--kills N] [--repetitions N] [--no-torch] [--json FILE]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks import standby
from benchmarks.launchers import clean_environment

PLAIN: Final = """
import os, sys, time
at = time.monotonic()
path = f"{sys.argv[1]}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
with open(path + ".part", "w") as file:
    file.write(f"{os.getpid()} {at}")
os.rename(path + ".part", path)
time.sleep(600)
"""


def command(way: str, workers: int, kills: int, script: Path, folder: Path) -> list[str]:
    """Return the launcher's command line."""
    if way == "floor":
        floor = Path(__file__).with_name("floor.py")
        return [sys.executable, str(floor), str(workers), str(kills), str(script), str(folder)]
    options = ["--nproc-per-node", str(workers), "--max-restarts", str(kills), "--restart-backoff", "0"]
    standby_options = ["--standby"] if way.endswith("--standby") else []
    return [sys.executable, "-m", "elastic_core.run", *options, *standby_options, str(script), str(folder)]


def take(way: str, arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Return the seconds of each restart, in order."""
    script = folder / "worker.py"
    script.write_text(PLAIN if arguments.no_torch else standby.WORKER)
    env = clean_environment(os.environ) | {"OMP_NUM_THREADS": "1"}
    if way == "floor":
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": standby.free_port()}
    workers, kills = arguments.workers, arguments.kills
    agent = subprocess.Popen(command(way, workers, kills, script, folder), env=env, stderr=subprocess.DEVNULL)
    taken: list[float] = []
    alive: standby.Ready = []
    try:
        alive = standby.ready(folder, 0, workers, agent)
        for attempt in range(1, kills + 1):
            victim, at_s = alive[attempt % workers][0], time.monotonic()
            os.kill(victim, signal.SIGKILL)
            alive = standby.ready(folder, attempt, workers, agent)
            taken.append(max(ready_s for _, ready_s in alive) - at_s)
    finally:
        agent.terminate()
        if way == "floor":  # it leaves its workers behind
            for pid, _ in alive:
                os.kill(pid, signal.SIGKILL)
        agent.wait()
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--no-torch", action="store_true", help="workers without torch")
    parser.add_argument("--json", type=Path, help="where all times are written, in seconds")
    arguments = parser.parse_args()
    taken: dict[str, list[float]] = {"elastic run": [], "elastic run --standby": [], "floor": []}
    for _ in range(arguments.repetitions):
        for way, times in taken.items():
            with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder:
                times += take(way, arguments, Path(folder))
    ready = "their interpreters run" if arguments.no_torch else "gloo is ready"
    print(f"kill -9 of one of {arguments.workers} workers until {ready}, as soon as the last restart is over; ms")
    for way, times in taken.items():
        parts = {"median": 0.5, "p90": 0.9, "longest": 1.0}
        ordered = sorted(times)
        figures = {name: ordered[int(part * (len(ordered) - 1))] * 1e3 for name, part in parts.items()}
        print(f"  {way:<22} " + "  ".join(f"{name} {figure:6.0f}" for name, figure in figures.items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"workers": arguments.workers, "seconds": taken}) + "\n")


if __name__ == "__main__":
    main()
