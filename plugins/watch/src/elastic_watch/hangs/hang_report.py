"""Reports of hangs: on the console at half the limit, to the policy at the limit. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_core.api.feed import RankStep
from elastic_core.api.tools import rank_ranges
from elastic_watch.hangs.detector import Late, Stall, odd_ones_out
from elastic_watch.stacks import WorkerStack

RECOVERED: Final = "all ranks make progress again"
_PEERS: Final = "/torch/distributed/"


class RankReport(Record, frozen=True, kw_only=True):
    """One rank of this node, late or not, at the time when a rank was late.

    `quiet_s` is `None` for a rank that is not late. `state` is the kernel's letter, `wait` the kernel function in which
    it sleeps, `cpu_share` the number of processors it used recently (`None` if not known). `stack_file` has all its
    threads; empty if there is none.
    """

    local_rank: int
    global_rank: int
    pid: int
    step: int | None = None
    quiet_s: float | None = None
    state: str = ""
    wait: str = ""
    cpu_share: float | None = None
    stack: WorkerStack = WorkerStack()
    stack_file: str = ""

    @property
    def waits(self) -> bool:
        """Whether it is in a collective, or another call that needs its peers, called by the user's own code."""
        called = self.stack.frames[max(0, self.stack.user_frame) :]
        return any(_PEERS in file for file, *_ in called)


class HangReport(Record, frozen=True, kw_only=True):
    """A hang: the state of each rank of this node, and the first causes, by local rank."""

    stall: Stall
    ranks: tuple[RankReport, ...]
    blamed: tuple[int, ...]
    folder: str
    """The folder of the stacks; empty if there are none."""
    elsewhere: tuple[RankStep, ...] = ()
    """Ranks of other nodes that have not reached the furthest step."""

    @property
    def blames_others(self) -> bool:
        """Whether other nodes' ranks are behind, and none of this node's."""
        return bool(self.elsewhere) and not self.stall.behind

    def rank(self, local_rank: int) -> RankReport:
        """Return one rank's report."""
        return next(each for each in self.ranks if each.local_rank == local_rank)


def blame(stall: Stall, ranks: Iterable[RankReport]) -> tuple[int, ...]:
    """Return the local ranks that caused the hang, the first cause first.

    These are the ranks that are behind the others; else those that don't wait for peers while others do; else those at
    another place than the majority; else all late ranks.
    """
    suspects = stall.suspects
    if not stall.behind:
        seen = [each for each in ranks if each.local_rank in suspects]
        alone = tuple(each.local_rank for each in seen if not each.waits)
        if not 0 < len(alone) < len(seen):
            alone = odd_ones_out({each.local_rank: each.stack.place for each in seen})
        suspects = alone or suspects
    quiet_s = {each.local_rank: each.quiet_s for each in stall.late}
    return tuple(sorted(suspects, key=lambda rank: (-quiet_s[rank], rank)))


def waits_elsewhere(report: HangReport) -> bool:
    """Return whether all late ranks wait for their peers: the cause is on another node."""
    late = {each.local_rank for each in report.stall.late}
    return not report.stall.behind and all(each.waits for each in report.ranks if each.local_rank in late)


def warning(report: HangReport) -> str:
    """Return the line for the console at half the limit."""
    others = "; the others have" if report.stall.behind else ""
    stacks = f"; stacks: {report.folder}" if report.folder else ""
    return f"{summary(report)}{others}{stacks}"


def headline(rank: RankReport) -> str:
    """Return the heading of one rank's stacks."""
    parts = [f"rank {rank.global_rank} (local rank {rank.local_rank}), pid {rank.pid}"]
    if rank.step is not None:
        parts.append(f"step {rank.step}")
    if rank.quiet_s is not None:
        parts.append(f"no sign of life for {rank.quiet_s:.3g} s")
    if rank.state:
        parts.append(f"state {rank.state}" + (f" in {rank.wait}" if rank.wait else ""))
    if rank.cpu_share is not None:
        parts.append(f"{rank.cpu_share:.1f} processors")
    return ", ".join(parts)


def summary(report: HangReport) -> str:
    """Return the failure in one line: ranks, step, seconds, place."""
    stall, blamed = report.stall, report.blamed
    late = [each for each in stall.late if each.local_rank in blamed]
    ranks = [report.rank(rank) for rank in blamed]
    several = len(ranks) > 1
    who = f"rank{'s' if several else ''} {_ranges(each.global_rank for each in ranks)}"
    quiet = f"{max(each.quiet_s for each in late):.3g} s"
    place = ranks[0].stack.place
    where = f", in {place}" if place else ""
    if stall.behind:
        have = "have" if several else "has"
        text = f"{who} {have} not reached step {stall.top_step} (at {_steps(late)} for {quiet}{where})"
    elif not all(each.begun for each in late):
        what = "first heartbeat" if stall.by_beats else "output"
        text = f"{who}: no {what} {quiet} after the start{where}"
    elif stall.by_beats:
        at = f" (at step {_steps(late)}{where})" if _steps(late) else where
        text = f"{who}: no heartbeat for {quiet}{at}"
    else:
        text = f"{who}: nothing written or read for {quiet}{where}"
    waiting = "; waiting for other ranks" if waits_elsewhere(report) else ""
    return text + (_elsewhere(report) or waiting) + _section(stall) + _states(ranks)


def _elsewhere(report: HangReport) -> str:
    """Return text with the ranks of other nodes that are behind."""
    if not report.elsewhere:
        return ""
    by_node: dict[str, list[int]] = {}
    for one in report.elsewhere:
        by_node.setdefault(one.node_id, []).append(one.global_rank)
    who = ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} on {node}" for node, ranks in by_node.items()
    )
    low, high = min(one.step for one in report.elsewhere), max(one.step for one in report.elsewhere)
    at = f"at {low}" if low == high else f"at {low} to {high}"
    if report.stall.behind:
        return f"; behind are {who}, too ({at})"
    return f"; waiting for {who}: step {report.stall.top_step} not reached ({at})"


def _steps(late: Sequence[Late]) -> str:
    steps = sorted({each.step for each in late if each.step is not None})
    return "" if not steps else str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def _section(stall: Stall) -> str:
    return f"; section {stall.section!r} is over its limit" if stall.section else ""


def _states(ranks: Sequence[RankReport]) -> str:
    said = []
    for state, words in (("T", "stopped by a signal"), ("D", "in uninterruptible sleep")):
        found = [each for each in ranks if each.state == state]
        if found:
            waits = sorted({each.wait for each in found if each.wait})
            in_kernel = f" ({', '.join(waits)})" if waits else ""
            which = "it is" if len(ranks) == 1 else f"rank {_ranges(each.global_rank for each in found)}:"
            said.append(f"; {which} {words}{in_kernel}")
    return "".join(said)


def _ranges(ranks: Iterable[int]) -> str:
    return rank_ranges(ranks)
