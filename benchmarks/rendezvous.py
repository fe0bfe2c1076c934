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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.bench import Bench
from benchmarks.etcd_server import EtcdServer
from benchmarks.measure import Figure, MeasureError, Take
from benchmarks.redis_server import RedisServer
from benchmarks.stats import FLOOR, OURS, TORCHRUN, Budget

FSYNC = f"{OURS}, fsync"
"""Over an etcd that writes to the disk before it answers."""
NODES = (8, 128, 1024)
LARGE = 2000
"""Nodes of a round that is only formed if it is named: what breaks first there depends on the machine."""
LARGE_LEASE_S = 20.0
"""Their lease over etcd, in seconds: at 5 s two cores do not serve all keep-alives in time."""
PUBLISHED_FROM = 128
"""Smaller rounds only show the growth."""
TORCH_NODES = 128
"""torch's nodes take part up to here: 256 of them had no result in 300 s."""
BYTES_A_NODE = 64
"""What a node may move for each node of the round."""
FIXED_BYTES = {"redis": 8 * 1024, "etcd": 32 * 1024}
"""What it may move beside that, whatever the round's size: a dozen operations, for etcd with the heads of HTTP."""
WITHIN_S = {"redis": 2.0, "etcd": 5.0}
"""For a thousand nodes."""
OPERATIONS_A_NODE = 20
CONSTANT = 0.1
"""A slope in a double logarithmic plot that is no growth: 8 to 1,024 nodes would make 1.6 times as many."""
AT_ONCE = 4
"""So many members for each core ask etcd at once; it answers several with less than it needs for one after another."""
TRIES = 5


@dataclass(frozen=True)
class Round:
    """What one round of so many nodes took."""

    seconds: float
    """From the first join until all have a place."""
    cpu: float
    """Of the nodes' processes and the server together."""
    operations: float
    kib: float
    refused: float
    """Swaps that found another document than they expected, in all."""


_WHAT = {
    "seconds": ("time to form the round", "s"),
    "cpu": ("CPU of all nodes and the server", "s"),
    "operations": ("store operations of a node", "operations"),
    "kib": ("bytes of a node", "KiB"),
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
            raise RoundLostError(f"{' '.join(command)!r} did not start")
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


class RoundLostError(MeasureError):
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


def _ours(
    crowd: Crowd,
    backend: str,
    endpoint: str,
    run_id: str,
    nodes: int,
    *,
    each_core: int = 1,
    lease_s: float | None = None,
) -> None:
    first, lease = 0, () if lease_s is None else (lease_s,)
    for share in _shares(nodes, each_core=each_core):
        crowd.add("benchmarks.members", backend, endpoint, run_id, first, share, nodes, *lease)
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


def over_etcd(
    server: EtcdServer, nodes: int, *, module: str = "benchmarks.members", lease_s: float | None = None
) -> Round:
    """Form one round over etcd's v3 API: of our members, or of others that speak as they do."""
    with Crowd() as crowd:
        if module == "benchmarks.members":
            _ours(crowd, "etcd", server.endpoint, _fresh("bench"), nodes, each_core=AT_ONCE, lease_s=lease_s)
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


def figures(backend: str, where: str) -> dict[str, Figure]:
    """Return the figures of a measure.

    Args:
        backend: `redis` or `etcd`.
        where: It, and what torch's nodes use, for titles.
    """
    found = {}
    for nodes in NODES:
        budgets = {
            "seconds": Budget(at_most=WITHIN_S[backend]) if nodes >= 1000 else None,
            "operations": Budget(at_most=OPERATIONS_A_NODE),
            "kib": Budget(at_most=(BYTES_A_NODE * nodes + FIXED_BYTES[backend]) / 1024),
        }
        for what, (title, unit) in _WHAT.items():
            if nodes >= PUBLISHED_FROM:
                budget = budgets.get(what)
                name = f"rounds-{backend}-{nodes}-{what}"
                title_ = f"{nodes} nodes over {where}: {title}"
                found[name] = Figure(title_, unit, {} if budget is None else {OURS: budget})
    growth = {OURS: Budget(at_most=CONSTANT)}
    title = f"growth of the operations of a node with the nodes, over {where}"
    found[f"rounds-{backend}-growth"] = Figure(title, "exponent", growth, ratios=False)
    title = f"rounds over {where} that a node fell out of, formed again"
    found[f"rounds-{backend}-lost"] = Figure(title, "rounds", {OURS: Budget(at_most=0)})
    return found


def large_figures(backend: str, where: str) -> dict[str, Figure]:
    """Return the figures of a round of `LARGE` nodes."""
    found = {
        f"rounds-{backend}-{LARGE}-{what}": Figure(f"{LARGE} nodes over {where}: {title}", unit)
        for what, (title, unit) in _WHAT.items()
    }
    title = f"rounds of {LARGE} nodes over {where} that a node fell out of, formed again"
    return {**found, f"rounds-{backend}-{LARGE}-lost": Figure(title, "rounds")}


def large_redis_takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of a round of `LARGE` nodes over Redis."""
    server = bench.redis()
    over_redis(server, 2)
    return {OURS: partial(_take_large, "redis", bench, partial(over_redis, server))}


def large_etcd_takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of a round of `LARGE` nodes over etcd."""
    return {OURS: partial(_take_large, "etcd", bench, partial(over_etcd, bench.etcd(), lease_s=LARGE_LEASE_S))}


def _take_large(backend: str, bench: Bench, form: Callable[[int], Round]) -> dict[str, float]:
    if bench.size.most_nodes < NODES[-1]:
        return {}
    taken, lost = _formed(OURS, form, LARGE)
    found = {f"rounds-{backend}-{LARGE}-{what}": float(getattr(taken, what)) for what in _WHAT}
    return {**found, f"rounds-{backend}-{LARGE}-lost": float(lost)}


def redis_takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of rounds over Redis, and of torch's over c10d."""
    server = bench.redis()
    over_redis(server, 2)  # it learns the scripts, and has them for good
    forms: dict[str, Callable[[int], Round]] = {OURS: partial(over_redis, server)}
    if bench.torch:
        forms[TORCHRUN] = over_c10d
    return _takes("redis", bench, forms)


def etcd_takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of rounds over etcd's v3 API, of torch's over its v2 API, and of the floor."""
    server, fsync = bench.etcd(), bench.etcd(fsync=True)
    forms: dict[str, Callable[[int], Round]] = {
        FLOOR: partial(over_etcd, server, module="benchmarks.etcd_floor"),
        OURS: partial(over_etcd, server),
        FSYNC: partial(over_etcd, fsync),
    }
    if bench.torch and importlib.util.find_spec("etcd") is not None:
        forms[TORCHRUN] = partial(over_etcd_v2, server)
    return _takes("etcd", bench, forms)


def _takes(backend: str, bench: Bench, forms: Mapping[str, Callable[[int], Round]]) -> dict[str, Take]:
    most = {name: min(bench.size.most_nodes, TORCH_NODES if name == TORCHRUN else NODES[-1]) for name in forms}
    return {name: partial(_take, backend, name, form, most[name]) for name, form in forms.items()}


def _formed(launcher: str, form: Callable[[int], Round], nodes: int) -> tuple[Round, int]:
    """Form a round; return it, and how many tries failed before."""
    for lost in range(TRIES):
        try:
            return form(nodes), lost
        except RoundLostError as error:  # the machine was too busy for some node to renew its lease
            print(f"{launcher}, {nodes} nodes: {error}", file=sys.stderr)
    raise MeasureError(f"{launcher}: no round of {nodes} nodes in {TRIES} tries")


def _take(backend: str, launcher: str, form: Callable[[int], Round], most: int) -> dict[str, float]:
    """Form a round of each size; return all figures of them."""
    lost, rounds = 0, dict[int, Round]()
    for nodes in (nodes for nodes in NODES if nodes <= most):
        rounds[nodes], failed = _formed(launcher, form, nodes)
        lost += failed
    found = {
        f"rounds-{backend}-{nodes}-{what}": getattr(taken, what)
        for nodes, taken in rounds.items()
        if nodes >= PUBLISHED_FROM
        for what in _WHAT
    }
    if launcher == FSYNC:  # the rest is as without
        return {name: value for name, value in found.items() if name.endswith("-seconds")}
    growth = slope({nodes: taken.operations for nodes, taken in rounds.items()})
    if growth is not None:
        found[f"rounds-{backend}-growth"] = growth
    return {**found, f"rounds-{backend}-lost": float(lost)}
