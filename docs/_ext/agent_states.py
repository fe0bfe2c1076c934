"""The agent's state diagram and the tables under it, from the machine's table, so that the picture can't lie."""

from collections.abc import Callable, Mapping
from typing import Final

from elastic_core.agent.machine.table import STATES, TABLE, Handled, Ignored


def _mermaid() -> str:
    """Return the handled pairs as a mermaid state diagram: one arrow for each state and event that may follow."""
    lines = ["stateDiagram-v2", "    [*] --> Created"]
    for state in STATES:
        lines += [
            f"    {state.__name__} --> {target.__name__}: {event.__name__}"
            for event, rule in TABLE[state].items()
            if isinstance(rule, Handled)
            for target in rule.to
        ]
    return "\n".join(["```mermaid", *lines, "    Ended --> [*]", "```"])


def _states() -> str:
    """Return every state with its meaning and what it does with each event that is not illegal."""
    parts = []
    for state in STATES:
        rows = [f"## {state.__name__}", "", (state.__doc__ or "").strip(), "", "| event | what follows | may lead to |"]
        rows.append("| --- | --- | --- |")
        for event, rule in TABLE[state].items():
            if isinstance(rule, Handled):
                what = (rule.handler.__doc__ or "").strip()
                rows.append(f"| {event.__name__} | {what} | {', '.join(t.__name__ for t in rule.to)} |")
            elif isinstance(rule, Ignored):
                rows.append(f"| {event.__name__} | ignored: {rule.why} | |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {"agent-diagram": _mermaid, "agent-states": _states}
