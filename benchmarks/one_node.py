"""Runs of one node: start, end, restart, `--help`, and an agent whose workers only run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata

from benchmarks import procfs
from benchmarks.bench import Bench
from benchmarks.launchers import Launcher, Run
from benchmarks.measure import MeasureError, Take
from benchmarks.stats import FLOOR, OURS
from benchmarks.workers import GONE_AT_ONCE, LEAVE, STAY, STAY_ONCE

SETTLE_S = 1.0
"""A launcher has settled: nothing is read, imported or started because of what was before."""
NO_HOOKS = f"{OURS}, without hooks"
"""The core alone: all hooks of the installed distributions are turned off."""


def start(workers: int) -> Callable[[Bench], Mapping[str, Take]]:
    """From exec of the launcher to the first line of the last worker, in ms."""

    def take(launcher: Launcher, script: str) -> float:
        with Run(launcher(workers, 0, [script])) as run:
            first = run.lines("first", workers)
            run.end()
            return (max(first.values()) - run.began_ns) / 1e6

    return lambda bench: bench.each(take, bench.script("gone_at_once", GONE_AT_ONCE))


def finish(bench: Bench) -> Mapping[str, Take]:
    """From the end of the last of two workers to that of the launcher, in ms."""

    def take(launcher: Launcher, script: str) -> float:
        with Run(launcher(2, 0, [script])) as run:
            last = run.lines("last", 2)
            return (run.end() - max(last.values())) / 1e6

    return bench.each(take, bench.script("leave", LEAVE))


def restart(workers: int) -> Callable[[Bench], Mapping[str, Take]]:
    """From kill -9 of one worker to the first line of the last new one, in ms."""

    def take(launcher: Launcher, script: str) -> float:
        with Run(launcher(workers, 1, [script])) as run:
            old = run.lines("first", workers)
            time.sleep(SETTLE_S)  # noqa: TID251 -- a benchmark measures real time
            killed_ns = time.monotonic_ns()
            os.kill(next(iter(old)), signal.SIGKILL)
            return (max(run.lines("first", workers, attempt=1).values()) - killed_ns) / 1e6

    return lambda bench: bench.each(take, bench.script("stay_once", STAY_ONCE))


def help_(bench: Bench) -> Mapping[str, Take]:
    """The time of `--help` in ms; the floor is Python itself."""
    commands = {name: [*_bare(launcher), "--help"] for name, launcher in bench.launchers.items() if name != FLOOR}
    return {name: partial(_help, command) for name, command in {FLOOR: [sys.executable, "-c", ""], **commands}.items()}


def _bare(launcher: Launcher) -> list[str]:
    """Return a launcher's command without its options."""
    command = launcher(1, 0, [])
    return command[: command.index("--nproc-per-node")]


def _help(command: list[str]) -> float:
    began_ns = time.monotonic_ns()
    try:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MeasureError(str(error)) from error
    return (time.monotonic_ns() - began_ns) / 1e6


def agent(bench: Bench) -> Mapping[str, Take]:
    """Memory and threads of an agent with two workers, and what it does while they only run."""

    def take(launcher: Launcher, script: str, options: tuple[str, ...] = ()) -> Mapping[str, float]:
        with Run(launcher(2, 0, [script], options)) as run:
            run.lines("first", 2)
            time.sleep(2 * SETTLE_S)  # noqa: TID251 -- as above
            before = procfs.activity(run.pid)
            time.sleep(bench.size.idle_s)  # noqa: TID251 -- the time in which nothing should happen
            after = procfs.activity(run.pid)
            helpers = [pid for pid in procfs.children(run.pid) if pid not in run.workers]
            return {
                "agent-memory": procfs.pss_mib(run.pid),
                "agent-helpers": sum(map(procfs.pss_mib, helpers)),
                "agent-threads": procfs.threads(run.pid),
                "agent-cpu": (after.cpu_ms - before.cpu_ms) * 60 / bench.size.idle_s,
                "agent-wakeups": (after.switches - before.switches) * 60 / bench.size.idle_s,
            }

    script = bench.script("stay", STAY)
    off = [option for hook in metadata.entry_points(group="elastic_core.hooks") for option in ("-p", f"no:{hook.name}")]
    return bench.each(take, script) | {NO_HOOKS: partial(take, bench.launchers[OURS], script, tuple(off))}
