"""The shares of a run's time by state, from the fields that the hook `ledger` of elastic-report publishes. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_ops.status.recent import ns_of
from elastic_ops.status.view import RunView

HOOK: Final = "ledger"
"""The hook's name."""
DISTRIBUTION: Final = "elastic-report"
"""The distribution that has it."""
STATES: Final = (
    "productive",
    "redone",
    "saving",
    "restoring",
    "starting",
    "rendezvous",
    "restarting",
    "deciding",
    "stopping",
    "hung",
    "store outage",
    "excluded",
    "drained",
    "queued",
)
"""The states in the order of the bar."""


class LedgerBar(Record, frozen=True, kw_only=True):
    """Where the time went. `parts`: the states with their seconds of all shown agents, in the order of the bar.

    `low` and `high` are the bounds of the goodput, equal if the steps are known, and `None` without time. `state`: the
    agent's current one; empty if there are several agents. `step`: the lowest; `None` if not known.
    """

    parts: tuple[tuple[str, float], ...]
    low: float | None = None
    high: float | None = None
    state: str = ""
    step: int | None = None
    steps_per_s: float | None = None

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        return sum(seconds for _, seconds in self.parts)


def ledger_bar(runs: Sequence[RunView], *, now_ns: int) -> LedgerBar | None:
    """Return the bar of a run's agents, added up. `None` if no agent publishes a ledger.

    The hook publishes when the state changes. The time since then is added to the current state by `now_ns`, this
    host's wall clock, while the agent lives.
    """
    seconds = dict.fromkeys(STATES, 0.0)
    unknown_s, states = 0.0, []
    steps: list[int] = []
    rates: list[float] = []
    for run in runs:
        fields = run.hooks.get(HOOK)
        if not fields:
            continue
        own = _seconds(fields)
        base_s = sum(own.values()) - own["queued"]
        goodput, most = _number(fields.get("goodput")), _number(fields.get("goodput_at_most"))
        if goodput is not None and most is not None:
            unknown_s += max(0.0, most - goodput) * base_s
        state = str(fields.get("state", ""))
        states.append(state)
        if state in own and run.verdict is None and run.agent is not None and run.agent.alive:
            own[state] += _since_publication_s(run, fields, base_s, now_ns)
        for name, value in own.items():
            seconds[name] += value
        step, rate = _number(fields.get("step")), _number(fields.get("steps_per_s"))
        steps += [] if step is None else [int(step)]
        rates += [] if rate is None else [rate]
    if not states:
        return None
    base_s = sum(seconds.values()) - seconds["queued"]
    high = seconds["productive"] / base_s if base_s > 0 else None
    return LedgerBar(
        parts=tuple((name, value) for name, value in seconds.items() if value > 0),
        low=None if high is None else max(0.0, high - unknown_s / base_s),
        high=high,
        state=states[0] if len(states) == 1 else "",
        step=min(steps, default=None),
        steps_per_s=min(rates, default=None),
    )


def _seconds(fields: Mapping[str, object]) -> dict[str, float]:
    return {state: max(0.0, _number(fields.get(f"{state.replace(' ', '_')}_s")) or 0.0) for state in STATES}


def _since_publication_s(run: RunView, fields: Mapping[str, object], base_s: float, now_ns: int) -> float:
    """Return the seconds of the current state that the published fields do not have yet.

    The agent's age without the published time is the time since the publication. This time is at most the age of the
    state, which is less if the hook has published between two changes of state.
    """
    since_ns = _number(fields.get("since_ns"))
    started_ns = 0 if run.agent is None else ns_of(run.agent.started)
    ages = [] if since_ns is None else [(now_ns - since_ns) / 1e9]
    ages += [(now_ns - started_ns) / 1e9 - base_s] if started_ns else []
    return max(0.0, min(ages, default=0.0))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def filled(parts: Sequence[tuple[str, float]], cells: int) -> list[tuple[str, int]]:
    """Return how many of `cells` each part gets, in their order: the sum is `cells`, by the largest remainders."""
    total = sum(seconds for _, seconds in parts)
    if total <= 0 or cells <= 0:
        return []
    exact = [seconds / total * cells for _, seconds in parts]
    whole = [int(share) for share in exact]
    by_rest = sorted(range(len(parts)), key=lambda at: exact[at] - whole[at], reverse=True)
    for at in by_rest[: cells - sum(whole)]:
        whole[at] += 1
    return [(name, count) for (name, _), count in zip(parts, whole, strict=True) if count]


def shares(parts: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Return each state with its share such as `78%` or `<1%`, `productive` first, then the largest first."""
    total = sum(seconds for _, seconds in parts)
    if total <= 0:
        return []
    ranked = sorted(parts, key=lambda part: (part[0] != "productive", -part[1]))
    return [(name, percent(seconds / total)) for name, seconds in ranked]


def percent(share: float) -> str:
    """Return `78%`; `<1%` for less than half a percent that is not zero, and `>99%` accordingly."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
