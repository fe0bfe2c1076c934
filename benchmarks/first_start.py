"""How long the first start takes: from exec of the launcher until all workers have torch imported and gloo ready.

The floor is a few lines of Python that import torch once and fork. The memory is that of all workers with the processes
that they are started from (PSS, without the launcher).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench
from benchmarks.launchers import Launcher, free_port
from benchmarks.measure import Take
from benchmarks.procfs import children, pss_mib
from benchmarks.standby import STANDBY, WORKER, ready
from benchmarks.stats import FLOOR, FT_LAUNCHER, OURS, TORCHRUN

_FLOOR: Final = """
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


def takes(group_size: int) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure: ms until all workers are ready, and their memory in MiB."""
    name = f"first-start-{group_size}"

    def launchers(bench: Bench) -> Mapping[str, Take]:
        bench.need_torch()
        script, serial = bench.script("first", WORKER), count()
        floor_script = bench.script("first_floor", _FLOOR)

        def take(launcher: Launcher, options: tuple[str, ...], variables: Mapping[str, str]) -> Mapping[str, float]:
            folder = bench.folder / f"first-{group_size}-{next(serial)}"
            folder.mkdir()
            command = launcher(group_size, 0, [script, str(folder)], options)
            seconds, memory_mib = start(command, group_size, folder, variables)
            return {name: seconds * 1e3, f"{name}-memory": memory_mib}

        def floor(workers: int, _restarts: int, worker: list[str], _options: tuple[str, ...] = ()) -> list[str]:
            return [sys.executable, floor_script, worker[0], str(workers), *worker[1:]]

        def least() -> Mapping[str, float]:
            place = {"WORLD_SIZE": str(group_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
            return take(floor, (), place | {"TORCHELASTIC_RESTART_COUNT": "0"})

        found: dict[str, Take] = {FLOOR: least}
        for launcher_name, launcher in bench.launchers.items():
            if launcher_name != FLOOR:
                options = ("--standalone",) if launcher_name in (TORCHRUN, FT_LAUNCHER) else ()
                found[launcher_name] = partial(take, launcher, options, {})
        found[STANDBY] = partial(take, bench.launchers[OURS], ("--standby",), {})
        return found

    return launchers


def start(command: list[str], workers: int, folder: Path, variables: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds from exec until the last worker is ready, and the PSS of the launcher's descendants in MiB."""
    began_s = time.monotonic()
    launcher = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
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
    return max(at for _, at in found) - began_s, memory


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of all processes below one."""
    for child in children(pid):
        yield child
        yield from descendants(child)
