"""The lines about a waiting member: which nodes have joined, and which are missing. Pure."""

from collections.abc import Sequence

from elastic_core.rendezvous.member.duty import LAST_CALL
from elastic_core.rendezvous.member.state import State

_SHOWN = 8
_REASONS = 3
_CALL_OPTION = "--rdzv-conf last_call_timeout"


def _here(state: State) -> list[str]:
    """Return the nodes that want a place, as far as known."""
    return [m.record.node for m in state.seen.members if m.record.epoch == state.run.epoch and m.record.state != "out"]


def _count(state: State) -> int:
    out = [m for m in state.seen.members if m.record.epoch == state.run.epoch and m.record.state == "out"]
    return max(state.seen.live - len(out), len(_here(state)))


def _refused(state: State) -> dict[str, str]:
    """Return the nodes with hooks that refuse, each with the reason; also nodes that gave up because of that."""
    own = {} if state.waiting.absence is None else {state.me.node: state.waiting.absence.text}
    return {**state.waiting.refusals, **own}


def _reasons(state: State) -> str:
    """Return why nodes are out, as the end of a line; empty if none is."""
    shown = [f"{node} is out: {reason}" for node, reason in _refused(state).items()]
    more = [f"and {len(shown) - _REASONS} more are out"] if len(shown) > _REASONS else []
    return "".join(f"; {text}" for text in (*shown[:_REASONS], *more))


def lacks_refused(state: State) -> bool:
    """Return whether a round would form if no hook refused, as far as this node knows."""
    here, out = _count(state), _refused(state)
    enough = here < state.me.min_nodes <= here + len(out)
    return state.trouble is None and (enough or state.waiting.absence is not None)


def named(names: Sequence[str], most: int = 4) -> str:
    """Return the first names, and the number of further ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nodes(count: int) -> str:
    """Return a number of nodes as text."""
    return "1 node" if count == 1 else f"{count} nodes"


def _came(state: State) -> str:
    here, count = _here(state), _count(state)
    shown = f" ({named(here, _SHOWN)})" if here else ""
    if count >= state.me.min_nodes:
        return f"{nodes(count)} joined{shown}, at least {state.me.min_nodes} needed"
    return f"{count} of at least {nodes(state.me.min_nodes)} joined{shown}"


def _absent(state: State) -> list[str]:
    """Return the nodes of the last round that have not joined."""
    here = {*_here(state), *_refused(state)}
    return [] if state.run.kept_round is None else [e.node for e in state.run.kept_round.roster if e.node not in here]


def _busy(state: State) -> str:
    """Return which nodes delay the round because their old workers have not ended; empty if none does."""
    names = [
        member.record.node
        for member in state.seen.members
        if member.record.epoch == state.run.epoch and member.record.state in ("running", "finishing", "leaving")
    ]
    return f"the old workers of {named(names, _SHOWN)} have not ended yet" if names else ""


def _call_left_s(state: State, now_s: float) -> tuple[float, bool]:
    """Return the seconds left of the last call, and whether that is known; if not, it is an upper limit."""
    if state.duty.obstacle not in ("", LAST_CALL):
        return 0.0, True
    begun = state.seen.round is not None and state.seen.round.epoch == state.run.epoch
    call_s = state.me.last_call_s if begun else state.me.first_call_s
    enough_s = state.duty.memory.enough_s
    if enough_s is None and not state.duty.outstanding:  # only the leader and its deputies count it
        return state.waiting.since_s + call_s - now_s, False
    return (0.0 if state.duty.outstanding or enough_s is None else enough_s + call_s - now_s), True


def _leader(state: State) -> str:
    names = [
        m.record.node
        for m in state.seen.members
        if m.record.epoch == state.run.epoch and m.record.state not in ("leaving", "gone")
    ]
    return names[0] if names else ""


def _obstacle(state: State, now_s: float) -> str:
    """Return what prevents a round although enough nodes have joined."""
    if busy := _busy(state):
        return busy
    left_s, known = _call_left_s(state, now_s)
    if left_s > 0:
        return f"last call for more, {'' if known else 'at most '}{left_s:.0f} s left ({_CALL_OPTION})"
    leader = _leader(state)
    who = "this node" if leader == state.me.node else leader or "another node"
    return state.duty.obstacle or f"{who} leads the run, and has not formed the round yet"


def waiting(state: State, now_s: float) -> str:
    """Return the line that a waiting node prints at intervals."""
    if state.waiting.spare and state.run.kept_round is not None:
        size = nodes(len(state.run.kept_round.roster))
        return f"run {state.me.run_id!r} goes on with {size}: waiting for its next round, or its end"
    short = max(0, state.me.min_nodes - _count(state))
    absent = _absent(state)
    lacks = f"; {short} missing" if short else ""
    if absent and short:
        lacks += f" (the last round had {named(absent, _SHOWN)})"
    if not short:
        return f"run {state.me.run_id!r}: {_came(state)}: {_obstacle(state, now_s)}"
    return f"run {state.me.run_id!r}: waiting for nodes: {_came(state)}{lacks}{_reasons(state)}"


def timed_out(state: State, now_s: float) -> str:
    """Return the error text of a node after its join timeout."""
    timeout_s = state.me.join_timeout_s
    if state.trouble is not None:
        return f"run {state.me.run_id!r}: no round within {timeout_s:g} s: {state.trouble.text}"
    here = _count(state)
    short = state.me.min_nodes - here
    if short <= 0 and state.waiting.absence is not None:
        return f"run {state.me.run_id!r}: no round within {timeout_s:g} s{_reasons(state)}"
    if short <= 0:
        return f"run {state.me.run_id!r}: no round within {timeout_s:g} s: {_came(state)}: {_obstacle(state, now_s)}"
    lacks = f", {short} missing"
    # Nodes with a shorter timeout may have given up a moment before this one.
    if state.waiting.most > here + len(_refused(state)):
        lacks += f"; at one time there were {state.waiting.most}"
    return f"run {state.me.run_id!r}: {_came(state)} within {timeout_s:g} s{lacks}{_reasons(state)}"


def missing(state: State, now_s: float) -> str:
    """Return the hint of that error."""
    if state.trouble is not None:
        return state.trouble.hint or "look at the store, or raise --join-timeout"
    if lacks_refused(state):
        return f"mend {', '.join(list(_refused(state))[:_REASONS])}, start more nodes, or raise --join-timeout"
    if _count(state) < state.me.min_nodes:
        absent = _absent(state)
        look = f"look at {named(absent, _SHOWN)}, " if absent else ""
        return f"{look}start more nodes, or raise --join-timeout"
    if _busy(state):
        return "raise --join-timeout, or lower --shutdown-timeout of the nodes that have workers"
    if _call_left_s(state, now_s)[0] > 0:
        return f"a shorter last call ({_CALL_OPTION}=S), or a longer --join-timeout"
    leader = _leader(state)
    look = f"look at {leader}, or " if leader and leader != state.me.node else ""
    return f"{look}raise --join-timeout"
