"""How long a restart takes: kill -9 of one worker until all have torch imported and gloo ready.

Compares `torchrun`, `elastic run`, the same with spares and with forks, and the floor (a few lines of Python that watch
a pidfd and have interpreters with torch ready), in turns, on one machine; prints medians, and how much faster each is
than torchrun. Needs torch. torchrun gets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which gloo often fails at its
restart: it finds the addresses of the dead workers in the store.

    python benchmarks/standby.py [--workers N] [--repetitions N]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import poll

WORKER = """
import os, sys, time
import torch
import torch.distributed as dist
if sys.argv[2:] == ["waits"]:
    print("waits", flush=True)
    os.environ["MASTER_PORT"] = sys.stdin.readline()
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
at = time.monotonic()
assert total.item() == dist.get_world_size()
path = f"{sys.argv[1]}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
with open(path + ".part", "w") as file:
    file.write(f"{os.getpid()} {at}")
os.rename(path + ".part", path)
time.sleep(600)
"""
SPARES = ("--standby", "--standby-start", "spawn")
SPARE_MARK = b"elastic_standby/spare.py"
DEADLINE_S = 120.0
SETTLED_S = 1.0
Ready = list[tuple[int, float]]


class RunEndedError(Exception):
    """The launcher has ended, or hangs, before its new workers are ready: the restart failed."""


def wait_for(condition: Callable[[], object], agent: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until the condition holds; raise RunEndedError if the launcher `agent` does not get there."""
    pause = threading.Event()
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            if agent is not None:
                raise RunEndedError(f"not ready within {DEADLINE_S:g} s")
            raise SystemExit(f"not within {DEADLINE_S:g} s")
        if agent is not None and agent.poll() is not None:
            raise RunEndedError(f"ended with {agent.returncode}")
        pause.wait(0.01)


def ready(folder: Path, attempt: int, workers: int, agent: subprocess.Popen[bytes] | None = None) -> Ready:
    """Return pid and moment of each worker of an attempt, once all are ready."""
    paths = [folder / f"{attempt}.{rank}" for rank in range(workers)]
    wait_for(lambda: all(path.exists() for path in paths), agent)
    words = [path.read_text().split() for path in paths]
    return [(int(pid), float(at)) for pid, at in words]


def children_of(pid: int) -> list[int]:
    """Return a process's children."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def idle_spares(agent: int) -> int:
    """Return how many of the agent's children are spares that sleep."""
    count = 0
    for child in children_of(agent):
        try:
            command, stat = (Path(f"/proc/{child}/{name}").read_bytes() for name in ("cmdline", "stat"))
        except OSError:
            continue
        count += SPARE_MARK in command and stat.rpartition(b")")[2].split()[0] == b"S"
    return count


def settle(calm: Callable[[], bool]) -> None:
    """Wait until it has been calm for a while."""
    since_s = time.monotonic()

    def long_calm() -> bool:
        nonlocal since_s
        if not calm():
            since_s = time.monotonic()
        return time.monotonic() - since_s > SETTLED_S

    wait_for(long_calm)


def launched(command: list[str], script: Path, folder: Path, workers: int, *, spares: bool) -> float:
    """Return the seconds of one restart under a launcher.

    Raises:
        RunEndedError: the launcher gave up. With torchrun it happens: its store may still hold the addresses of the
            workers before, and gloo connects to one that is gone.
    """
    options = ["--nproc-per-node", str(workers), "--max-restarts", "1"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agent = subprocess.Popen([*command, *options, str(script), str(folder)], env=env, stderr=subprocess.DEVNULL)
    try:
        (_, (victim, _), *_) = ready(folder, 0, workers, agent)
        settle(lambda: not spares or idle_spares(agent.pid) == workers)
        began_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return max(at for _, at in ready(folder, 1, workers, agent)) - began_s
    finally:
        agent.terminate()
        agent.wait(DEADLINE_S)


@contextmanager
def group(script: Path, folder: Path, workers: int, attempt: int, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a worker group without a launcher."""
    port = free_port()
    base = os.environ | {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    base |= {"TORCHELASTIC_RESTART_COUNT": str(attempt), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), *more],
            env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def free_port() -> str:
    """Return a port that nobody has now."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def floor(script: Path, folder: Path, workers: int) -> float:
    """Return the seconds of one restart where nothing is done but the needed."""
    with group(script, folder, workers, 0) as old, group(script, folder, workers, 1, "waits") as new:
        for process in new:
            assert process.stdout is not None
            process.stdout.readline()
        ready(folder, 0, workers)
        watch = poll()
        watch.register(os.pidfd_open(old[1].pid))
        settle(lambda: True)
        began_s = time.monotonic()
        old[1].kill()
        watch.poll()
        for process in old:
            process.kill()
        for process in old:
            process.wait()
        port = free_port()
        for process in new:
            assert process.stdin is not None
            process.stdin.write(port + "\n")
            process.stdin.flush()
        return max(at for _, at in ready(folder, 1, workers)) - began_s


def insistently(way: Callable[[Path, Path], float], script: Path, base: Path) -> float:
    """Take a figure, again if the run ended instead of restarting its workers, at most twenty times."""
    for trial in range(20):
        folder = base / str(trial)
        folder.mkdir(parents=True)
        try:
            return way(script, folder)
        except RunEndedError as error:
            print(f"{base.name}: {error}, once more", file=sys.stderr)
    raise SystemExit(f"{base.name}: no restart in twenty runs")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    ours = [sys.executable, "-m", "elastic_core.run"]
    torchs = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    workers: int = arguments.workers
    ways: dict[str, Callable[[Path, Path], float]] = {
        "torchrun": lambda s, f: launched(torchs, s, f, workers, spares=False),
        "elastic run": lambda s, f: launched(ours, s, f, workers, spares=False),
        "elastic run, spares": lambda s, f: launched([*ours, *SPARES], s, f, workers, spares=True),
        "elastic run, forks": lambda s, f: launched([*ours, "--standby"], s, f, workers, spares=False),
        "floor": lambda s, f: floor(s, f, workers),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as base:
        script = Path(base) / "worker.py"
        script.write_text(WORKER)
        for turn in range(arguments.repetitions):
            for name, way in ways.items():
                taken[name].append(insistently(way, script, Path(base) / f"{turn}-{name}".replace(" ", "_")))
    slow_s = statistics.median(taken["torchrun"])
    print(f"kill -9 of one of {workers} workers to gloo ready, ms, median of {arguments.repetitions}")
    for name, seconds in taken.items():
        middle_s = statistics.median(seconds)
        spread = f"{min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}"
        print(f"  {name:<22} {middle_s * 1e3:7.0f}   ({spread})   {slow_s / middle_s:5.1f} x")


if __name__ == "__main__":
    main()
