"""The rendezvous of many nodes: simulated members over a real Redis or Valkey, beside torch's c10d where it can follow.

The members are the product's (`members`), spread over as many processes as there are cores; the server shares the cores
with them. What is counted, is counted by the server: scripts, and bytes both ways, from the first connection until all
have a place and have said that they run. torch's nodes are threads (`c10d_members`).
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import Result
from benchmarks.redis_server import RedisServer
from benchmarks.stats import Budget, summarize

REDIS, C10D = "redis", "c10d (torch)"
BYTES_A_NODE, FIXED_BYTES = 64, 8192
"""What a node may move: so much for each node of the round, and so much whatever its size (a dozen operations)."""
WITHIN_S = 2.0
"""For a thousand nodes."""
OPERATIONS_A_NODE = 20
CONSTANT = 0.1
"""A slope in a double logarithmic plot that is no growth: 2 to 1,024 nodes would make 1.9 times as many."""
C10D_LIMIT_S = 60.0
"""When c10d has taken so long, it takes part no further."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    nodes: tuple[int, ...]
    """Ascending."""
    c10d_nodes: tuple[int, ...]
    repetitions: int


FULL = Size(nodes=(2, 8, 32, 128, 256, 512, 1024), c10d_nodes=(2, 8, 32, 128), repetitions=3)
QUICK = Size(nodes=(2, 16, 64), c10d_nodes=(2, 16), repetitions=1)


@dataclass(frozen=True)
class Round:
    """What one round of so many nodes took."""

    seconds: float
    cpu: float
    """Of the nodes' processes and the server together."""
    operations: float
    kib: float
    refused: float
    """Swaps that found another document than they expected, in all."""


_WHAT = {
    "seconds": ("first join to all in the round", "s"),
    "cpu": ("CPU of all nodes and the store's server", "s"),
    "operations": ("store operations a node", "operations"),
    "kib": ("bytes a node", "KiB"),
    "refused": ("refused swaps", "swaps"),
}


class Crowd:
    """Processes that join when all are ready, and report."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def add(self, module: str, *args: object) -> list[str]:
        """Start one; return what it says once it is ready."""
        command = [sys.executable, "-m", module, *map(str, args)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        self._processes.append(process)
        said = self._line(process).split()
        if said[:1] != ["ready"]:
            raise SystemExit(f"{' '.join(command)!r} did not start")
        return said[1:]

    def go(self) -> list[dict[str, Any]]:
        """Let all join; return their reports."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(self._line(process)) for process in self._processes]

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{process.args!r} ended with {process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _shares(nodes: int) -> list[int]:
    """Spread nodes over processes, one for each core."""
    parts = min(nodes, len(os.sched_getaffinity(0)))
    return [nodes * (part + 1) // parts - nodes * part // parts for part in range(parts)]


def _took(reports: Sequence[Mapping[str, Any]], nodes: int) -> float:
    ranks = sorted(rank for report in reports for rank in report["ranks"])
    if ranks != list(range(nodes)):
        raise SystemExit(f"{nodes} nodes did not get {nodes} ranks: {ranks}")
    return float(max(report["formed_s"] for report in reports) - min(report["joined_s"] for report in reports))


def over_redis(server: RedisServer, nodes: int) -> Round:
    """Form one round of our members."""
    with Crowd() as crowd:
        first = 0
        for share in _shares(nodes):
            crowd.add("benchmarks.members", server.endpoint, f"bench-{nodes}", first, share, nodes)
            first += share
        server.reset()
        reports = crowd.go()
        traffic = server.traffic()
    return Round(
        seconds=_took(reports, nodes),
        cpu=sum(report["cpu_s"] for report in reports) + traffic.cpu_s,
        operations=traffic.scripts / nodes,
        kib=traffic.bytes / nodes / 1024,
        refused=sum(report["refused"] for report in reports),
    )


def over_c10d(nodes: int) -> Round:
    """Form one round of torch's nodes."""
    with Crowd() as crowd:
        port = "0"
        for share in _shares(nodes):
            (port,) = crowd.add("benchmarks.c10d_members", port, f"bench-{nodes}", share, nodes)
        reports = crowd.go()
    return Round(
        seconds=_took(reports, nodes),
        cpu=sum(report["cpu_s"] for report in reports),
        operations=sum(report["operations"]["all"] for report in reports) / nodes,
        kib=sum(report["bytes"] for report in reports) / nodes / 1024,
        refused=sum(report["refused"] for report in reports),
    )


def slope(points: Mapping[int, float]) -> float | None:
    """Return the exponent of growth that fits best: 0 is constant, 1 linear in the nodes; None: too few points."""
    pairs = [(math.log(nodes), math.log(value)) for nodes, value in points.items() if value > 0]
    if len(pairs) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return float(sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs))


def _budget(what: str, nodes: int) -> Budget | None:
    if what == "operations":
        return Budget(at_most=OPERATIONS_A_NODE)
    if what == "kib":
        return Budget(at_most=(BYTES_A_NODE * nodes + FIXED_BYTES) / 1024)
    if what == "seconds" and nodes >= 1000:
        return Budget(at_most=WITHIN_S)
    return None


def measure(folder: Path, size: Size, *, torch: bool) -> Iterator[Result]:
    """Give each number of nodes its figures, then how they grow."""
    medians: dict[str, dict[str, dict[int, float]]] = {what: {REDIS: {}, C10D: {}} for what in _WHAT}
    spent_s = 0.0 if torch else math.inf
    with RedisServer(folder / "redis") as server:
        over_redis(server, 2)  # it learns the scripts, and has them for good
        for nodes in size.nodes:
            rounds = {REDIS: [over_redis(server, nodes) for _ in range(size.repetitions)]}
            if nodes in size.c10d_nodes and spent_s < C10D_LIMIT_S:
                began_s = time.monotonic()
                rounds[C10D] = [over_c10d(nodes)]
                spent_s += time.monotonic() - began_s
            yield from _results(nodes, rounds, medians)
    for what, (title, _) in _WHAT.items():
        found = {launcher: slope(points) for launcher, points in medians[what].items()}
        figures = {launcher: [value] for launcher, value in found.items() if value is not None}
        budget = Budget(at_most=CONSTANT) if what == "operations" else None
        yield Result(f"growth with the nodes: {title}", "exponent", figures, budget, judged=REDIS)


def _results(
    nodes: int, rounds: Mapping[str, Sequence[Round]], medians: dict[str, dict[str, dict[int, float]]]
) -> Iterator[Result]:
    for what, (title, unit) in _WHAT.items():
        figures = {launcher: [getattr(taken, what) for taken in many] for launcher, many in rounds.items()}
        for launcher, values in figures.items():
            medians[what][launcher][nodes] = summarize(values).median
        yield Result(f"round of {nodes} nodes: {title}", unit, figures, _budget(what, nodes), judged=REDIS)
