"""What happens when nodes come and go: agents of two nodes here, over Redis and etcd, beside torchrun over c10d."""

import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import procfs
from benchmarks.etcd_server import EtcdServer
from benchmarks.measure import Result, many_in_turns
from benchmarks.nodes import ON_ETCD, Command, Nodes, SilenceError, commands
from benchmarks.redis_server import RedisServer
from benchmarks.stats import OURS, TORCHRUN, Budget

SETTLE_S = 1.5
"""An agent has settled: nothing is read or renewed because of what was before."""
IDLE_MS = {OURS: 20, ON_ETCD: 60}
"""What an agent may use of a core in a minute in which nothing happens."""
NEVER_S = 30.0
"""What has not come by then is called never."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repetitions: int
    torchrun_repetitions: int
    workers: tuple[int, ...]
    never: bool
    """Whether to wait for what torchrun never does."""
    idle_s: float


FULL = Size(repetitions=5, torchrun_repetitions=2, workers=(2, 8), never=True, idle_s=30.0)
QUICK = Size(repetitions=1, torchrun_repetitions=1, workers=(2,), never=False, idle_s=3.0)


def measure(folder: Path, size: Size, *, torch: bool) -> Iterator[Result]:
    """Join, loss of an agent, loss of a worker, and nothing at all."""
    with RedisServer(folder / "redis") as redis, EtcdServer(folder / "etcd") as etcd:
        takes = commands(redis.endpoint, etcd.endpoint, torch=torch)
        joined = _turns(size, {name: partial(_join, folder, command) for name, command in takes.items()})
        yield Result("a node joins (1:4, last call 1 s): its start to all restarted", "ms", joined["all"], Budget(400))
        yield Result("the same: how long the old worker stands still", "ms", joined["still"], Budget(250))
        may_wait = {name: command for name, command in takes.items() if name != TORCHRUN or size.never}
        killed = _turns(size, {name: partial(_agent_killed, folder, command) for name, command in may_wait.items()})
        yield Result(
            "agent of one of two nodes killed, survivors restarted", "ms", _finite(killed["all"]), Budget(1000)
        )
        never = {name: [float(sum(map(math.isinf, values)))] for name, values in killed["all"].items()}
        yield Result(f"the same: runs whose survivors were not restarted in {NEVER_S:g} s", "runs", never, Budget(0))
        for count in size.workers:
            restarts = {name: partial(_restart, folder, command, count) for name, command in takes.items()}
            title = f"kill -9 of one of {count} workers on two nodes to {count} new first lines"
            limit = {2: 150, 8: 300}.get(count)
            yield Result(title, "ms", _turns(size, restarts)["all"], Budget(limit) if limit else None)
        idle = {name: partial(_idle, folder, command, size.idle_s) for name, command in takes.items()}
        yield from _idle_results(many_in_turns(idle, size.torchrun_repetitions))


def _idle_results(figures: dict[str, dict[str, list[float]]]) -> Iterator[Result]:
    for name, limit in IDLE_MS.items():
        taken = {who: figures["cpu"][who] for who in (name, TORCHRUN) if who in figures["cpu"]}
        title = f"idle agent of one of two nodes ({name}): CPU a minute"
        yield Result(title, "ms", taken, Budget(limit), judged=name)
    yield Result("the same: wake-ups a minute", "context switches", figures["switches"])
    yield Result("the same: memory, PSS", "MiB", figures["pss"], Budget(30))


def _turns(size: Size, takes: dict[str, partial[dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Take ours and torchrun's in turns; ours go on when torchrun, which takes ten times as long, has had its share."""
    figures = many_in_turns(takes, min(size.repetitions, size.torchrun_repetitions))
    own = {launcher: take for launcher, take in takes.items() if launcher != TORCHRUN}
    more = many_in_turns(own, size.repetitions - size.torchrun_repetitions)
    for name, by_launcher in more.items():
        for launcher, values in by_launcher.items():
            figures[name][launcher] += values
    return figures


def _finite(figures: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [value for value in values if not math.isinf(value)] for name, values in figures.items()}


def _settle() -> None:
    time.sleep(SETTLE_S)  # noqa: TID251 -- a benchmark measures real time


def _join(folder: Path, command: Command) -> dict[str, float]:
    with Nodes(folder, command, nnodes="1:4", nproc=1) as run:
        run.start("a")
        run.firsts(1, world_size=1)
        _settle()
        began_ns = run.start("b")
        new = {said.node: said.at_ns for said in run.firsts(2, world_size=2, after_ns=began_ns)}
        (stopped,) = run.lasts("a", after_ns=began_ns)
        return {"all": (max(new.values()) - began_ns) / 1e6, "still": (new["a"] - stopped.at_ns) / 1e6}


def _two(run: Nodes, nproc: int) -> list[int]:
    """Start two nodes; return the pids of the workers of the second."""
    run.start("a")
    run.start("b")
    firsts = run.firsts(2 * nproc, world_size=2 * nproc)
    _settle()
    return [said.pid for said in firsts if said.node == "b"]


def _agent_killed(folder: Path, command: Command) -> dict[str, float]:
    with Nodes(folder, command, nnodes="1:2", nproc=1) as run:
        _two(run, 1)
        killed_ns = time.monotonic_ns()
        run.agents["b"].kill()
        try:
            (new,) = run.firsts(1, world_size=1, after_ns=killed_ns, within_s=NEVER_S)
        except SilenceError:
            return {"all": math.inf}
        return {"all": (new.at_ns - killed_ns) / 1e6}


def _restart(folder: Path, command: Command, workers: int) -> dict[str, float]:
    with Nodes(folder, command, nnodes="2", nproc=workers // 2) as run:
        victim = _two(run, workers // 2)[0]
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        firsts = run.firsts(workers, world_size=workers, after_ns=killed_ns)
        return {"all": (max(said.at_ns for said in firsts) - killed_ns) / 1e6}


def _idle(folder: Path, command: Command, idle_s: float) -> dict[str, float]:
    """Return what the agents of two nodes do, on average, while their workers only run."""
    with Nodes(folder, command, nnodes="2", nproc=1) as run:
        _two(run, 1)
        pids = [agent.pid for agent in run.agents.values()]
        before = [procfs.activity(pid) for pid in pids]
        time.sleep(idle_s)  # noqa: TID251 -- the time in which little should happen
        after = [procfs.activity(pid) for pid in pids]
        taken = list(zip(before, after, strict=True))
        share = 60 / idle_s / len(pids)
        return {
            "cpu": share * sum(late.cpu_ms - early.cpu_ms for early, late in taken),
            "switches": share * sum(late.switches - early.switches for early, late in taken),
            "pss": max(map(procfs.pss_mib, pids)),
        }
