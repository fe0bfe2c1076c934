"""Draws the agent's state diagram from its table, so that the picture can't lie."""

from elastic_core.agent.machine.table import STATES, TABLE, Handled, Ignored

HEAD = """# The states of an agent

Drawn from the table in `elastic_core.agent.machine.table`; do not edit.
`python -m elastic_core.agent.machine.diagram` prints it.

"""


def mermaid() -> str:
    """Return the handled pairs as a mermaid state diagram: one arrow for each state and event that may follow."""
    lines = ["stateDiagram-v2", "    [*] --> Created"]
    for state in STATES:
        lines += [
            f"    {state.__name__} --> {target.__name__}: {event.__name__}"
            for event, rule in TABLE[state].items()
            if isinstance(rule, Handled)
            for target in rule.to
        ]
    return "\n".join([*lines, "    Ended --> [*]"])


def table() -> str:
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


def page() -> str:
    """Return the docs page."""
    legend = "An event that a state's table does not name is illegal there."
    return f"{HEAD}```mermaid\n{mermaid()}\n```\n\n{legend}\n\n{table()}\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201  # this module is a generator when run
