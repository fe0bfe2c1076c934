"""Reports of hangs: on the console at half the limit, to the policy at the limit. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_core.api.tools import rank_ranges
from elastic_watch.collectives import texts
from elastic_watch.collectives.calls import certain, in_engine, waits_for_one
from elastic_watch.collectives.evidence import Attribution, Cause
from elastic_watch.hangs.asking import Conclusion, is_decisive
from elastic_watch.hangs.detector import Late, Stall, odd_ones_out
from elastic_watch.hangs.steps import RankStep
from elastic_watch.stacks import WorkerStack, is_own_code

RECOVERED: Final = "all ranks make progress again"
_PEERS: Final = "/torch/distributed/"
_STOPPED: Final = tuple("TtD")
"""The kernel's letters of a process that can't write its stack."""
MOST_PLACES: Final = 3
"""The limit of ranks whose place is in one line."""
MOST_DETAILS: Final = 2
"""The limit of further sentences in one line."""


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
    call: str = ""
    """The call of torch.distributed in which its main thread is (`calls.call_of`)."""
    responded: bool = False
    """Whether it wrote the state of its process groups on request: then its interpreter runs."""

    @property
    def waits(self) -> bool:
        """Whether it is in a collective, or another call that needs its peers, called by the user's own code."""
        called = self.stack.frames[max(0, self.stack.user_frame) :]
        return certain(self.call) or any(_PEERS in file and not is_own_code(file) for file, *_ in called)

    @property
    def may_wait(self) -> bool:
        """Whether it computes gradients, or waits for a collective of theirs: its frames are the same in both cases."""
        return in_engine(self.call, self.stack.frames)


class HangReport(Record, frozen=True, kw_only=True):
    """A hang: the state of each rank of this node, and the first causes, by local rank."""

    stall: Stall
    ranks: tuple[RankReport, ...]
    blamed: tuple[int, ...]
    """Empty if the cause is on another node, or if the evidence names no rank."""
    folder: str
    """The folder of the stacks; empty if there are none."""
    recorder: str = ""
    """The folder of the recorder's files; empty if there are none."""
    elsewhere: tuple[RankStep, ...] = ()
    """Ranks of other nodes that have not reached the furthest step, and certainly do not wait for other ranks."""
    conclusion: Conclusion | None = None
    """What follows from the evidence of all nodes. `None` if there is none."""
    ras: tuple[str, ...] | None = None
    """Sentences of NCCL's RAS service. `None` without a response."""

    @property
    def attribution(self) -> Attribution | None:
        """The cause in collectives. `None` if it is not known: then steps, stacks and silence count."""
        found = None if self.conclusion is None else self.conclusion.attribution
        return None if found is None or not is_decisive(found) else found

    @property
    def disputed(self) -> str:
        """Why no rank is named although there is evidence against one; empty otherwise."""
        return "" if self.conclusion is None else self.conclusion.disputed

    @property
    def is_behind(self) -> bool:
        """Whether the blamed ranks are those that are behind the others in steps, and some of them do not wait."""
        if not self.blamed or self.disputed or names_none(self) or all(self.rank(rank).waits for rank in self.blamed):
            return False
        return set(self.blamed) <= set(self.stall.behind)

    @property
    def blames_others(self) -> bool:
        """Whether other nodes' ranks are behind, and none of this node's."""
        return bool(self.elsewhere) and not self.stall.behind and not self.disputed

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """The global ranks that are suspected, on any node. Ranks that wait for others are none."""
        found = self.attribution
        if found is not None:
            return found.culprits
        if self.disputed:
            return ()
        if self.blames_others:
            return tuple(one.global_rank for one in self.elsewhere)
        if names_none(self):
            return ()
        return tuple(self.rank(rank).global_rank for rank in self.blamed)

    def rank(self, local_rank: int) -> RankReport:
        """Return one rank's report."""
        return next(each for each in self.ranks if each.local_rank == local_rank)


def blame(
    stall: Stall, ranks: Iterable[RankReport], conclusion: Conclusion | None = None, *, free_elsewhere: bool = False
) -> tuple[int, ...]:
    """Return the local ranks that caused the hang, the first cause first.

    If the evidence of collectives names a cause, they are its culprits on this node, or none. Otherwise they are the
    ranks that are behind the others, unless those may wait for peers; else those that don't wait for peers while others
    do, unless most ranks don't wait and are at different places, or others may wait for one rank each; else those at
    another place than the majority, if no rank waits for peers; else all late ranks.

    A rank without a stack which has responded, and is not stopped, may only be slow: while others wait, it is no
    suspect beside one whose stack is known, unless it is behind. A rank in `backward()` may wait, too: if all others
    wait, it is named only if no rank of the run waits nowhere, and no more ranks are in `backward()` than in other
    calls.

    Args:
        stall: What the checks say of this node's ranks.
        ranks: This node's ranks.
        conclusion: What follows from the evidence of all nodes.
        free_elsewhere: Whether a rank of another node may run and wait nowhere.
    """
    seen = list(ranks)
    quiet_s = {each.local_rank: each.quiet_s for each in stall.late}
    if conclusion is not None and conclusion.disputed:
        return tuple(sorted(quiet_s, key=lambda rank: (-quiet_s[rank], rank)))
    if conclusion is not None and is_decisive(conclusion.attribution):
        order = {rank: index for index, rank in enumerate(conclusion.attribution.culprits)}
        named = [each for each in seen if each.global_rank in order]
        return tuple(each.local_rank for each in sorted(named, key=lambda each: order[each.global_rank]))
    late = [each for each in seen if each.local_rank in quiet_s]
    alone = tuple(each.local_rank for each in late if not each.waits)
    own = tuple(each.local_rank for each in late if each.local_rank in alone and not each.may_wait)
    suspects = tuple(rank for rank in stall.behind if rank in own)
    if not suspects:
        slow = {
            each.local_rank for each in late if each.responded and not each.stack.frames and each.state not in _STOPPED
        }
        if len(own) < len(late) and any(each.stack.frames for each in late if each.local_rank in own):
            own = tuple(rank for rank in own if rank not in slow)
        suspects = own or alone
        recorded = conclusion is not None and "recorder" in conclusion.attribution.evidence
        places = {each.local_rank: each.stack.place for each in late}
        if not own and (free_elsewhere or _most_in_backward(len(alone), len(late), conclusion)):
            suspects = ()
        elif len(suspects) == len(late) and not (recorded or stall.behind):
            suspects = odd_ones_out(places)
        elif 2 * len(suspects) > len(late) and (recorded or len({places[rank] for rank in suspects}) > 1):
            suspects = ()  # the few that wait may be the ones at a wrong place
        elif recorded and len(late) > 2 and any(waits_for_one(each.call) for each in late):
            suspects = ()  # two ranks may wait for each other, and for none of the suspects
    return tuple(sorted(suspects or quiet_s, key=lambda rank: (-quiet_s[rank], rank)))


def _most_in_backward(computing: int, late: int, conclusion: Conclusion | None) -> bool:
    """Return whether more ranks compute gradients, or wait for theirs, than wait in other calls, here or in the run."""
    everywhere = 0 if conclusion is None else conclusion.in_backward - conclusion.waiting
    return max(computing - (late - computing), everywhere) > 0


def waits_elsewhere(report: HangReport) -> bool:
    """Return whether all late ranks wait for their peers: the cause is on another node."""
    return all(each.waits for each in _late(report))


def may_wait_elsewhere(report: HangReport) -> bool:
    """Return whether all late ranks wait for their peers, or compute gradients: the cause may be on another node."""
    return all(each.waits or each.may_wait for each in _late(report))


def names_none(report: HangReport) -> bool:
    """Return whether all late ranks may wait for their peers, and nothing tells one of them from the others."""
    return may_wait_elsewhere(report) and len(report.blamed) == len(report.stall.late)


def _late(report: HangReport) -> list[RankReport]:
    late = {each.local_rank for each in report.stall.late}
    return [each for each in report.ranks if each.local_rank in late]


def warning(report: HangReport) -> str:
    """Return the line for the console at half the limit."""
    others = "; the others have" if report.is_behind and report.attribution is None else ""
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
    if report.attribution is not None:
        return _in_collectives(report, report.attribution)
    stall, blamed = report.stall, report.blamed
    late = [each for each in stall.late if each.local_rank in blamed]
    ranks = [report.rank(rank) for rank in blamed]
    several = len(ranks) > 1
    who = f"rank{'s' if several else ''} {_ranges(each.global_rank for each in ranks)}"
    quiet = f"{max(each.quiet_s for each in late):.3g} s"
    place = ranks[0].stack.place
    where = f", in {place}" if place else ""
    if report.is_behind:
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
    waiting = ""
    if names_none(report):
        waiting = "; waiting for other ranks" + ("" if waits_elsewhere(report) else ", or computing gradients")
    disputed = f"; {report.disputed}" if report.disputed else ""
    return text + (_elsewhere(report) or waiting) + disputed + _section(stall) + _states(ranks)


def _in_collectives(report: HangReport, found: Attribution) -> str:
    """Return the cause in collectives, with the place of its culprits, and for how long they are silent."""
    places = {} if report.conclusion is None else dict(report.conclusion.places)
    own = {each.global_rank: each for each in report.ranks if each.local_rank in report.blamed}
    places |= {rank: each.stack.place for rank, each in own.items() if each.stack.place}
    several = len(found.culprits) > 1
    parts = []
    for rank in found.culprits[:MOST_PLACES]:
        seen = own.get(rank)
        known = [f"in {places[rank]}"] if rank in places else []
        if seen is not None and seen.step is not None:
            known.append(f"at step {seen.step}")
        if seen is not None and seen.quiet_s is not None:
            known.append(f"silent for {seen.quiet_s:.3g} s")
        if known:
            parts.append((f"rank {rank} is " if several else "it is ") + ", ".join(known))
    if found.cause in {Cause.MISMATCH, Cause.DIFFERENT_ORDER}:
        parts += [each.rstrip(".") for each in found.details[:MOST_DETAILS]]
    where = "".join(f"; {part}" for part in parts)
    return texts.headline(found) + where + _section(report.stall) + _states(list(own.values()))


def _elsewhere(report: HangReport) -> str:
    """Return text with the ranks of other nodes that are behind."""
    if not report.elsewhere or report.disputed:
        return ""
    by_node: dict[str, list[int]] = {}
    for one in report.elsewhere:
        by_node.setdefault(one.node_id, []).append(one.global_rank)
    who = ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} on {node}" for node, ranks in by_node.items()
    )
    low, high = min(one.step for one in report.elsewhere), max(one.step for one in report.elsewhere)
    at = f"at {low}" if low == high else f"at {low} to {high}"
    if report.is_behind:
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
