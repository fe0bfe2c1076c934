"""The rounds of a run as its store has them, together with those of running agents on this machine. No I/O."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Ignore
from elastic_ops.run_directories import FoundRun
from elastic_ops.status.keeper import MOST_NODES
from elastic_ops.status.view import PastRoundView, past_rounds
from elastic_ops.stored_run import StoredEnding, StoredRound, StoredRun

_ENDED_BY: Final = {"restart": "failure", "asked": "restart"}
"""The causes of an end by its kind in the store; other kinds are membership changes."""


def rounds_in_store(run: StoredRun, local: Iterable[FoundRun] = ()) -> tuple[PastRoundView, ...]:
    """Return the known rounds of a run, oldest first.

    Args:
        run: The run in its store: its last round, the end of a round, and its failures.
        local: Run directories of the same run; those of running agents have more about their rounds.
    """
    rounds: dict[int, PastRoundView] = {}
    for found in local:
        if found.running and found.status is not None:
            for past in past_rounds(found.status):
                known = rounds.get(past.index)
                if known is None or (past.ended and not known.ended):
                    rounds[past.index] = past
    control, last = run.control, run.round
    for failure in () if control is None else control.history:
        index = failure.round_index
        if index < 0 or isinstance(failure.decision, Ignore):
            continue
        known = rounds.get(index, PastRoundView(index=index, node_count=0, world_size=0))
        if not known.ended_by:
            rounds[index] = replace(known, ended_by="failure", reason=failure.summary, ended_s=failure.at_s)
    if last is not None:
        rounds[last.index] = _last(rounds.get(last.index), last)
    ending = None if control is None else control.ending
    if last is not None and ending is not None and ending.token:
        _add_end(rounds, ending, last)
    return tuple(rounds[index] for index in sorted(rounds))


def _last(known: PastRoundView | None, last: StoredRound) -> PastRoundView:
    """Return the run's last round, with what is known about it from elsewhere."""
    if known is not None and known.began:
        return known
    return replace(
        known or PastRoundView(index=last.index),
        token=last.token,
        node_count=len(last.roster),
        world_size=sum(entry.nproc for entry in last.roster),
        began_s=last.at_s,
    )


def _add_end(rounds: dict[int, PastRoundView], ending: StoredEnding, last: StoredRound) -> None:
    """Add the end in the store, which is that of the last round or of the round before it."""
    current = (ending.token, ending.nonce) == (last.token, last.nonce)
    if ending.token > last.token or (not current and last.index == 0):
        return
    index = last.index if current else last.index - 1
    known = rounds.get(index, PastRoundView(index=index, token=ending.token, node_count=0, world_size=0))
    if not known.ended_by:
        failure = ending.failure
        reason = ending.reason or (ending.decision.rule if failure is None else failure.summary)
        ended_s = None if known.began_s is None else known.began_s + ending.age_s
        by = _ENDED_BY.get(ending.kind, "membership")
        rounds[index] = replace(known, ended_by=by, reason=reason, ended_s=ended_s)
    following = rounds.get(index + 1)
    if following is None or following.joined_count or following.left_count or following.lost_count:
        return
    # Nodes that only stopped their workers while the store was away are in the round again.
    lost = ending.unclean if ending.kind == "regroup" else ()
    left = tuple(node for node in ending.lost if node not in ending.unclean)
    rounds[index + 1] = replace(
        following,
        joined_count=ending.arrived,
        left=left[:MOST_NODES],
        left_count=len(left),
        lost=lost[:MOST_NODES],
        lost_count=len(lost),
    )
