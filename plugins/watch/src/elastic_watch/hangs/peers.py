"""The evaluation of a stall in view of other nodes. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from elastic_watch.hangs import detector as hangs
from elastic_watch.hangs.steps import RankStep, RunSteps


class Others:
    """The last responses of all nodes; their age counts on the watch's own clock."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._seen: RunSteps | None = None
        self._seen_s = 0.0

    def take(self, seen: RunSteps, watch: hangs.Watch) -> None:
        """Use the responses of all nodes, which have just arrived."""
        self._seen, self._seen_s = seen, watch.lived_s

    def now(self, watch: hangs.Watch) -> hangs.Elsewhere | None:
        """Return their current meaning. `None` without a request."""
        seen = self._seen
        if seen is None:
            return None
        age_s = watch.lived_s - self._seen_s
        return hangs.Elsewhere(
            max_step=seen.max_step,
            min_step=seen.min_step,
            protected_s=max(0.0, seen.protected_s - age_s),
            quiet_s=None if seen.quiet_s is None else seen.quiet_s + age_s,
        )


def behind(seen: RunSteps, stall: hangs.Stall, own: Iterable[int], *, certain: bool = True) -> tuple[RankStep, ...]:
    """Return the ranks of other nodes that are behind the furthest step, and do not wait for ranks.

    Args:
        seen: The responses of all nodes to the question about this stall: later, those ranks may have gone on.
        stall: This node's.
        own: This node's global ranks.
        certain: Whether ranks that may wait are left out.
    """
    if stall.top_step is None:
        return ()
    mine = frozenset(own)
    return tuple(
        one
        for one in seen.behind
        if one.step < stall.top_step and one.global_rank not in mine and not one.waits
        if not (certain and one.may_wait)
    )


def judged(stall: hangs.Stall, watch: hangs.Watch, elsewhere: hangs.Elsewhere | None) -> hangs.Stall | None:
    """Return a stall in view of other nodes' responses. `None` if they are a reason to wait.

    Such a reason is an open section; or, for workers judged by their output, recent reads or writes there.
    """
    if elsewhere is None:
        return stall
    if not stall.hung:
        half_s = (watch.limits.hang_s or watch.limits.startup_s) / 2
        lately = elsewhere.quiet_s is not None and elsewhere.quiet_s < half_s
        if elsewhere.protected_s > half_s or (lately and not stall.by_beats):
            return None
    steps = [step for step in (stall.top_step, elsewhere.max_step) if step is not None]
    top = max(steps, default=None)
    behind = tuple(
        sorted(each.local_rank for each in stall.late if top is not None and each.step is not None and each.step < top)
    )
    return replace(stall, top_step=top, behind=behind)


def alive(watch: hangs.Watch, ranks: Iterable[int]) -> hangs.Watch:
    """Return the watch after these local ranks gave a sign of life that no check can see, such as a collective."""
    seen = frozenset(ranks)
    workers = {
        rank: replace(each, sign_s=watch.lived_s) if rank in seen else each for rank, each in watch.workers.items()
    }
    return replace(watch, workers=workers)
