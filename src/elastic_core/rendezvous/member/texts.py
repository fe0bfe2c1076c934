"""The lines of a waiting member for people: who has come, and who is missing. Pure."""

from elastic_core.rendezvous.member.state import State

_SHOWN = 8


def _here(state: State) -> list[str]:
    return [member.record.node for member in state.members if member.record.epoch == state.epoch]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def nodes(count: int) -> str:
    """Return how many nodes, in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def _came(state: State) -> str:
    here = _here(state)
    count = max(state.live, len(here))
    named = f" ({_names(here)})" if here else ""
    if count >= state.me.min_nodes:
        return f"{nodes(count)} joined{named}, at least {state.me.min_nodes} needed"
    return f"{count} of at least {nodes(state.me.min_nodes)} joined{named}"


def _absent(state: State) -> list[str]:
    """Return the nodes of the last round that are not here."""
    here = set(_here(state))
    return [] if state.kept_round is None else [e.node for e in state.kept_round.roster if e.node not in here]


def _busy(state: State) -> str:
    """Return who keeps the others waiting though it is here: no round is formed before its old workers are gone."""
    names = [
        member.record.node
        for member in state.members
        if member.record.epoch == state.epoch and member.record.state in ("running", "finishing", "leaving")
    ]
    return f"the old workers of {_names(names)} have not ended yet" if names else ""


def waiting(state: State) -> str:
    """Return the line that a waiting node prints now and then."""
    if state.spare and state.kept_round is not None:
        size = nodes(len(state.kept_round.roster))
        return f"run {state.me.run_id!r} goes on with {size}: waiting for its next round, or its end"
    short = max(0, state.me.min_nodes - max(state.live, len(_here(state))))
    absent = _absent(state)
    lacks = f"; {short} missing" if short else ""
    if absent and short:
        lacks += f" (the last round had {_names(absent)})"
    if not short and (busy := _busy(state)):
        return f"run {state.me.run_id!r}: waiting: {busy}"
    return f"run {state.me.run_id!r}: waiting for {'nodes' if short else 'more nodes'}: {_came(state)}{lacks}"


def timed_out(state: State) -> str:
    """Return what a node says that has waited for too long."""
    timeout_s = state.me.join_timeout_s
    if state.trouble is not None:
        return f"run {state.me.run_id!r}: no round within {timeout_s:g} s: {state.trouble.text}"
    here = max(state.live, len(_here(state)))
    short = state.me.min_nodes - here
    if short <= 0:
        return f"run {state.me.run_id!r}: no round within {timeout_s:g} s: {_busy(state) or _came(state)}"
    lacks = f", {short} missing"
    if state.most > here:  # those who came first have given up first
        lacks += f"; at one time there were {state.most}"
    return f"run {state.me.run_id!r}: {_came(state)} within {timeout_s:g} s{lacks}"


def missing(state: State) -> str:
    """Return what could help it."""
    if max(state.live, len(_here(state))) >= state.me.min_nodes and _busy(state):
        return "raise --join-timeout, or lower --shutdown-timeout of the nodes that have workers"
    absent = _absent(state)
    look = f"look at {_names(absent)}, " if absent else ""
    return f"{look}start more nodes, or raise --join-timeout"
