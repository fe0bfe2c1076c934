"""How long restarts take if kills come in a row: each as soon as all workers of the last restart are ready.

The time is that from a SIGKILL of one worker until all workers are ready again, after a collective of gloo. The floor
(`benchmarks/floor.py`) starts every worker from nothing, so it gets fewer kills. If the name server loses a query of
torch's store, a restart takes 5 s longer, under any launcher: `benchmarks/names.py` looks for that.
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import standby
from benchmarks.bench import Bench
from benchmarks.launchers import Launcher, free_port
from benchmarks.measure import Figure, Take
from benchmarks.standby import STANDBY
from benchmarks.stats import FLOOR, OURS, Budget

KILLS = {STANDBY: 25, FLOOR: 5}
SMALLEST = 2
"""Kills where a run only shows that it works."""


def figures(group_size: int, limit_ms: float) -> dict[str, Figure]:
    """Return the figures of a measure, of which the longest restart has a limit."""
    title = f"kills of one of {group_size} workers in a row, until gloo is ready"
    return {
        f"kills-{group_size}": Figure(f"{title}: median", "ms"),
        f"kills-{group_size}-most": Figure(f"{title}: longest", "ms", {STANDBY: Budget(at_most=limit_ms)}),
    }


def takes(group_size: int, *, floor: bool) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure, with the floor or without."""

    def launchers(bench: Bench) -> Mapping[str, Take]:
        bench.need_torch()
        script, serial = bench.script("kills", standby.WORKER), count()

        def take(name: str, launcher: Launcher, options: tuple[str, ...]) -> Mapping[str, float]:
            folder = bench.folder / f"kills-{group_size}-{next(serial)}"
            folder.mkdir()
            kills = KILLS[name] if bench.size.most_turns > 1 else SMALLEST
            command = launcher(group_size, kills, [script, str(folder)], options)
            ms = [seconds * 1e3 for seconds in row(command, folder, group_size, kills, floor=name == FLOOR)]
            return {f"kills-{group_size}": statistics.median(ms), f"kills-{group_size}-most": max(ms)}

        found = {STANDBY: partial(take, STANDBY, bench.launchers[OURS], ("--restart-backoff", "0", "--standby"))}
        if floor:
            found[FLOOR] = partial(take, FLOOR, bench.launchers[FLOOR], ())
        return found

    return launchers


def row(command: list[str], folder: Path, workers: int, kills: int, *, floor: bool) -> list[float]:
    """Return the seconds of each restart, in order."""
    env = os.environ | ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} if floor else {})
    agent = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
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
        if floor:  # it leaves its workers behind
            for pid, _ in alive:
                os.kill(pid, signal.SIGKILL)
        agent.wait()
    return taken
