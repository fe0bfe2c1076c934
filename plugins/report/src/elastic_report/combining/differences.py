"""What differs between a run and the last good run of that name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from elastic_report.combining.evidence import AgentEvidence
from elastic_report.ledger.document import Begin
from elastic_report.model import Difference

_IDENTITY: Final = ("rdzv_id", "rdzv-id", "run_id", "run-id")
"""Options that name the run: they differ between two runs of one script, and mean nothing."""


def differences(before: Sequence[AgentEvidence], now: Sequence[AgentEvidence]) -> tuple[Difference, ...]:
    """Return the differences in options, versions and nodes, in this order.

    Options and versions are those of each run's node of rank 0, or else of the first. Facts about machines are compared
    for nodes of equal names. Agents without a ledger have no facts.
    """
    old, new = _begins(before), _begins(now)
    if not old or not new:
        return ()
    found = [
        *_compared("option", _options(old[0]), _options(new[0])),
        *_compared("version", old[0].versions, new[0].versions),
    ]
    machines_before = {begin.node_id: begin for begin in old}
    machines_now = {begin.node_id: begin for begin in new}
    for name in sorted(machines_before.keys() | machines_now.keys()):
        there, here = machines_before.get(name), machines_now.get(name)
        if there is None or here is None:
            texts = ["" if each is None else "present" for each in (there, here)]
            found.append(Difference(kind="node", name=name, before=texts[0], now=texts[1]))
        else:
            found += [
                Difference(kind="node", name=f"{name} {each.name}", before=each.before, now=each.now)
                for each in _compared("node", there.machine, here.machine)
            ]
    return tuple(found)


def first_facts(agents: Iterable[AgentEvidence]) -> Begin | None:
    """Return the facts of the node whose options and versions count. `None` without a ledger."""
    return next(iter(_begins(agents)), None)


def _begins(agents: Iterable[AgentEvidence]) -> list[Begin]:
    """Return the facts of all agents, the lowest rank in a first round first; of a rank, the latest agent first."""
    found = []
    for agent in agents:
        if agent.ledger is not None:
            ranks = (line.node_rank for line in agent.ledger.lines if hasattr(line, "node_rank"))
            found.append((next(ranks, 1 << 30), -agent.ledger.begin.started_ns, agent.ledger.begin))
    return [begin for _, _, begin in sorted(found, key=lambda each: each[:2])]


def _options(begin: Begin) -> dict[str, str]:
    return {name: value for name, value, _ in begin.options if name.removeprefix("--") not in _IDENTITY}


def _compared(kind: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    return [
        Difference(kind=kind, name=name, before=before.get(name, ""), now=now.get(name, ""))
        for name in sorted(before.keys() | now.keys())
        if before.get(name, "") != now.get(name, "")
    ]
