"""The measures: each gives one or several results, every launcher in turn."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import elastic, procfs, rendezvous, standby, tee, workers
from benchmarks.launchers import Launcher, Run
from benchmarks.measure import Result, in_turns, many_in_turns
from benchmarks.stats import FLOOR, OURS, TORCHRUN, Budget

SETTLE_S = 1.0
TRIES = 20
STANDBY = f"{OURS} --standby"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repetitions: int
    slow_repetitions: int
    start_workers: tuple[int, ...]
    restart_workers: tuple[int, ...]
    idle_s: float
    lines: int
    tee_repetitions: int


FULL = Size(
    repetitions=15,
    slow_repetitions=5,
    start_workers=(1, 2, 8, 32),
    restart_workers=(2, 8),
    idle_s=20.0,
    lines=1_000_000,
    tee_repetitions=3,
)
QUICK = Size(
    repetitions=3,
    slow_repetitions=1,
    start_workers=(1, 8),
    restart_workers=(2,),
    idle_s=3.0,
    lines=100_000,
    tee_repetitions=1,
)


@dataclass(frozen=True)
class Bench:
    """What measures share: where scripts lie, which launchers take part, how much is done."""

    folder: Path
    launchers: dict[str, Launcher]
    size: Size
    torch: bool
    """Whether torch is there: what needs it in the workers is left out without."""


def _script(bench: Bench, name: str) -> str:
    return workers.write(bench.folder, name.lower(), getattr(workers, name))


# --- start and end ---


def start(bench: Bench) -> Iterator[Result]:
    """From exec of the launcher to the first line of the last worker."""
    budgets = {1: Budget(times_floor=4, faster_than_torchrun=10), 8: Budget(times_floor=2)}
    script = _script(bench, "GONE_AT_ONCE")
    for count in bench.size.start_workers:
        takes = {name: partial(_start, launcher, count, script) for name, launcher in bench.launchers.items()}
        figures = in_turns(takes, bench.size.repetitions)
        title = f"exec to the first line of {_workers(count)}"
        yield Result(title, "ms", figures, budgets.get(count))


def _start(launcher: Launcher, count: int, script: str) -> float:
    with Run(launcher(count, 0, [script])) as run:
        first = run.lines("first", count)
        run.end()
        return (max(first.values()) - run.began_ns) / 1e6


def finish(bench: Bench) -> Iterator[Result]:
    """From the last worker's end to the launcher's."""
    script = _script(bench, "LEAVE")
    takes = {name: partial(_finish, launcher, 2, script) for name, launcher in bench.launchers.items()}
    yield Result("last worker's exit to our exit", "ms", in_turns(takes, bench.size.repetitions), Budget(at_most=20))


def _finish(launcher: Launcher, count: int, script: str) -> float:
    with Run(launcher(count, 0, [script])) as run:
        last = run.lines("last", count)
        return (run.end() - max(last.values())) / 1e6


def restart(bench: Bench) -> Iterator[Result]:
    """From kill -9 of one worker to the first line of the last new one."""
    script = _script(bench, "STAY_ONCE")
    for count in bench.size.restart_workers:
        takes = {name: partial(_restart, launcher, count, script) for name, launcher in bench.launchers.items()}
        title = f"kill -9 of one of {count} workers to {count} new first lines"
        yield Result(title, "ms", in_turns(takes, bench.size.repetitions), Budget(times_floor=1.3))


def _restart(launcher: Launcher, count: int, script: str) -> float:
    with Run(launcher(count, 1, [script])) as run:
        old = run.lines("first", count)
        time.sleep(SETTLE_S)  # noqa: TID251 -- a benchmark measures real time, and a launcher must have settled
        killed_ns = time.monotonic_ns()
        os.kill(next(iter(old)), signal.SIGKILL)
        return (max(run.lines("first", count, attempt=1).values()) - killed_ns) / 1e6


def restart_ready(bench: Bench) -> Iterator[Result]:
    """From kill -9 of one worker until all have imported torch and gloo has reduced a tensor."""
    if not bench.torch:
        return
    script = Path(workers.write(bench.folder, "ready", standby.WORKER))
    serial = iter(range(10**6))
    for count in bench.size.restart_workers:
        failures: dict[str, list[int]] = {OURS: [], STANDBY: [], TORCHRUN: []}

        def fresh(count: int = count) -> Path:
            folder = bench.folder / f"ready-{count}-{next(serial)}"
            folder.mkdir()
            return folder

        def under(launcher: Launcher, failed: list[int], *options: str, count: int = count) -> float:
            for _ in range(TRIES):
                command = launcher(count, 1, [], options)
                try:
                    return standby.launched(command, script, fresh(), count, spares=bool(options)) * 1e3
                except standby.RunEndedError:
                    failed.append(1)
            raise SystemExit(f"{' '.join(command)} did not restart its workers in {TRIES} runs")

        def least(count: int) -> float:
            return standby.floor(script, fresh(count), count) * 1e3

        takes: dict[str, Callable[[], float]] = {}
        if FLOOR in bench.launchers:
            takes[f"{FLOOR} (standby)"] = partial(least, count)
        if OURS in bench.launchers:
            takes[OURS] = partial(under, bench.launchers[OURS], failures[OURS])
            takes[STANDBY] = partial(under, bench.launchers[OURS], failures[STANDBY], *standby.SPARES)
        if TORCHRUN in bench.launchers:
            takes[TORCHRUN] = partial(under, bench.launchers[TORCHRUN], failures[TORCHRUN])
        title = f"kill -9 of one of {count} workers until torch is imported and gloo is ready"
        figures = in_turns(takes, bench.size.slow_repetitions)
        yield Result(title, "ms", figures, Budget(faster_than_torchrun=20), judged=STANDBY)
        lost = {name: [float(len(failures[name]))] for name in figures if name in failures}
        yield Result("runs that this killed instead, taken again", "runs", lost, Budget(at_most=0), judged=STANDBY)


def help_(bench: Bench) -> Iterator[Result]:
    """The time of `--help`; the floor is Python itself."""
    commands = {FLOOR: [sys.executable, "-c", "pass"]}
    commands |= {name: [*_bare(launcher), "--help"] for name, launcher in bench.launchers.items() if name != FLOOR}
    takes = {name: partial(_help, commands[name]) for name in bench.launchers}
    yield Result("--help", "ms", in_turns(takes, bench.size.repetitions), Budget(at_most=100))


def _bare(launcher: Launcher) -> list[str]:
    """Return a launcher's command without its options."""
    command = launcher(1, 0, [])
    return command[: command.index("--nproc-per-node")]


def _help(command: list[str]) -> float:
    began_ns = time.monotonic_ns()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.monotonic_ns() - began_ns) / 1e6


# --- the agent itself ---

_AGENT = {
    "pss": ("agent memory, PSS", "MiB", Budget(at_most=30)),
    "helpers": ("memory of its helper processes, PSS", "MiB", None),
    "threads": ("agent threads", "threads", None),
    "cpu": ("idle agent, CPU a minute", "ms", Budget(at_most=5)),
    "wakeups": ("idle agent, wake-ups a minute", "context switches", Budget(at_most=0)),
}


def agent(bench: Bench) -> Iterator[Result]:
    """Memory and threads of an agent with two workers, and what it does while they only run."""
    script = _script(bench, "STAY")
    takes = {name: partial(_agent, launcher, script, bench.size.idle_s) for name, launcher in bench.launchers.items()}
    taken = many_in_turns(takes, bench.size.tee_repetitions)
    for key, (title, unit, budget) in _AGENT.items():
        yield Result(title, unit, taken[key], budget)


def _agent(launcher: Launcher, script: str, idle_s: float) -> dict[str, float]:
    with Run(launcher(2, 0, [script])) as run:
        run.lines("first", 2)
        time.sleep(2 * SETTLE_S)  # noqa: TID251 -- as above
        before = procfs.activity(run.pid)
        time.sleep(idle_s)  # noqa: TID251 -- the time in which nothing should happen
        after = procfs.activity(run.pid)
        helpers = [pid for pid in procfs.children(run.pid) if pid not in run.workers]
        return {
            "pss": procfs.pss_mib(run.pid),
            "helpers": sum(map(procfs.pss_mib, helpers)),
            "threads": procfs.threads(run.pid),
            "cpu": (after.cpu_ms - before.cpu_ms) * 60 / idle_s,
            "wakeups": (after.switches - before.switches) * 60 / idle_s,
        }


def console(bench: Bench) -> Iterator[Result]:
    """Tee with a prefix into a pipe: its price, its losses, its delay."""
    launchers = {name: launcher for name, launcher in bench.launchers.items() if name != FLOOR}
    for count in (1, 4):
        for how, text in (("in blocks", workers.IN_BLOCKS), ("printed", workers.PRINTED)):
            floods = {
                name: partial(tee.flood, launcher, bench.folder, text, count, bench.size.lines)
                for name, launcher in launchers.items()
            }
            taken = many_in_turns(floods, bench.size.tee_repetitions)
            whose = f"tee of {_workers(count)}, {bench.size.lines} lines {how}"
            yield Result(f"{whose}: agent CPU a line", "us", taken["cpu_us"], Budget(at_most=0.2))
            yield Result(f"{whose}: lost", "lines", taken["lost"], Budget(at_most=0))
            yield Result(f"{whose}: torn, doubled or wrong", "lines", taken["wrong"], Budget(at_most=0))
    waits = {name: partial(tee.delay_ms, launcher, bench.folder) for name, launcher in launchers.items()}
    yield Result(
        "delay of a line into a pipe, median of 40",
        "ms",
        in_turns(waits, bench.size.slow_repetitions),
        Budget(at_most=20),
    )


def meeting(bench: Bench) -> Iterator[Result]:
    """Rounds of many simulated nodes over Redis, and of some over torch's c10d."""
    size = rendezvous.QUICK if bench.size is QUICK else rendezvous.FULL
    yield from rendezvous.measure(bench.folder, size, torch=bench.torch)


def coming_and_going(bench: Bench) -> Iterator[Result]:
    """Nodes that join and die, and workers that die, in a run of two nodes."""
    yield from elastic.measure(bench.folder, elastic.QUICK if bench.size is QUICK else elastic.FULL, torch=bench.torch)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


MEASURES: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "start": start,
    "restart": restart,
    "exit": finish,
    "help": help_,
    "agent": agent,
    "tee": console,
    "ready": restart_ready,
    "rendezvous": meeting,
    "elastic": coming_and_going,
}
