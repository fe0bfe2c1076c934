"""What the response of NCCL's RAS service says about its communicators, for people. Pure.

NCCL numbers the ranks of a communicator and names no rank of the run, so no rank is named by it as the cause.
"""

from typing import Final

from elastic_core.api.tools import rank_ranges
from elastic_watch.ras.report import Communicator, RasReport

EVIDENCE: Final = "ras"
MOST_FINDINGS: Final = 4


def findings(report: RasReport) -> tuple[str, ...]:
    """Return sentences for people about ranks that have not responded, or have entered fewer collectives."""
    said: list[str] = []
    for communicator in report.communicators:
        if communicator.size < 2:
            continue
        said += _missing(communicator)
        said += _behind(communicator)
    return tuple(said[:MOST_FINDINGS])


def _missing(communicator: Communicator) -> list[str]:
    return [
        f"NCCL's RAS: process {each.pid} on {each.host} (rank {each.rank} of communicator {communicator.hash}) "
        + ("is dead" if each.status.considered_dead else "does not respond")
        for each in communicator.missing_ranks
        if each.status.considered_dead or each.status.unresponsive
    ]


def _behind(communicator: Communicator) -> list[str]:
    entered = {each.rank: each.entered for each in communicator.ranks}
    if len(set(entered.values())) < 2:
        return []
    most = max(entered.values())
    behind = [rank for rank, count in entered.items() if count < most]
    counts = sorted({entered[rank] for rank in behind})
    are = "has" if len(behind) == 1 else "have"
    fewer = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    who = f"rank{'s' if len(behind) > 1 else ''} {rank_ranges(behind)} of communicator {communicator.hash}"
    return [f"NCCL's RAS: {who} {are} entered {fewer} collectives, the others {most}"]
