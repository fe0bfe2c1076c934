"""Sentences on the cause of a hang in collectives. Pure."""

from collections.abc import Sequence
from typing import Final

from elastic_core.api.tools import clean, rank_ranges
from elastic_watch.collectives.evidence import Attribution, Cause

_KINDS: Final = {"recorder": "flight recorder", "ras": "NCCL RAS"}


def headline(found: Attribution) -> str:
    """Return the cause in one line."""
    return clean(_headline(found))


def details(found: Attribution) -> str:
    """Return the second line: further facts, and the evidence that was available."""
    kinds = [_KINDS.get(kind, kind) for kind in found.evidence]
    listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else "".join(kinds)
    waits = [f"The operation is {_what(found)}."] if _leaves_out_operation(found) else []
    return clean(" ".join([*waits, *found.details, f"Evidence: {listed or 'none'}."]))


def _headline(found: Attribution) -> str:
    here = len(found.culprits) - found.elsewhere
    named, waiting = _culprits(found, 0, here), _waiting(found)
    several = here > 1
    match found.cause:
        case Cause.MISSING if found.operation is None:
            return f"{named} {'are' if several else 'is'} in {'their' if several else 'its'} own code{waiting}"
        case Cause.MISSING:
            return f"{named} {'have' if several else 'has'} not entered {_what(found)}{_elsewhere(found)}{waiting}"
        case Cause.MISMATCH if not found.culprits:
            return f"the ranks of group {found.group} entered different operations as #{_seq(found)}"
        case Cause.MISMATCH:
            return (
                f"{named} entered another operation than most ranks as #{_seq(found)} of group {found.group}{waiting}"
            )
        case Cause.DIFFERENT_ORDER:
            return (
                f"ranks entered operations of several groups in different orders: {_count(found)} wait for each other"
            )
        case Cause.ALL_ENTERED:
            return f"all ranks have entered {_what(found)}, which does not complete: check the network and the devices"
        case Cause.ENDED:
            return f"{named} {'have' if several else 'has'} ended{waiting}"
        case Cause.NO_RESPONSE if found.culprits:
            return f"{named} {'do' if several else 'does'} not respond{waiting}"
        case _ if found.waiting_count and found.operation:  # also ranks without a response, none of which is named
            waits = "waits" if found.waiting_count == 1 else "wait"
            return f"{_count(found)} {waits} in {_what(found)}: the evidence does not name a cause"
        case _:
            return "the evidence does not name a cause"


def _leaves_out_operation(found: Attribution) -> bool:
    """Return whether the headline does not name the operation in which ranks wait."""
    named = found.cause in {Cause.ENDED, Cause.NO_RESPONSE} and bool(found.culprits)
    return (named or found.cause is Cause.DIFFERENT_ORDER) and found.operation is not None


def _elsewhere(found: Attribution) -> str:
    """Return text with the culprits that are missing in other groups."""
    if not found.elsewhere:
        return ""
    named = _culprits(found, len(found.culprits) - found.elsewhere, len(found.culprits))
    return f"; {named} {'are' if found.elsewhere > 1 else 'is'} missing in another group"


def _culprits(found: Attribution, begin: int, end: int) -> str:
    """Return culprits with their nodes, such as `rank 17 on node-b, ranks 4, 5 on node-c`."""
    by_node: dict[str, list[int]] = {}
    for rank, node in zip(found.culprits[begin:end], found.nodes[begin:end], strict=False):
        by_node.setdefault(node, []).append(rank)
    parts = [f"{_ranks(ranks)} on {node}" if node else _ranks(ranks) for node, ranks in by_node.items()]
    return ", ".join(parts) or _ranks(found.culprits[begin:end])


def _what(found: Attribution) -> str:
    name = found.operation.name if found.operation else ""
    group = f" of group {found.group}" if found.group else ""
    return f"{name or 'operation'} #{_seq(found)}{group}"


def _seq(found: Attribution) -> int:
    return found.operation.seq if found.operation else 0


def _waiting(found: Attribution) -> str:
    if not found.waiting_count:
        return ""
    it = "them" if len(found.culprits) > 1 else "it"
    return f"; {_count(found)} {'waits' if found.waiting_count == 1 else 'wait'} for {it}"


def _count(found: Attribution) -> str:
    """Return the ranks that wait: a single one by its number."""
    return f"rank {found.waiting[0]}" if found.waiting_count == 1 and found.waiting else f"{found.waiting_count} ranks"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {rank_ranges(sorted(ranks))}"
