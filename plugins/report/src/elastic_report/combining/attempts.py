"""The attempts of a run: groups of agents that ran together. Times are seconds on the common clock."""

from collections.abc import Sequence

from elastic_core.api import Record


class Presence(Record, frozen=True, kw_only=True):
    """When one agent ran, and its result."""

    begin_s: float
    end_s: float
    outcome: str = ""
    first_round: int | None = None
    """The number of its first round. `None` if it was in none, or it is not known."""


def attempts_of(presences: Sequence[Presence]) -> list[list[int]]:
    """Return the positions of the agents of each attempt, in order of time.

    Agents that overlap in time are of one attempt. If the last agent of an attempt left no end (it was killed), an
    agent whose first round is not the first of a run belongs to that attempt: other nodes had continued the run.
    """
    order = sorted(range(len(presences)), key=lambda number: (presences[number].begin_s, number))
    groups: list[list[int]] = []
    until_s = 0.0
    for number in order:
        agent = presences[number]
        continued = (agent.first_round or 0) > 0 and groups and not presences[groups[-1][-1]].outcome
        if groups and (agent.begin_s < until_s or continued):
            groups[-1].append(number)
            until_s = max(until_s, agent.end_s)
        else:
            groups.append([number])
            until_s = agent.end_s
    return groups


def since_last_success(groups: Sequence[Sequence[int]], presences: Sequence[Presence]) -> list[list[int]]:
    """Return the attempts after the last one that succeeded; that one alone, if no attempt followed."""
    ended_well = [_succeeded([presences[number] for number in group]) for group in groups]
    begin = max((number + 1 for number, well in enumerate(ended_well[:-1]) if well), default=0)
    return [list(group) for group in groups[begin:]]


def _succeeded(agents: Sequence[Presence]) -> bool:
    outcomes = {agent.outcome for agent in agents if agent.outcome}
    return outcomes == {"succeeded"}
