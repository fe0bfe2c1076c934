"""All measures, each once. A new one is an entry here; what it runs is a function of a module beside this one."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from benchmarks import (
    elastic,
    first_start,
    kills,
    one_node,
    rendezvous,
    standby,
    starved,
    tee,
    warm,
    warm_join,
    warm_state,
    workers,
)
from benchmarks.measure import Figure, Measure
from benchmarks.nodes import ON_ETCD
from benchmarks.rendezvous import FSYNC
from benchmarks.standby import STANDBY
from benchmarks.stats import OURS, TORCHRUN, Budget

_TEE = {"printed": workers.PRINTED, "in blocks": workers.IN_BLOCKS}


def _start(workers: int, seconds: float, budget: Budget | None = None) -> Measure:
    figure = Figure(f"exec to the first line of {_count(workers)}", "ms", {OURS: budget} if budget else {})
    return Measure({f"start-{workers}": figure}, one_node.start(workers), seconds, warm_up=True)


def _restart(workers: int, seconds: float) -> Measure:
    title = f"kill -9 of one of {workers} workers to {workers} new first lines"
    figure = Figure(title, "ms", {OURS: Budget(times_floor=1.3)})
    return Measure({f"restart-{workers}": figure}, one_node.restart(workers), seconds)


def _ready(workers: int, seconds: float, *, cold: bool) -> Measure:
    title = f"kill -9 of one of {workers} workers until torch is imported and gloo is ready"
    figures = {
        f"ready-{workers}": Figure(title, "ms", {STANDBY: Budget(faster_than_torchrun=20)}),
        f"ready-{workers}-lost": Figure(f"{title}: runs that ended instead", "runs", {STANDBY: Budget(at_most=0)}),
    }
    return Measure(figures, standby.takes(workers, cold=cold), seconds)


def _tee(workers: int, how: str, *, promised: bool = True) -> Measure:
    name, title = f"tee-{workers}-{how.split()[-1]}", f"tee of {_count(workers)}, lines {how}"
    figures = {
        name: Figure(f"{title}: agent CPU of a line", "us", {OURS: Budget(at_most=0.2)}),
        f"{name}-faults": Figure(f"{title}: lost, torn, doubled or wrong", "lines", {OURS: Budget(at_most=0)}),
    }
    return Measure(figures, tee.lines(name, _TEE[how], workers), seconds=25, promised=promised)


def _nodes_restart(workers: int, seconds: float, budget_ms: float) -> Measure:
    title = f"kill -9 of one of {workers} workers on two nodes to {workers} new first lines"
    figures = {f"nodes-restart-{workers}": Figure(title, "ms", {OURS: Budget(at_most=budget_ms)})}
    return Measure(figures, elastic.takes(elastic.restart, workers), seconds)


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


MEASURES: tuple[Measure, ...] = (
    _start(1, 20, Budget(times_floor=4, faster_than_torchrun=10)),
    _start(2, 10),
    _start(8, 15, Budget(times_floor=2)),
    _start(32, 15),
    Measure(
        {"exit": Figure("last worker's exit to our exit", "ms", {OURS: Budget(at_most=20)})},
        one_node.finish,
        seconds=25,
        warm_up=True,
    ),
    Measure(
        {"help": Figure("--help", "ms", {OURS: Budget(at_most=100)})},
        one_node.help_,
        seconds=15,
        warm_up=True,
    ),
    _restart(2, 25),
    _restart(8, 30),
    _ready(2, 60, cold=True),
    _ready(8, 75, cold=False),
    Measure(
        {
            "first-start-8": Figure(
                "exec until 8 workers have torch imported and gloo is ready",
                "ms",
                {STANDBY: Budget(faster_than_torchrun=3)},
            ),
            "first-start-8-memory": Figure(
                "8 workers that have torch imported, with what they are forked from: PSS", "MiB"
            ),
        },
        first_start.takes(8),
        seconds=60,
    ),
    Measure(kills.figures(2, 150), kills.takes(2, floor=True), seconds=50),
    Measure(kills.figures(8, 400), kills.takes(8, floor=False), seconds=50),
    Measure(warm.figures(2, Budget(at_most=150)), warm.takes(2), seconds=20),
    Measure(warm.figures(8, Budget(times_floor=1.5)), warm.takes(8), seconds=40),
    Measure(warm_join.FIGURES, warm_join.takes, seconds=10),
    Measure(warm_state.FIGURES, warm_state.takes, seconds=10),
    Measure(
        {
            "agent-memory": Figure(
                "agent memory, PSS", "MiB", {OURS: Budget(at_most=15), one_node.NO_HOOKS: Budget(at_most=13)}
            ),
            "agent-helpers": Figure("memory of its helper processes, PSS", "MiB"),
            "agent-threads": Figure("agent threads", "threads"),
            "agent-cpu": Figure("idle agent, CPU a minute", "ms", {OURS: Budget(at_most=5)}),
            "agent-wakeups": Figure("idle agent, wake-ups a minute", "context switches", {OURS: Budget(at_most=0)}),
        },
        one_node.agent,
        seconds=70,
    ),
    _tee(1, "in blocks"),
    _tee(1, "printed", promised=False),
    _tee(4, "in blocks", promised=False),
    _tee(4, "printed"),
    Measure(
        {"tee-delay": Figure("delay of a line into a pipe, median of 40", "ms", {OURS: Budget(at_most=20)})},
        tee.delay,
        seconds=25,
    ),
    Measure(
        {
            "nodes-join": Figure(
                "a node joins (1:4, last call 1 s): its start to all restarted", "ms", {OURS: Budget(at_most=400)}
            ),
            "nodes-join-still": Figure(
                "a node joins: how long the old worker does not train", "ms", {OURS: Budget(at_most=250)}
            ),
        },
        elastic.takes(elastic.join),
        seconds=60,
    ),
    Measure(
        {
            "nodes-kill": Figure(
                "agent of one of two nodes killed, until the survivor's workers are restarted",
                "ms",
                {OURS: Budget(at_most=1000)},
            ),
            "nodes-kill-never": Figure(
                f"agent of one of two nodes killed: runs without a restart in {elastic.NEVER_S:g} s",
                "runs",
                {OURS: Budget(at_most=0)},
            ),
        },
        elastic.takes(elastic.agent_killed),
        seconds=40,
        turns={TORCHRUN: 1},  # it waits in vain
    ),
    _nodes_restart(2, 45, 150),
    _nodes_restart(8, 55, 300),
    Measure(
        {
            "nodes-cpu": Figure(
                "idle agent of one of two nodes: CPU a minute",
                "ms",
                {OURS: Budget(at_most=20), ON_ETCD: Budget(at_most=60)},
            ),
            "nodes-wakeups": Figure("idle agent of one of two nodes: wake-ups a minute", "context switches"),
            "nodes-memory": Figure(
                "idle agent of one of two nodes: memory, PSS",
                "MiB",
                {OURS: Budget(at_most=22), ON_ETCD: Budget(at_most=30)},
            ),
        },
        elastic.takes(elastic.idle),
        seconds=70,
        turns={TORCHRUN: 2},
    ),
    Measure(rendezvous.figures("redis", "Redis (torchrun: c10d)"), rendezvous.redis_takes, seconds=45),
    Measure(
        rendezvous.figures("etcd", "etcd (torchrun: etcd-v2)"), rendezvous.etcd_takes, seconds=90, turns={FSYNC: 1}
    ),
    Measure(rendezvous.large_figures("redis", "Redis"), rendezvous.large_redis_takes, seconds=20, promised=False),
    Measure(rendezvous.large_figures("etcd", "etcd"), rendezvous.large_etcd_takes, seconds=60, promised=False),
    Measure(starved.FIGURES, starved.takes, seconds=60, promised=False),
)


def select(measures: Iterable[Measure], patterns: Iterable[str]) -> dict[str, Measure]:
    """Return the figures that patterns name, each with its measure; all promised ones if there are no patterns.

    Args:
        measures: All.
        patterns: Names, or patterns of the shell, as `start-*`.

    Raises:
        SystemExit: a pattern names nothing.
    """
    every = {name: measure for measure in measures for name in measure.figures}
    if not (patterns := list(patterns)):
        return {name: measure for name, measure in every.items() if measure.promised}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in every):
            near = get_close_matches(pattern, every, n=1)
            hint = f"--only {near[0]}" if near else "--list"
            raise SystemExit(f"--only {pattern}: no figure has this name. Try: {hint}")
    return {name: measure for name, measure in every.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
