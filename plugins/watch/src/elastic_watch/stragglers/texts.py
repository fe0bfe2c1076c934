"""The lines about stragglers. Pure."""

from elastic_core.api.tools import duration_text
from elastic_watch.stragglers.lasting import Straggler
from elastic_watch.stragglers.scores import Slow


def who(slow: Slow) -> str:
    """Return the rank or node."""
    if slow.rank is None:
        return f"node {slow.node_id}"
    return f"rank {slow.rank}" + (f" on {slow.node_id}" if slow.node_id else "")


def times(slow: Slow) -> str:
    """Return how many times the others' work its own is."""
    return f"{1 / slow.score:.3g}" if slow.score > 0 else "many"


def began(straggler: Straggler, *, now_s: float) -> str:
    """Return the line about a straggler."""
    return f"{who(straggler.slow)} is {summary(straggler, now_s=now_s)}"


def summary(straggler: Straggler, *, now_s: float) -> str:
    """Return the failure in one line, without the rank or node."""
    slow = straggler.slow
    whose = "its own work" if slow.rank is not None else "the own work of all its ranks"
    others = "others" if slow.rank is not None else "other nodes"
    for_s = duration_text(now_s - straggler.since_s)
    line = f"slow: {whose} takes {times(slow)} times the median of the {others}, for {for_s}"
    if slow.past_s is not None:
        line += f"; before, it took {duration_text(slow.past_s)} instead of {duration_text(slow.own_s)}"
    if slow.waits > 0:
        line += f"; it waits for a processor {slow.waits:.0%} of the time"
    return line


def ended(straggler: Straggler, *, now_s: float) -> str:
    """Return the line after its end."""
    return f"{who(straggler.slow)} is no longer slow, after {duration_text(now_s - straggler.since_s)}"


def field(straggler: Straggler, *, now_s: float) -> str:
    """Return the field of the status."""
    return f"slow, {times(straggler.slow)} times the others for {duration_text(now_s - straggler.since_s)}"
