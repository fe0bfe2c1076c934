"""Plays a lane with `elastic run`, and reads from the incidents which ranks each report has named."""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from patience import patience
from support import Elastic
from truth.cells import NPROC, Cell, Expected, Lane

SCRIPT: Final = Path(__file__).with_name("faults.py")
HANG_S, MOST_HANG_S = 2.0, 4.0
"""`--hang-timeout` on an idle machine and, at most, on a busy one."""
NAMED, PARTLY, NOT_NAMED, WRONG = "named", "partly named", "not named", "named wrongly"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The report of one cell."""

    lane: str
    text: str
    truth: tuple[int, ...]
    expected: str
    result: str
    named: tuple[int, ...]
    cause: str
    """The cause of the attribution; empty without one."""
    says: str
    """The report's summary."""

    @property
    def kept(self) -> bool:
        """Whether the report does what is expected of it."""
        return self.result == NAMED or (self.result != WRONG and self.expected != Expected.NAMED)


def play(
    lane: Lane, start: Callable[..., Elastic], folder: Path, *, env: dict[str, str], endpoint: str = ""
) -> tuple[list[Outcome], list[str]]:
    """Play all cells of a lane; return an outcome for each, and what agents printed that failed."""
    faults = folder / "faults.json"
    faults.write_text(json.dumps([cell.played() for cell in lane.cells]))
    hang_s = min(MOST_HANG_S, patience(HANG_S))
    run_id = f"truth-{os.getpid()}-{lane.name.replace(' ', '-').replace(',', '')}"
    variables = env | {"PYTHONPATH": str(SCRIPT.parents[1]), "TRUTH_HANG_S": f"{hang_s:g}"}
    if not lane.recorder:
        variables["TORCH_FR_BUFFER_SIZE"] = "0"
    agents = []
    for node in range(lane.nodes):
        options = ["--nproc-per-node", NPROC // lane.nodes, "--run-dir", folder / f"node{node}"]
        if lane.nodes > 1:
            options += ["--nnodes", lane.nodes, "--node-rank", node, "--node-id", "ab"[node], "--rdzv-id", run_id]
            options += ["--rdzv-backend", "redis", "--rdzv-endpoint", endpoint]
            options += ["--rdzv-conf", "lease_ttl=10,last_call_timeout=60"]
        if lane.stragglers:
            options += ["--straggler-interval", "1"]
        else:
            options += ["--hang-timeout", f"{hang_s:g}"]
        options += ["--max-restarts", len(lane.cells), "--restart-backoff", "0"]
        options += ["--shutdown-timeout", "1", "--omp-threads", "1"]
        options += ["-p", "truth.forked:ForkedWorkers"]
        agents.append(start(*options, SCRIPT, faults, env=variables))
    codes = [agent.wait(20 + len(lane.cells) * (40 if lane.stragglers else 3 * hang_s)) for agent in agents]
    if lane.stragglers:
        return _stragglers(lane, agents[0].err), [agent.err for agent, code in zip(agents, codes, strict=True) if code]
    incidents = [_by_restart(folder / f"node{node}") for node in range(lane.nodes)]
    outcomes = [
        _outcome(lane, cell, [of_node[number] for of_node in incidents if number in of_node])
        for number, cell in enumerate(lane.cells)
    ]
    return outcomes, [agent.err for agent, code in zip(agents, codes, strict=True) if code]


def _by_restart(folder: Path) -> dict[int, dict[str, Any]]:
    """Return a node's incidents by the number of restarts before them."""
    found = (json.loads(path.read_text()) for path in sorted(folder.glob("incident-[0-9]*.json")))
    return {incident["restart_count"]: incident for incident in found}


def _outcome(lane: Lane, cell: Cell, incidents: list[dict[str, Any]]) -> Outcome:
    expected = cell.expects(recorder=lane.recorder)
    hangs = [incident for incident in incidents if incident["failure_class"] == "hang"]
    named = tuple(sorted({rank for incident in hangs for rank in _named(incident)}))
    causes = {str(cause) for incident in hangs for cause in _causes(incident)}
    first = (hangs or incidents or [{"summary": "no incident"}])[0]
    return Outcome(
        lane=lane.name,
        text=cell.text,
        truth=cell.ranks,
        expected=str(expected),
        result=_result(cell.ranks, named, hangs=bool(hangs), expected=expected),
        named=named,
        cause=", ".join(sorted(causes)),
        says=first["summary"],
    )


SLOW: Final = re.compile(r"^elastic: (rank (\d+) .*is slow: .*)$", re.M)
"""The line about a straggler."""


def _stragglers(lane: Lane, err: str) -> list[Outcome]:
    """Return the outcomes by the lines between two restarts."""
    parts = re.split(r"^elastic: .*; restart \d+ of .*$", err, flags=re.M)
    found = []
    for cell, part in zip(lane.cells, parts, strict=False):
        lines = SLOW.findall(part)
        named = tuple(sorted({int(rank) for _, rank in lines}))
        expected = cell.expects(recorder=lane.recorder)
        found.append(
            Outcome(
                lane=lane.name,
                text=cell.text,
                truth=cell.ranks,
                expected=str(expected),
                result=_result(cell.ranks, named, hangs=False, expected=expected),
                named=named,
                cause="",
                says=lines[0][0] if lines else "",
            )
        )
    return found


def _result(truth: tuple[int, ...], named: tuple[int, ...], *, hangs: bool, expected: Expected) -> str:
    if expected == Expected.NO_HANG:
        return WRONG if hangs else NAMED
    if {*named} - {*truth}:
        return WRONG
    if not named:
        return NOT_NAMED
    return NAMED if {*named} == {*truth} else PARTLY


def _causes(incident: dict[str, Any]) -> Iterator[str]:
    yield from filter(None, [((incident["hang"] or {}).get("attribution") or {}).get("cause")])


def _named(incident: dict[str, Any]) -> set[int]:
    """Return the ranks that a report names as the cause. All ranks of the run means that it names none."""
    hang = incident["hang"] or {}
    named = set((hang.get("attribution") or {}).get("culprits", ()))
    if not named:
        named = {rank["global_rank"] for rank in hang.get("ranks", ()) if rank["blamed"]}
        whole_node = len(named) == len(hang.get("ranks", ()))
        if whole_node and ("waiting for" in incident["summary"] or len(named) == NPROC):
            return set()
    return named


def record(outcomes: list[Outcome], path: Path) -> None:
    """Write the outcomes of one lane into the file of results, beside those of other lanes."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other lanes end at the same time
        known = json.loads(path.read_text()) if path.exists() else {"lanes": {}}
        known["torch"] = version("torch")
        known["lanes"][outcomes[0].lane] = [asdict(outcome) for outcome in outcomes]
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    path.with_suffix(".lock").unlink(missing_ok=True)
