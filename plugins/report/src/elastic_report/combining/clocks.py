"""Aligns the clocks of nodes: all nodes of a round record at about the same moment that it was formed.

Each ledger has its times on its node's monotonic clock, with the wall clock's time at the agent's start. A wall clock
that differs from the other nodes', or that jumped between two agents of one host, would move a whole ledger. So each
ledger is moved to where its rounds agree with those of the reference node, if the difference is large.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from elastic_core.api import Record
from elastic_core.api.tools import duration_text
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.combining.seconds import Parts

TOLERANCE_S: Final = 2.0
"""Smaller differences are not corrected: nodes don't notice a formed round at exactly the same moment."""
_SPREADS: Final = 3.0
"""A difference is corrected if it is larger than this many times the median deviation, too."""

_Round = tuple[int, int, int, int]
"""Index, token, and the numbers of nodes and workers: equal for all nodes of a round."""


class Alignment(Record, frozen=True, kw_only=True):
    """The agents' clocks, in the order of the agents."""

    zeros_ns: tuple[int, ...]
    """When each agent's monotonic clock was 0 on the common clock, in nanoseconds since the Unix epoch.

    For an agent without a ledger, minus the offset of its wall clock: it has no monotonic times.
    """
    offsets_s: tuple[float, ...]
    """How much each wall clock was ahead of the reference node's, as far as it was corrected."""
    sentence: str
    """How the clocks were aligned."""


def align(agents: Sequence[AgentEvidence], parts: Sequence[Parts | None] | None = None) -> Alignment:
    """Return the alignment of the agents' clocks.

    Args:
        agents: The agents.
        parts: The lines of their ledgers, if they were sorted already.
    """
    if parts is None:
        parts = [None if agent.ledger is None else Parts(agent.ledger) for agent in agents]
    units = _units(agents)
    rounds = [_rounds(each) for each in parts]
    walls = _wall_zeros_ns(agents)
    by_unit: dict[int, dict[_Round, list[float]]] = {}
    for number, (agent, unit) in enumerate(zip(agents, units, strict=True)):
        if agent.ledger is not None:
            times = by_unit.setdefault(unit, defaultdict(list))
            for key, at_s in rounds[number].items():
                times[key].append(walls[number] / 1e9 + at_s)
    differences = _differences(by_unit, _reference(parts, units, rounds))
    if (majority := _majority(differences)) is not None:
        differences = _differences(by_unit, majority)
    offsets = [differences.get(unit, _Difference()).corrected_s for unit in units]
    zeros = [wall - round(offset * 1e9) for wall, offset in zip(walls, offsets, strict=True)]
    moved = _untangle(agents, parts, rounds, zeros)
    again = "".join(
        f" The clock of {name} was set back between two of its agents: the later agent was moved to the end of the "
        "earlier one."
        for name in moved
    )
    return Alignment(
        zeros_ns=tuple(zeros), offsets_s=tuple(offsets), sentence=_sentence(agents, units, differences) + again
    )


def _untangle(
    agents: Sequence[AgentEvidence],
    parts: Sequence[Parts | None],
    rounds: Sequence[Mapping[_Round, float]],
    zeros: list[int],
) -> list[str]:
    """Move agents that seem to have been in one place at the same time. Return the names of their nodes.

    Each agent of a node comes after the one before it. Nodes of one host may have equal names, but not an equal rank.
    """
    places: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for number, (agent, own) in enumerate(zip(agents, parts, strict=True)):
        if own is not None and own.rounds:
            places[agent.node_id, agent.host, own.rounds[0].node_rank].append(number)
    starts_ns = [0 if own is None else round(own.ledger.begin.started_s * 1e9) for own in parts]

    def overlap_ns(before: int, number: int) -> int:
        own = parts[before]
        if own is None or not rounds[before].keys() & rounds[number].keys():
            return 0
        if agents[before].boot_id and agents[before].boot_id == agents[number].boot_id:
            return 0  # one monotonic clock: two agents with one node id did run at the same time
        return max(0, zeros[before] + round(own.last_sign_s * 1e9) - zeros[number] - starts_ns[number])

    moved = set()
    for (name, _, _), numbers in places.items():
        by_clock = sorted(numbers, key=lambda number: zeros[number] + starts_ns[number])
        if not any(overlap_ns(before, number) for before, number in pairwise(by_clock)):
            continue  # after a reboot, the order on the monotonic clocks means nothing
        for before, number in pairwise(sorted(numbers, key=lambda number: starts_ns[number])):
            if late_ns := overlap_ns(before, number):
                zeros[number] += late_ns
                moved.add(name)
    return sorted(moved)


class _Difference(Record, frozen=True, kw_only=True):
    """How much a clock is ahead of the reference. `rounds`: at how many common rounds it was compared."""

    ahead_s: float = 0.0
    spread_s: float = 0.0
    rounds: int = 0

    @property
    def corrected_s(self) -> float:
        return self.ahead_s if abs(self.ahead_s) > max(TOLERANCE_S, _SPREADS * self.spread_s) else 0.0


def _units(agents: Sequence[AgentEvidence]) -> list[int]:
    """Return the number of each agent's clock: agents of one host share it, unless its wall clock was changed."""
    units: list[int] = []
    known: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    count = 0
    for agent in agents:
        zero_ns = 0 if agent.ledger is None else _own_zero_ns(agent)
        of_host = known[agent.host] if agent.host else []
        for position, (number, boot, other_ns) in enumerate(of_host):
            close = not zero_ns or not other_ns or abs(other_ns - zero_ns) <= TOLERANCE_S * 1e9
            if (boot == agent.boot_id) if boot and agent.boot_id else close:
                units.append(number)
                of_host[position] = (number, boot or agent.boot_id, other_ns or zero_ns)
                break
        else:
            units.append(count)
            of_host.append((count, agent.boot_id, zero_ns))
            count += 1
    return units


def _own_zero_ns(agent: AgentEvidence) -> int:
    assert agent.ledger is not None
    return agent.ledger.begin.started_ns - round(agent.ledger.begin.started_s * 1e9)


def _wall_zeros_ns(agents: Sequence[AgentEvidence]) -> list[int]:
    """Return when each monotonic clock was 0. In one boot, all agents of a host have the same: that of the last one."""
    latest: dict[tuple[str, str], tuple[float, int]] = {}
    for agent in agents:
        if agent.ledger is not None and agent.boot_id:
            key = (agent.host, agent.boot_id)
            own = (agent.ledger.begin.started_s, _own_zero_ns(agent))
            latest[key] = max(latest.get(key, own), own)
    return [
        0 if agent.ledger is None else latest.get((agent.host, agent.boot_id), (0.0, _own_zero_ns(agent)))[1]
        for agent in agents
    ]


def _rounds(parts: Parts | None) -> dict[_Round, float]:
    lines = () if parts is None else parts.rounds
    return {(line.index, line.token, line.node_count, line.world_size): line.at_s for line in lines}


def _reference(
    parts: Sequence[Parts | None], units: Sequence[int], rounds: Sequence[Mapping[_Round, float]]
) -> int | None:
    """Return the clock with the most rounds; of several, the one whose node had the lowest rank, then the first."""
    best: dict[int, tuple[int, int, int]] = {}
    for each, unit, own in zip(parts, units, rounds, strict=True):
        if each is None:
            continue
        rank = min((line.node_rank for line in each.rounds), default=1 << 30)
        count, lowest, _ = best.get(unit, (0, -(1 << 30), 0))
        best[unit] = (count + len(own), max(lowest, -rank), -unit)
    return max(best, key=lambda unit: best[unit]) if best else None


def _majority(differences: Mapping[int, _Difference]) -> int | None:
    """Return a clock with which more clocks agree than with the reference. `None` if there is none."""
    ordered = sorted((each.ahead_s, unit) for unit, each in differences.items())
    best, with_reference, high = (0, 0), 0, 0
    for low, (least_s, _) in enumerate(ordered):
        while high < len(ordered) and ordered[high][0] - least_s <= TOLERANCE_S:
            high += 1
        if least_s <= 0 <= ordered[high - 1][0]:
            with_reference = max(with_reference, high - low)
        best = max(best, (high - low, -low))
    count, low = best[0], -best[1]
    return ordered[low + count // 2][1] if count > with_reference else None


def _differences(by_unit: Mapping[int, Mapping[_Round, list[float]]], reference: int | None) -> dict[int, _Difference]:
    """Return each clock's difference to the reference. Clocks that share no round with others are absent.

    A clock that shares rounds only with one that was compared itself is compared with that one.
    """
    if reference is None:
        return {}
    found = {reference: _Difference(rounds=0)}
    known: dict[_Round, list[float]] = {key: list(times) for key, times in by_unit[reference].items()}
    waiting = {unit for unit in by_unit if unit != reference}
    while waiting:
        reached = {}
        for unit in sorted(waiting):
            own = by_unit[unit]
            between = [
                here_s - there_s for key, times in own.items() for there_s in known.get(key, ()) for here_s in times
            ]
            if between:
                reached[unit] = _most_agreed(between)
        if not reached:
            return found
        for unit, difference in reached.items():
            found[unit] = difference
            waiting.discard(unit)
            for key, times in by_unit[unit].items():
                if key not in known:
                    known[key] = [at_s - difference.corrected_s for at_s in times]
    return found


def _most_agreed(between: Sequence[float]) -> _Difference:
    """Return the difference on which the most common rounds agree.

    Rounds of several attempts may have equal numbers: then only the true pairs agree with each other.
    """
    ordered = sorted(between)
    best: tuple[int, float, int] = (0, 0.0, 0)
    high = 0
    for low, least_s in enumerate(ordered):
        while high < len(ordered) and ordered[high] - least_s <= 2 * TOLERANCE_S:
            high += 1
        best = max(best, (high - low, -abs(least_s), low))
    count, _, low = best
    agreed = ordered[low : low + count]
    middle_s = median(agreed)
    return _Difference(
        ahead_s=middle_s, spread_s=median(abs(each_s - middle_s) for each_s in agreed), rounds=len(agreed)
    )


def _sentence(agents: Sequence[AgentEvidence], units: Sequence[int], differences: Mapping[int, _Difference]) -> str:
    names: dict[int, str] = {}
    for agent, unit in zip(agents, units, strict=True):
        if agent.ledger is not None:
            name = agent.node_id or agent.host
            names[unit] = name if names.get(unit, name) == name else agent.host or name
    if not names:
        return "No node has a ledger, so that no clocks were compared."
    if len(names) == 1:
        return f"All times are of the clock of {next(iter(names.values()))}."
    compared = {unit: each for unit, each in differences.items() if each.rounds}
    reference = next((names[unit] for unit, each in differences.items() if not each.rounds), "")
    moved = {unit: each for unit, each in compared.items() if each.corrected_s}
    parts = []
    if moved:
        worst = sorted(moved.items(), key=lambda each: -abs(each[1].corrected_s))
        shown = ", ".join(f"{names[unit]} was {_ahead(each.corrected_s)}" for unit, each in worst[:3])
        more = f", and {len(worst) - 3} more" if len(worst) > 3 else ""
        parts.append(f"Clocks were aligned to that of {reference} at rounds that nodes have in common: {shown}{more}.")
    elif compared:
        largest_s = max(abs(each.ahead_s) for each in compared.values())
        parts.append(
            f"The clocks of {len(compared) + 1} nodes differ by at most {duration_text(round(largest_s, 2))} at rounds "
            "that they have in common: no clock was corrected."
        )
    alone = [name for unit, name in names.items() if unit not in differences]
    if alone:
        shown = ", ".join(alone[:3]) + (f" and {len(alone) - 3} more" if len(alone) > 3 else "")
        parts.append(f"{shown} shares no round with {reference}: its own clock counts.")
    return " ".join(parts)


def _ahead(offset_s: float) -> str:
    return f"{duration_text(abs(offset_s))} {'ahead' if offset_s > 0 else 'behind'}"
