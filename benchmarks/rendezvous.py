"""The rendezvous of many nodes: simulated members over a real server, beside torch's where it can follow.

Over Redis or Valkey beside torch's c10d, and over etcd's v3 API beside torch's etcd-v2 on the same etcd and the floor
(`etcd_floor`). The members are the product's (`members`), spread over as many processes as there are cores; the server
shares the cores with them. Counted are requests, by the server, and bytes both ways (Redis counts them, for etcd they
are those on the members' sockets), from the first connection until all have a place and have said that they run.
torch's nodes are threads (`c10d_members`, `etcd_v2_members`).
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.etcd_server import EtcdServer
from benchmarks.measure import Result
from benchmarks.redis_server import RedisServer
from benchmarks.stats import Budget, summarize

REDIS, C10D = "redis", "c10d (torch)"
ETCD, ETCD_FSYNC, ETCD_V2, ETCD_FLOOR = "etcd", "etcd, fsync", "etcd-v2 (torch)", "floor"
BYTES_A_NODE = 64
"""What a node may move for each node of the round."""
FIXED_BYTES = {REDIS: 8 * 1024, ETCD: 32 * 1024}
"""What it may move beside that, whatever the round's size: a dozen operations, for etcd with the heads of HTTP."""
WITHIN_S = {REDIS: 2.0, ETCD: 5.0}
"""For a thousand nodes."""
OPERATIONS_A_NODE = 20
CONSTANT = 0.1
"""A slope in a double logarithmic plot that is no growth: 2 to 1,024 nodes would make 1.9 times as many."""
AT_ONCE = 4
"""So many members for each core ask etcd at once; it answers several with less than it needs for one after another."""
TRIES = 5
TORCH_LIMIT_S = 60.0
"""When torch's have taken so long over a server, they take part no further."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    nodes: tuple[int, ...]
    """Ascending."""
    torch_nodes: tuple[int, ...]
    repetitions: int
    fsync_nodes: tuple[int, ...]
    """Once over an etcd that writes to the disk before it answers."""


FULL = Size(nodes=(2, 8, 32, 128, 256, 512, 1024), torch_nodes=(2, 8, 32, 128), repetitions=3, fsync_nodes=(128, 1024))
QUICK = Size(nodes=(2, 16, 64), torch_nodes=(2, 16), repetitions=1, fsync_nodes=())


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
            raise RoundLostError(f"{process.args!r} ended with {process.wait()}")
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


class RoundLostError(Exception):
    """A process of the crowd ended before all had a place."""


def _shares(nodes: int, *, each_core: int = 1) -> list[int]:
    """Spread nodes over processes, so many for each core."""
    parts = min(nodes, each_core * len(os.sched_getaffinity(0)))
    return [nodes * (part + 1) // parts - nodes * part // parts for part in range(parts)]


def _took(reports: Sequence[Mapping[str, Any]], nodes: int) -> float:
    ranks = sorted(rank for report in reports for rank in report["ranks"])
    if ranks != list(range(nodes)):
        raise RoundLostError(f"{nodes} nodes did not get {nodes} ranks: {ranks}")
    return float(max(report["formed_s"] for report in reports) - min(report["joined_s"] for report in reports))


def _ours(crowd: Crowd, backend: str, endpoint: str, run_id: str, nodes: int, *, each_core: int = 1) -> None:
    first = 0
    for share in _shares(nodes, each_core=each_core):
        crowd.add("benchmarks.members", backend, endpoint, run_id, first, share, nodes)
        first += share


def over_redis(server: RedisServer, nodes: int) -> Round:
    """Form one round of our members."""
    with Crowd() as crowd:
        _ours(crowd, "redis", server.endpoint, f"bench-{nodes}", nodes)
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


def over_etcd(server: EtcdServer, nodes: int, *, module: str = "benchmarks.members") -> Round:
    """Form one round over etcd's v3 API: of our members, or of others that speak as they do."""
    with Crowd() as crowd:
        if module == "benchmarks.members":
            _ours(crowd, "etcd", server.endpoint, _fresh("bench"), nodes, each_core=AT_ONCE)
        else:
            run_id, first = _fresh("floor"), 0
            for share in _shares(nodes, each_core=AT_ONCE):
                crowd.add(module, server.port, run_id, first, share, nodes)
                first += share
        server.reset()
        reports = crowd.go()
        traffic = server.traffic()
    return Round(
        seconds=_took(reports, nodes),
        cpu=sum(report["cpu_s"] for report in reports) + traffic.cpu_s,
        operations=traffic.requests.total() / nodes,
        kib=sum(report["bytes"] for report in reports) / nodes / 1024,
        refused=sum(report["refused"] for report in reports),
    )


def over_etcd_v2(server: EtcdServer, nodes: int) -> Round:
    """Form one round of torch's nodes over etcd's v2 API."""
    with Crowd() as crowd:
        run_id = _fresh("torch")
        for share in _shares(nodes):
            crowd.add("benchmarks.etcd_v2_members", server.port, run_id, share, nodes)
        server.reset()
        reports = crowd.go()
        traffic = server.traffic()
    return _of_torch(reports, nodes, server_cpu_s=traffic.cpu_s)


def _fresh(name: str) -> str:
    """Return a run id that nobody had: etcd keeps what was there before."""
    return f"{name}-{os.urandom(4).hex()}"


def over_c10d(nodes: int) -> Round:
    """Form one round of torch's nodes."""
    with Crowd() as crowd:
        port = "0"
        for share in _shares(nodes):
            (port,) = crowd.add("benchmarks.c10d_members", port, f"bench-{nodes}", share, nodes)
        reports = crowd.go()
    return _of_torch(reports, nodes, server_cpu_s=0.0)


def _of_torch(reports: Sequence[Mapping[str, Any]], nodes: int, *, server_cpu_s: float) -> Round:
    return Round(
        seconds=_took(reports, nodes),
        cpu=sum(report["cpu_s"] for report in reports) + server_cpu_s,
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


def _budget(ours: str, what: str, nodes: int) -> Budget | None:
    if what == "operations":
        return Budget(at_most=OPERATIONS_A_NODE)
    if what == "kib":
        return Budget(at_most=(BYTES_A_NODE * nodes + FIXED_BYTES[ours]) / 1024)
    if what == "seconds" and nodes >= 1000:
        return Budget(at_most=WITHIN_S[ours])
    return None


Take = Callable[[int], Round]
"""Forms one round of so many nodes."""


@dataclass(frozen=True)
class Takes:
    """Who forms rounds over one kind of server."""

    ours: str
    again: Mapping[str, Take]
    """As often as the size says; ours is one of them."""
    torchs: Mapping[str, Take]
    once: Mapping[str, Take]


def measure(folder: Path, size: Size, *, torch: bool) -> Iterator[Result]:
    """Give each number of nodes its figures, then how they grow."""
    with RedisServer(folder / "redis") as redis:
        over_redis(redis, 2)  # it learns the scripts, and has them for good
        takes = Takes(REDIS, {REDIS: partial(over_redis, redis)}, {C10D: over_c10d} if torch else {}, {})
        yield from _measure(takes, size)
    with EtcdServer(folder / "etcd") as etcd, EtcdServer(folder / "etcd-fsync", fsync=True) as fsync:
        again = {ETCD_FLOOR: partial(over_etcd, etcd, module="benchmarks.etcd_floor"), ETCD: partial(over_etcd, etcd)}
        v2 = torch and importlib.util.find_spec("etcd") is not None
        torchs = {ETCD_V2: partial(over_etcd_v2, etcd)} if v2 else {}
        yield from _measure(Takes(ETCD, again, torchs, {ETCD_FSYNC: partial(over_etcd, fsync)}), size)


def _measure(takes: Takes, size: Size) -> Iterator[Result]:
    medians: dict[str, dict[str, dict[int, float]]] = {what: {} for what in _WHAT}
    spent_s, lost = 0.0, Counter(dict.fromkeys((*takes.again, *takes.torchs), 0))
    for nodes in size.nodes:
        rounds: dict[str, list[Round]] = {name: [] for name in takes.again}
        for _ in range(size.repetitions):
            for name, take in takes.again.items():
                rounds[name].append(_formed(name, take, nodes, lost))
        if nodes in size.torch_nodes and spent_s < TORCH_LIMIT_S:
            began_s = time.monotonic()
            rounds |= {name: [_formed(name, take, nodes, lost)] for name, take in takes.torchs.items()}
            spent_s += time.monotonic() - began_s
        if nodes in size.fsync_nodes:
            rounds |= {name: [_formed(name, take, nodes, lost)] for name, take in takes.once.items()}
        yield from _results(takes.ours, nodes, rounds, medians)
    for what, (title, _) in _WHAT.items():
        found = {launcher: slope(points) for launcher, points in medians[what].items()}
        figures = {launcher: [value] for launcher, value in found.items() if value is not None}
        budget = Budget(at_most=CONSTANT) if what == "operations" else None
        title = f"growth with the nodes over {takes.ours}: {title}"
        yield Result(title, "exponent", figures, budget, judged=takes.ours)

    figures = {name: [float(count)] for name, count in lost.items()}
    title = f"rounds over {takes.ours} that a node fell out of, formed again"
    yield Result(title, "rounds", figures, Budget(at_most=0), judged=takes.ours)


def _formed(name: str, take: Take, nodes: int, lost: Counter[str]) -> Round:
    """Form a round; where the machine was too busy for some node to renew its lease, another one."""
    for _ in range(TRIES):
        try:
            return take(nodes)
        except RoundLostError as error:
            lost[name] += 1
            print(f"{name}, {nodes} nodes: {error}", file=sys.stderr)
    raise SystemExit(f"{name}: no round of {nodes} nodes in {TRIES} tries")


def _results(
    ours: str, nodes: int, rounds: Mapping[str, Sequence[Round]], medians: dict[str, dict[str, dict[int, float]]]
) -> Iterator[Result]:
    for what, (title, unit) in _WHAT.items():
        figures = {launcher: [getattr(taken, what) for taken in many] for launcher, many in rounds.items()}
        for launcher, values in figures.items():
            medians[what].setdefault(launcher, {})[nodes] = summarize(values).median
        title = f"round of {nodes} nodes over {ours}: {title}"
        yield Result(title, unit, figures, _budget(ours, what, nodes), judged=ours)
