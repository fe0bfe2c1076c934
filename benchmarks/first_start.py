"""How long the first start takes: from exec of the launcher until all workers have torch imported and gloo ready.

Compares `torchrun`, `elastic run`, `elastic run --standby` (forks) and the floor (a few lines of Python that import
torch once and fork), in turns, on one machine. Prints medians, the ratio to torchrun, and the memory of all workers
with the processes that they are started from (PSS, without the launcher). Needs torch.

    python -m benchmarks.first_start [--workers N] [--repetitions N] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.launchers import clean_environment
from benchmarks.procfs import children, pss_mib
from benchmarks.standby import free_port, ready

TORCHRUN: Final = "torchrun"
WORKER: Final = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
at = time.monotonic()
assert total.item() == dist.get_world_size()
path = f"{sys.argv[1]}/0.{os.environ['RANK']}"
with open(path + ".part", "w") as file:
    file.write(f"{os.getpid()} {at}")
os.rename(path + ".part", path)
time.sleep(600)
"""
FLOOR: Final = """
import gc, os, sys, torch, torch.distributed
if os.fork() == 0:
    os._exit(0)  # threads that end at a fork
os.wait()
gc.collect()
gc.freeze()
source = compile(open(sys.argv.pop(1)).read(), "worker", "exec")
for rank in range(int(sys.argv.pop(1))):
    if os.fork() == 0:
        os.environ["RANK"] = str(rank)
        exec(source)
os.wait()
"""
END_S: Final = 60.0


class Start(NamedTuple):
    """One start."""

    ready_s: float
    """From exec until the last worker was ready."""
    memory_mib: float
    """The PSS of the launcher's descendants: workers, and the interpreter that they were forked from."""


def take(command: list[str], workers: int, folder: Path, variables: dict[str, str]) -> Start:
    """Start it once."""
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    began_s = time.monotonic()
    launcher = subprocess.Popen([*command, str(folder)], env=environment, stderr=subprocess.DEVNULL)
    try:
        found = ready(folder, 0, workers, launcher)
        memory = sum(map(pss_mib, descendants(launcher.pid)))
    finally:
        below = list(descendants(launcher.pid))
        launcher.terminate()
        try:
            launcher.wait(END_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)  # what the floor leaves
    return Start(max(at for _, at in found) - began_s, memory)


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of all processes below one."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    workers: int = arguments.workers
    clean = clean_environment(os.environ)
    os.environ.clear()
    os.environ.update(clean)
    taken: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory() as base:
        script, floor = Path(base, "worker.py"), Path(base, "floor.py")
        script.write_text(WORKER)
        floor.write_text(FLOOR)
        ways = _ways(workers, str(script), str(floor))
        for turn in range(arguments.repetitions):
            for name, way in ways.items():
                taken.setdefault(name, []).append(way(Path(base, f"{turn}-{name}".replace(" ", "_"))))
    print(f"exec until {workers} workers have torch and gloo is ready, median of {arguments.repetitions}")
    slow_s = statistics.median(start.ready_s for start in taken[TORCHRUN])
    for name, starts in taken.items():
        middle_s = statistics.median(start.ready_s for start in starts)
        memory = statistics.median(start.memory_mib for start in starts)
        spread = f"{min(starts).ready_s:.2f} to {max(starts).ready_s:.2f}"
        print(f"  {name:<22} {middle_s:6.2f} s ({spread})   {middle_s / slow_s:4.2f} of torchrun   {memory:5.0f} MiB")
    if arguments.json is not None:
        figures = {name: [start._asdict() for start in starts] for name, starts in taken.items()}
        arguments.json.write_text(json.dumps(figures))


def _ways(workers: int, script: str, floor: str) -> dict[str, Callable[[Path], Start]]:
    nproc = ["--nproc-per-node", str(workers)]
    ours = [sys.executable, "-m", "elastic_core.run", *nproc]
    torchs = [sys.executable, "-m", "torch.distributed.run", "--standalone", *nproc]
    place = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
    return {
        TORCHRUN: lambda folder: take([*torchs, script], workers, folder, {}),
        "elastic run": lambda folder: take([*ours, script], workers, folder, {}),
        "elastic run --standby": lambda folder: take([*ours, "--standby", script], workers, folder, {}),
        "floor": lambda folder: take(
            [sys.executable, floor, script, str(workers)], workers, folder, {**place, "MASTER_PORT": free_port()}
        ),
    }


if __name__ == "__main__":
    main()
