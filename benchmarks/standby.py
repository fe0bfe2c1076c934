"""How long a restart takes: kill -9 of one worker until all have torch imported and gloo ready.

The floor is a few lines of Python that watch a pidfd and have interpreters with torch ready. torchrun and ft_launcher
get `--standalone` and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, so that each round has a store of its own. Without either,
gloo often fails at their restart: it finds the addresses of the dead workers in the store.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from select import poll

from benchmarks.bench import Bench
from benchmarks.launchers import Launcher, free_port
from benchmarks.measure import MeasureError, Take
from benchmarks.stats import FLOOR, FT_LAUNCHER, OURS, TORCHRUN

STANDBY = f"{OURS} --standby"
TRIES = 5

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
DEADLINE_S = 120.0
SETTLED_S = 1.0
Ready = list[tuple[int, float]]


class RunEndedError(MeasureError):
    """The launcher has ended, or hangs, before its new workers are ready: the restart failed."""


def wait_for(condition: Callable[[], object], agent: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until the condition holds; raise RunEndedError if the launcher `agent` does not get there."""
    pause = threading.Event()
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            if agent is not None:
                raise RunEndedError(f"not ready within {DEADLINE_S:g} s")
            raise MeasureError(f"not within {DEADLINE_S:g} s")
        if agent is not None and agent.poll() is not None:
            raise RunEndedError(f"ended with {agent.returncode}")
        pause.wait(0.01)


def ready(folder: Path, attempt: int, workers: int, agent: subprocess.Popen[bytes] | None = None) -> Ready:
    """Return pid and moment of each worker of an attempt, once all are ready."""
    paths = [folder / f"{attempt}.{rank}" for rank in range(workers)]
    wait_for(lambda: all(path.exists() for path in paths), agent)
    words = [path.read_text().split() for path in paths]
    return [(int(pid), float(at)) for pid, at in words]


def settle() -> None:
    """Let the workers be ready for a while, before one is killed."""
    threading.Event().wait(SETTLED_S)


def launched(command: list[str], script: Path, folder: Path, workers: int) -> float:
    """Return the seconds of one restart under a launcher, whose command allows one restart of so many workers.

    Raises:
        RunEndedError: the launcher gave up. With torchrun it happens: its store may still hold the addresses of the
            workers before, and gloo connects to one that is gone.
    """
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agent = subprocess.Popen([*command, str(script), str(folder)], env=env, stderr=subprocess.DEVNULL)
    try:
        (_, (victim, _), *_) = ready(folder, 0, workers, agent)
        settle()
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


def floor(script: Path, folder: Path, workers: int) -> float:
    """Return the seconds of one restart where nothing is done but the needed."""
    with group(script, folder, workers, 0) as old, group(script, folder, workers, 1, "waits") as new:
        for process in new:
            assert process.stdout is not None
            process.stdout.readline()
        ready(folder, 0, workers)
        watch = poll()
        watch.register(os.pidfd_open(old[1].pid))
        settle()
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


def takes(group_size: int, *, cold: bool) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure: ms of a restart, and the runs that ended instead and were taken again.

    Args:
        group_size: Workers.
        cold: Whether ours takes part without `--standby`, too.
    """
    name = f"ready-{group_size}"

    def launchers(bench: Bench) -> Mapping[str, Take]:
        bench.need_torch()
        script, serial = Path(bench.script("ready", WORKER)), count()

        def fresh() -> Path:
            folder = bench.folder / f"{name}-{next(serial)}"
            folder.mkdir()
            return folder

        def least() -> Mapping[str, float]:
            return {name: floor(script, fresh(), group_size) * 1e3}

        def under(launcher: Launcher, option: str = "") -> Mapping[str, float]:
            command = launcher(group_size, 1, [], (option,) if option else ())
            for failed in range(TRIES):
                try:
                    seconds = launched(command, script, fresh(), group_size)
                except RunEndedError:
                    continue
                return {name: seconds * 1e3, f"{name}-lost": float(failed)}
            raise MeasureError(f"{' '.join(command)} did not restart its workers in {TRIES} runs")

        ours = {STANDBY: partial(under, bench.launchers[OURS], "--standby")}
        if cold:
            ours[OURS] = partial(under, bench.launchers[OURS])
        others = {
            name: partial(under, launcher, "--standalone" if name in (TORCHRUN, FT_LAUNCHER) else "")
            for name, launcher in bench.launchers.items()
            if name not in (FLOOR, OURS)
        }
        return {FLOOR: least, **ours, **others}

    return launchers
