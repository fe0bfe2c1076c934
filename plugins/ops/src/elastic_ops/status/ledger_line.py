"""The line about where the time went, from the fields that the hook `ledger` of elastic-report publishes. Pure."""

from collections.abc import Mapping
from typing import Final

from elastic_core.api.tools import duration_text

LEDGER: Final = "ledger"
"""The hook's name."""
MOST_CAUSES: Final = 4
_NOT_LOST: Final = ("productive_s", "present_s", "steps_per_s")


def ledger_line(fields: Mapping[str, object]) -> str:
    """Return `time: 93 % productive; lost: 4 min redone, 1 min rendezvous`; empty if the fields are others.

    If the steps are not known, the productive share is a range: `time: 70 to 93 % productive`.
    """
    low, high = fields.get("goodput"), fields.get("goodput_at_most")
    if not isinstance(low, int | float):
        return ""
    share = f"{100 * low:.0f}"
    if isinstance(high, int | float) and f"{100 * high:.0f}" != share:
        share += f" to {100 * high:.0f}"
    line = f"time: {share} % productive"
    causes = lost_causes(fields)
    if causes:
        shown = [f"{duration_text(round(seconds))} {name}" for name, seconds in causes[:MOST_CAUSES]]
        more = f", and {len(causes) - MOST_CAUSES} more" if len(causes) > MOST_CAUSES else ""
        line += f"; lost: {', '.join(shown)}{more}"
    step, rate = fields.get("step"), fields.get("steps_per_s")
    if isinstance(step, int):
        line += f"; step {step}" + (f", {rate:.3g}/s" if isinstance(rate, int | float) else "")
    return line


def lost_causes(fields: Mapping[str, object]) -> list[tuple[str, float]]:
    """Return the states that lost time, with their seconds, the longest first. Those below half a second are absent."""
    found = [
        (name.removesuffix("_s").replace("_", " "), float(value))
        for name, value in fields.items()
        if name.endswith("_s") and name not in _NOT_LOST and isinstance(value, int | float) and value >= 0.5
    ]
    return sorted(found, key=lambda cause: -cause[1])
