"""What all nodes are asked in a hang: the response of a node, and the conclusion of all responses. Pure.

Nodes exchange them through the rendezvous, at most `MAX_BYTES` each. A node with another version of this plugin may
send fields that are not known here, which are ignored, or another format, which counts as no response.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import Record
from elastic_core.api.tools import rank_ranges
from elastic_watch.collectives.attribution import attribute
from elastic_watch.collectives.calls import certain, in_backward
from elastic_watch.collectives.evidence import Attribution, Cause, NodeEvidence, RankEvidence, Status
from elastic_watch.collectives.packing import pack, unpack
from elastic_watch.collectives.texts import headline
from elastic_watch.hangs.steps import NodeSteps, RankStep, RunSteps, merged

FORMAT: Final = 1
MAX_BYTES: Final = 16 * 1024
MAX_NODES: Final = 16
MAX_DETAILS: Final = 8
MAX_TEXT: Final = 400
"""The limit of each text in a conclusion, in characters."""


class Response(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All that one node knows of its workers."""

    format: int = FORMAT
    token: int
    """The round's token."""
    node_count: int
    """The number of nodes in the round."""
    steps: NodeSteps
    evidence: bytes = b""
    """A `NodeEvidence`, packed. Empty if there is none."""
    heartbeats: bool = False
    """Whether a worker sends heartbeats."""


class Conclusion(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What follows from the responses of all nodes."""

    format: int = FORMAT
    token: int
    """The round's token."""
    steps: RunSteps
    attribution: Attribution
    places: Mapping[int, str] = {}
    """The innermost line of the user's own code, of culprits whose stack is known, by global rank."""
    disputed: str = ""
    """Why no rank is named although steps or the recorder name one: they contradict each other. Empty otherwise."""
    reporter: str = ""
    """The node that reports the hang as a failure. Empty if each node decides by itself."""
    missing: tuple[str, ...] = ()
    """Nodes without a response, at most 16."""
    free: tuple[str, ...] = ()
    """Nodes that may have a rank which runs and waits for no other rank, at most 16."""
    waiting: int = 0
    """The number of ranks that are certainly in a call of torch.distributed."""
    in_backward: int = 0
    """The number of ranks that compute gradients, or wait for a collective of theirs."""


# --- what is sent


def encoded_response(
    evidence: NodeEvidence | None, steps: NodeSteps, *, token: int, node_count: int, heartbeats: bool
) -> bytes:
    """Return a node's response as bytes; without the evidence if there is none, or if it is too long.

    Args:
        evidence: What the node knows of its ranks in collectives.
        steps: What it knows of their steps.
        token: The round's.
        node_count: The number of nodes in the round.
        heartbeats: Whether a worker of the node sends heartbeats.
    """
    packed = b""
    if evidence is not None:
        with suppress(ValueError):  # of more ranks than fit
            packed = pack(evidence)
    response = Response(token=token, node_count=node_count, steps=steps, evidence=packed, heartbeats=heartbeats)
    data = msgspec.msgpack.encode(response)
    return data if len(data) <= MAX_BYTES else msgspec.msgpack.encode(replace(response, evidence=b""))


def encoded_conclusion(conclusion: Conclusion) -> bytes:
    """Return a conclusion as bytes; without details and places if it is too long."""
    data = msgspec.msgpack.encode(conclusion)
    if len(data) <= MAX_BYTES:
        return data
    brief = replace(conclusion, attribution=replace(conclusion.attribution, details=()), places={})
    return msgspec.msgpack.encode(brief)


def decoded_response(data: bytes) -> Response:
    """Return the response in `data`.

    Raises:
        ValueError: it is no response, or one of another format.
    """
    response = msgspec.msgpack.decode(data, type=Response)
    if response.format != FORMAT:
        raise ValueError(f"format {response.format}; expected {FORMAT}")
    return response


def decoded_conclusion(data: bytes) -> Conclusion:
    """Return the conclusion in `data`.

    Raises:
        ValueError: it is no conclusion, or one of another format.
    """
    conclusion = msgspec.msgpack.decode(data, type=Conclusion)
    if conclusion.format != FORMAT:
        raise ValueError(f"format {conclusion.format}; expected {FORMAT}")
    return conclusion


def content_of(conclusion: Conclusion) -> bytes:
    """Return a conclusion as the content of a file: JSON for people and programs."""
    content = {
        "headline": headline(conclusion.attribution),
        "attribution": conclusion.attribution,
        "places": conclusion.places,
        "disputed": conclusion.disputed,
        "reporter": conclusion.reporter,
        "missing_nodes": conclusion.missing,
        "steps": conclusion.steps,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


# --- what follows


def concluded(answers: Mapping[str, bytes], missing: Sequence[str] = ()) -> Conclusion | None:
    """Return what follows from the responses of all nodes. `None` if no node has sent one that can be read.

    Args:
        answers: The responses, by node id.
        missing: The nodes without a response.
    """
    responses: dict[str, Response] = {}
    unread = list(missing)
    for node_id, data in sorted(answers.items()):
        try:
            responses[node_id] = decoded_response(data)
        except ValueError:
            unread.append(node_id)
    if not responses:
        return None
    token = max(each.token for each in responses.values())
    responses = {node_id: each for node_id, each in responses.items() if each.token == token}
    nodes = [found for each in responses.values() if (found := _evidence(each)) is not None]
    return concluded_from(responses, nodes, unread)


def concluded_from(
    responses: Mapping[str, Response], nodes: Sequence[NodeEvidence], missing: Sequence[str] = ()
) -> Conclusion:
    """Return what follows from responses of one round, and their evidence."""
    steps = merged(each.steps for each in responses.values())
    ranks = {rank.global_rank: rank for node in nodes for rank in node.ranks}
    found = attribute(nodes)
    disputed = contradiction(found, steps.behind, ranks)
    if disputed:
        found = replace(found, cause=Cause.UNKNOWN, culprits=(), nodes=(), details=(disputed, *found.details))
    found = _bounded(replace(found, evidence=_kinds(found, responses.values(), steps)))
    running = [each for each in ranks.values() if each.status is not Status.ENDED]
    places = {rank: ranks[rank].place[:MAX_TEXT] for rank in found.culprits if rank in ranks and ranks[rank].place}
    return Conclusion(
        token=max(each.token for each in responses.values()),
        steps=steps,
        attribution=found,
        places=places,
        disputed=disputed[:MAX_TEXT],
        reporter=reporter(found, responses),
        missing=tuple(missing[:MAX_NODES]),
        free=_free(responses, nodes),
        waiting=sum(certain(each.call) for each in running),
        in_backward=sum(in_backward(each.call) for each in running),
    )


def is_decisive(found: Attribution) -> bool:
    """Return whether an attribution shows the cause. If not, steps, stacks and silence count."""
    return bool(found.culprits) or found.cause in {Cause.MISMATCH, Cause.DIFFERENT_ORDER, Cause.ALL_ENTERED}


def contradiction(found: Attribution, behind: Iterable[RankStep], ranks: Mapping[int, RankEvidence]) -> str:
    """Return how the steps contradict an attribution, for people. Empty if they do not.

    A rank that is behind and waits in a call of torch.distributed is no contradiction: the recorder shows for which
    rank it waits. Neither is a rank behind that is a culprit. Another rank behind may be what a culprit waits for,
    outside of torch.distributed, so neither of them may be named.
    """
    late = {one.global_rank: one for one in behind}
    if not found.culprits or late.keys() & set(found.culprits):
        return ""
    waiting = {rank for rank, own in ranks.items() if certain(own.call)} | set(found.waiting)
    free = sorted(rank for rank, one in late.items() if not one.waits and rank not in waiting)
    if not free:
        return ""
    steps = sorted({late[rank].step for rank in free})
    at = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    several = len(free) > 1
    return (
        f"rank{'s' if several else ''} {rank_ranges(free)} {'are' if several else 'is'} behind in steps (at {at}), but "
        f"others wait in a collective for rank{'s' if len(found.culprits) > 1 else ''} {rank_ranges(found.culprits)}: "
        "none of them is named"
    )


def reporter(found: Attribution, responses: Mapping[str, Response]) -> str:
    """Return the node that reports the hang: the first culprit's, else the one that is silent for the longest time.

    Empty if the attribution names no cause, or if nodes did not respond: then each node decides by its own ranks.
    """
    for node_id in found.nodes:
        if node_id in responses:
            return node_id
    if not is_decisive(found) or not responses:
        return ""
    if len(responses) < max(each.node_count for each in responses.values()):
        return ""
    return min(responses, key=lambda node_id: (-(responses[node_id].steps.quiet_s or 0.0), node_id))


def _free(responses: Mapping[str, Response], nodes: Sequence[NodeEvidence]) -> tuple[str, ...]:
    """Return the nodes with a rank that waits nowhere, and those that have sent no evidence in time."""
    known = {node.node_id: any(map(_is_free, node.ranks)) for node in nodes}
    return tuple(node_id for node_id in responses if known.get(node_id, True))[:MAX_NODES]


def _is_free(rank: RankEvidence) -> bool:
    # If the innermost line can't be read in time, the call is not known: the rank may be in its own code.
    return rank.status is not Status.ENDED and not certain(rank.call) and not in_backward(rank.call)


def _evidence(response: Response) -> NodeEvidence | None:
    try:
        return unpack(response.evidence) if response.evidence else None
    except ValueError:  # of another version
        return None


def _kinds(found: Attribution, responses: Iterable[Response], steps: RunSteps) -> tuple[str, ...]:
    """Return the kinds of evidence that were available."""
    more = [
        kind
        for kind, known in (
            ("steps", steps.max_step is not None),
            ("heartbeats", any(each.heartbeats for each in responses)),
        )
        if known and kind not in found.evidence
    ]
    return (*found.evidence, *more)


def _bounded(found: Attribution) -> Attribution:
    return replace(
        found,
        group=found.group[:MAX_TEXT],
        details=tuple(each[:MAX_TEXT] for each in found.details[:MAX_DETAILS]),
    )
