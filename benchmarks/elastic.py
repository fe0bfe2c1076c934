"""What happens when nodes come and go: agents of two nodes here, over Redis and etcd, beside torchrun over c10d."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks import procfs
from benchmarks.bench import Bench
from benchmarks.measure import Take
from benchmarks.nodes import Command, Nodes, SilenceError, commands

SETTLE_S = 1.5
"""An agent has settled: nothing is read or renewed because of what was before."""
NEVER_S = 20.0
"""What has not come by then is called never."""


def takes(take: Callable[..., Mapping[str, float]], *more: object) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure in which all run the same on two nodes: `take(bench, command, *more)`."""

    def launchers(bench: Bench) -> Mapping[str, Take]:
        found = commands(bench.redis().endpoint, bench.etcd().endpoint, torch=bench.torch)
        return {name: partial(take, bench, command, *more) for name, command in found.items()}

    return launchers


def _settle() -> None:
    time.sleep(SETTLE_S)  # noqa: TID251 -- a benchmark measures real time


def join(bench: Bench, command: Command) -> dict[str, float]:
    """A node joins (1:4, last call 1 s): its start to all restarted, and how long the old worker does not train."""
    with Nodes(bench.folder, command, nnodes="1:4", nproc=1) as run:
        run.start("a")
        run.firsts(1, world_size=1)
        _settle()
        began_ns = run.start("b")
        new = {said.node: said.at_ns for said in run.firsts(2, world_size=2, after_ns=began_ns)}
        (stopped,) = run.lasts("a", after_ns=began_ns)
        return {
            "nodes-join": (max(new.values()) - began_ns) / 1e6,
            "nodes-join-still": (new["a"] - stopped.at_ns) / 1e6,
        }


def _two(run: Nodes, nproc: int) -> list[int]:
    """Start two nodes; return the pids of the workers of the second."""
    run.start("a")
    run.start("b")
    firsts = run.firsts(2 * nproc, world_size=2 * nproc)
    _settle()
    return [said.pid for said in firsts if said.node == "b"]


def agent_killed(bench: Bench, command: Command) -> dict[str, float]:
    """Kill -9 of one of two agents, to the survivor's new first line; whether none came."""
    with Nodes(bench.folder, command, nnodes="1:2", nproc=1) as run:
        _two(run, 1)
        killed_ns = time.monotonic_ns()
        run.agents["b"].kill()
        try:
            (new,) = run.firsts(1, world_size=1, after_ns=killed_ns, within_s=NEVER_S)
        except SilenceError:
            return {"nodes-kill-never": 1.0}
        return {"nodes-kill": (new.at_ns - killed_ns) / 1e6, "nodes-kill-never": 0.0}


def restart(bench: Bench, command: Command, workers: int) -> dict[str, float]:
    """Kill -9 of one worker on two nodes, to the first line of the last new one."""
    with Nodes(bench.folder, command, nnodes="2", nproc=workers // 2) as run:
        victim = _two(run, workers // 2)[0]
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        firsts = run.firsts(workers, world_size=workers, after_ns=killed_ns)
        return {f"nodes-restart-{workers}": (max(said.at_ns for said in firsts) - killed_ns) / 1e6}


def idle(bench: Bench, command: Command) -> dict[str, float]:
    """What the agents of two nodes do, on average, while their workers only run."""
    idle_s = bench.size.idle_s
    with Nodes(bench.folder, command, nnodes="2", nproc=1) as run:
        _two(run, 1)
        pids = [agent.pid for agent in run.agents.values()]
        before = [procfs.activity(pid) for pid in pids]
        time.sleep(idle_s)  # noqa: TID251 -- the time in which little should happen
        after = [procfs.activity(pid) for pid in pids]
        taken = list(zip(before, after, strict=True))
        share = 60 / idle_s / len(pids)
        return {
            "nodes-cpu": share * sum(late.cpu_ms - early.cpu_ms for early, late in taken),
            "nodes-wakeups": share * sum(late.switches - early.switches for early, late in taken),
            "nodes-memory": max(map(procfs.pss_mib, pids)),
        }
