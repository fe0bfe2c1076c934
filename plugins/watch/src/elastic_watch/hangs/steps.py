"""The steps of one node's workers and of all nodes, which nodes compare in a hang. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.hangs import detector as hangs

MOST_RANKS: Final = 8
"""The limit of ranks that a node names: the leader reads the responses of all nodes."""
MOST_BEHIND: Final = 16
"""The limit of ranks that are named for the whole run."""


class RankStep(Record, frozen=True, kw_only=True):
    """The step of one worker."""

    global_rank: int
    step: int
    """The last step that it reported."""
    node_id: str = ""
    """The worker's node. Empty means this one."""
    waits: bool = False
    """Whether its main thread is in a call of torch.distributed: then it waits for other ranks."""
    may_wait: bool = False
    """Whether it computes gradients, or waits for a collective of theirs, or its place is not known."""


class NodeSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The steps of one node's workers."""

    node_id: str
    ranks: tuple[int, ...] = ()
    """The global ranks that report steps, at most 8."""
    waiting: tuple[int, ...] = ()
    """Those of `ranks` that are in a call of torch.distributed."""
    may_wait: tuple[int, ...] = ()
    """Those of `ranks` that compute gradients, or wait for a collective of theirs, or whose place is not known."""
    max_step: int | None = None
    """The furthest step of its workers. `None` if no worker reports steps."""
    min_step: int | None = None
    """The smallest step of its workers. `None` if no worker reports steps."""
    behind: tuple[RankStep, ...] = ()
    """Workers that have not reached `max_step`, at most 8."""
    protected_s: float = 0.0
    """How many more seconds a protected section is open. 0 means no section."""
    quiet_s: float | None = None
    """Seconds since one of its workers last gave a sign of life. `None` if not known."""


class RunSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The steps of all nodes that have responded."""

    node_count: int = 0
    """How many nodes have responded."""
    max_step: int | None = None
    """The furthest step of all workers. `None` if no worker reports steps."""
    min_step: int | None = None
    """The smallest step of all workers. `None` if no worker reports steps."""
    behind: tuple[RankStep, ...] = ()
    """Workers that have not reached `max_step`, at most 16, the furthest behind first."""
    protected_s: float = 0.0
    """How many more seconds a protected section is open on any node. 0 means no section."""
    quiet_s: float | None = None
    """Seconds since any worker last gave a sign of life. `None` if not known."""


def node_steps(
    watch: hangs.Watch,
    sightings: Mapping[int, hangs.Sighting],
    *,
    node_id: str,
    ranks: Mapping[int, int],
    waiting: Iterable[int] = (),
    may_wait: Iterable[int] = (),
) -> NodeSteps:
    """Return the progress of this node's workers.

    Args:
        watch: The result of the last check.
        sightings: The current observations, by local rank.
        node_id: This node.
        ranks: Global ranks by local ones.
        waiting: The global ranks whose main thread is in a call of torch.distributed.
        may_wait: The global ranks that compute gradients, or wait for a collective of theirs, or whose place is not
            known.
    """
    steps = {ranks[rank]: seen.step for rank, seen in sightings.items() if seen.step is not None}
    top = max(steps.values(), default=None)
    waits, maybe = frozenset(waiting), frozenset(may_wait)
    # Those that do not wait come first: there may be more ranks than are named.
    order = sorted(steps, key=lambda rank: (rank in waits, rank in maybe, rank))
    behind = [rank for rank in order if top is not None and steps[rank] < top]
    silence = hangs.silence(watch)
    named = order[:MOST_RANKS]
    return NodeSteps(
        node_id=node_id,
        ranks=tuple(named),
        waiting=tuple(rank for rank in named if rank in waits),
        may_wait=tuple(rank for rank in named if rank in maybe),
        max_step=top,
        min_step=min(steps.values(), default=None),
        behind=tuple(
            RankStep(global_rank=rank, step=steps[rank], waits=rank in waits, may_wait=rank in maybe)
            for rank in behind[:MOST_RANKS]
        ),
        protected_s=silence.protected_s,
        quiet_s=silence.quiet_s,
    )


def merged(nodes: Iterable[NodeSteps]) -> RunSteps:
    """Return the steps of all nodes, combined."""
    everyone = list(nodes)
    top = max((each.max_step for each in everyone if each.max_step is not None), default=None)
    behind: list[RankStep] = []
    for each in everyone:
        if each.max_step is None:
            continue
        ranks = list(each.behind)
        if top is not None and each.max_step < top:  # then all its ranks are behind
            known = {one.global_rank for one in ranks}
            ranks += [
                RankStep(
                    global_rank=rank, step=each.max_step, waits=rank in each.waiting, may_wait=rank in each.may_wait
                )
                for rank in each.ranks
                if rank not in known
            ]
        behind += [replace(one, node_id=each.node_id) for one in ranks]
    return RunSteps(
        node_count=len(everyone),
        max_step=top,
        min_step=min((each.min_step for each in everyone if each.min_step is not None), default=None),
        behind=tuple(sorted(behind, key=_order)[:MOST_BEHIND]),
        protected_s=max((each.protected_s for each in everyone), default=0.0),
        quiet_s=min((each.quiet_s for each in everyone if each.quiet_s is not None), default=None),
    )


def _order(one: RankStep) -> tuple[bool, bool, int, int]:
    return one.waits, one.may_wait, one.step, one.global_rank
