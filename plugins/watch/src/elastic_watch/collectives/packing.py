"""The evidence of a node as bytes, for the node that combines the evidence of all. Pure.

The text of a group, an operation, a call or a place is written once, and members as ranges. If a node's evidence is
larger than the limit, operations are left out first, then groups in which all has completed, then all groups.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from elastic_core.api.tools import clean
from elastic_watch.collectives.evidence import GroupState, NodeEvidence, Operation, RankEvidence

MAX_BYTES: Final = 8 * 1024
_MAX_PLAIN_BYTES: Final = 512 * 1024
_MAX_RANKS: Final = 4096
_MAX_MEMBERS: Final = 1 << 17
_MAX_ALL_MEMBERS: Final = 1 << 21
_VERSION: Final = 1
_MAX_TEXT: Final = 200


class _Rank(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One rank: its evidence without groups, and its groups' columns."""

    evidence: RankEvidence
    group: tuple[int, ...] = ()
    enqueued: tuple[int, ...] = ()
    open: tuple[int, ...] = ()
    """The number of operations that have not completed."""
    started: tuple[bool | None, ...] = ()
    p2p: tuple[int, ...] = ()
    operations: tuple[tuple[int, ...], ...] = ()
    """For each group pairs: how far an operation is behind the last one, and its kind."""


class _Packed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node."""

    version: int
    node_id: str
    world_size: int
    groups: tuple[tuple[str, str, str, str], ...]
    """Name, description, backend, members."""
    kinds: tuple[tuple[str, str], ...]
    """Names and signatures of operations."""
    ranks: tuple[_Rank, ...]


_decoder: Final = msgspec.msgpack.Decoder(_Packed)


def pack(node: NodeEvidence, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return a node's evidence as bytes, without its least important parts if they would be more than `max_bytes`.

    Raises:
        ValueError: The ranks without any group are more than `max_bytes`.
    """
    for ranks in _ever_less(node.ranks):
        data = _encoded(replace(node, ranks=ranks))
        if len(data) <= max_bytes:
            return data
    raise ValueError(f"the evidence of {len(node.ranks)} ranks exceeds {max_bytes} bytes")


def unpack(data: bytes) -> NodeEvidence:
    """Return a node's evidence from the bytes of `pack`.

    Raises:
        ValueError: The bytes are of another origin.
    """
    plain = zlib.decompressobj()
    try:
        raw = plain.decompress(data, _MAX_PLAIN_BYTES)
        if not plain.eof or plain.unused_data:
            raise ValueError("the evidence of a node is cut, or too large")
        found = _decoder.decode(raw)
        return _node(found)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, IndexError, RecursionError) as err:
        raise ValueError(f"the evidence of a node is damaged: {err}") from err


# --- ranges of ranks


def ranges(ranks: Sequence[int]) -> str:
    """Return sorted numbers as text: `0-7`, `0-992:8`, `0,3,9`."""
    parts, begin = [], 0
    while begin < len(ranks):
        end = begin + 1
        step = ranks[end] - ranks[begin] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - begin > 2 or (end - begin == 2 and step == 1):
            parts.append(f"{ranks[begin]}-{ranks[end - 1]}" + (f":{step}" if step != 1 else ""))
        else:
            end = begin + 1
            parts.append(str(ranks[begin]))
        begin = end
    return ",".join(parts)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of `ranges`, which must be sorted and at most 131,072.

    Raises:
        ValueError: The text is of another form.
    """
    found: list[int] = []
    for part in text.split(",") if text else ():
        span, _, step = part.partition(":")
        low, dash, high = span.partition("-")
        first, last, stride = _number(low), _number(high) if dash else _number(low), _number(step) if step else 1
        if first > last or stride < 1 or (found and first <= found[-1]):
            raise ValueError(f"ranks {text[:80]!r} are not sorted ranges")
        if len(found) + (last - first) // stride >= _MAX_MEMBERS:
            raise ValueError(f"ranks {text[:80]!r} are more than {_MAX_MEMBERS}")
        found += range(first, last + 1, stride)
    return tuple(found)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ValueError(f"ranks contain {text[:80]!r}, not a number")
    return int(text)


# --- less and less


def _ever_less(ranks: tuple[RankEvidence, ...]) -> Iterable[tuple[RankEvidence, ...]]:
    """Yield the ranks with ever less of the parts that matter least."""
    yield ranks
    for most in (2, 1):
        yield tuple(_with_operations(rank, most) for rank in ranks)
    fewer = tuple(_with_operations(rank, 0) for rank in ranks)
    yield fewer
    used = tuple(_without(rank, [group for group in rank.groups if group.enqueued]) for rank in fewer)
    yield used
    yield tuple(_without(rank, [group for group in rank.groups if not _finished(group)]) for rank in used)
    bare = tuple(replace(rank, groups=(), groups_dropped=rank.groups_dropped + len(rank.groups)) for rank in fewer)
    yield bare
    yield tuple(replace(rank, place="") for rank in bare)


def _with_operations(rank: RankEvidence, most: int) -> RankEvidence:
    return replace(rank, groups=tuple(replace(group, last=group.last[-most:] if most else ()) for group in rank.groups))


def _without(rank: RankEvidence, kept: Sequence[GroupState]) -> RankEvidence:
    left_out = len(rank.groups) - len(kept)
    return replace(rank, groups=tuple(kept), groups_finished=rank.groups_finished + left_out)


def _finished(group: GroupState) -> bool:
    return group.completed >= group.enqueued and not group.unfinished_p2p


# --- to columns and back


def _encoded(node: NodeEvidence) -> bytes:
    groups: dict[tuple[str, str, str, str], int] = {}
    kinds: dict[tuple[str, str], int] = {}
    texts: dict[int, str] = {}

    def columns(rank: RankEvidence) -> _Rank:
        rows = []
        for state in rank.groups:
            members = texts.get(id(state.members))
            if members is None:
                members = texts[id(state.members)] = ranges(state.members)
            head = (_cut(state.group), _cut(state.description), _cut(state.backend), members)
            pairs = [
                number
                for each in state.last
                for number in (
                    state.enqueued - each.seq,
                    kinds.setdefault((_cut(each.name), _cut(each.signature)), len(kinds)),
                )
            ]
            rows.append((groups.setdefault(head, len(groups)), state, tuple(pairs)))
        return _Rank(
            evidence=replace(rank, groups=(), call=_cut(rank.call), place=_cut(rank.place)),
            group=tuple(row[0] for row in rows),
            enqueued=tuple(state.enqueued for _, state, _ in rows),
            open=tuple(state.enqueued - state.completed for _, state, _ in rows),
            started=_short(tuple(state.started for _, state, _ in rows), None),
            p2p=_short(tuple(state.unfinished_p2p for _, state, _ in rows), 0),
            operations=tuple(row[2] for row in rows),
        )

    ranks = tuple(columns(rank) for rank in node.ranks)
    packed = _Packed(_VERSION, _cut(node.node_id), node.world_size, tuple(groups), tuple(kinds), ranks)
    return zlib.compress(msgspec.msgpack.encode(packed), 9)


def _node(packed: _Packed) -> NodeEvidence:
    if packed.version != _VERSION:
        raise ValueError(f"the evidence of a node has version {packed.version}, not {_VERSION}")
    if len(packed.ranks) > _MAX_RANKS or packed.world_size < 0:
        raise ValueError(f"the evidence of a node has {len(packed.ranks)} ranks of {packed.world_size}")
    known: dict[str, tuple[int, ...]] = {}
    total = 0
    for *_, text in packed.groups:
        if text not in known:
            known[text] = parse_ranges(text)
            total += len(known[text])
            if total > _MAX_ALL_MEMBERS:
                raise ValueError("the groups of a node have too many members")
    members = [known[text] for *_, text in packed.groups]
    operations: dict[tuple[int, int], Operation] = {}

    def operation(seq: int, kind: int) -> Operation:
        found = operations.get((seq, kind))
        if found is None:
            name, signature = packed.kinds[_index(kind)]
            found = operations[seq, kind] = Operation(seq=seq, name=name, signature=signature)
        return found

    def state(rank: _Rank, row: int) -> GroupState:
        number, enqueued = _index(rank.group[row]), rank.enqueued[row]
        name, description, backend, _ = packed.groups[number]
        pairs = rank.operations[row]
        if len(pairs) % 2 or len(pairs) > 16 or enqueued < 0 or rank.open[row] < 0:
            raise ValueError("the evidence of a node is damaged: a group without sense")
        return GroupState(
            group=name,
            description=description,
            backend=backend,
            members=members[number],
            enqueued=enqueued,
            completed=enqueued - rank.open[row],
            last=tuple(operation(enqueued - pairs[at], pairs[at + 1]) for at in range(0, len(pairs), 2)),
            started=rank.started[row] if rank.started else None,
            unfinished_p2p=rank.p2p[row] if rank.p2p else 0,
        )

    ranks = []
    for rank in packed.ranks:
        if rank.evidence.groups or rank.evidence.global_rank < 0:
            raise ValueError("the evidence of a node is damaged: a rank without sense")
        ranks.append(replace(rank.evidence, groups=tuple(state(rank, row) for row in range(len(rank.group)))))
    return NodeEvidence(node_id=packed.node_id, ranks=tuple(ranks), world_size=packed.world_size)


def _index(number: int) -> int:
    if number < 0:
        raise IndexError(number)
    return number


def _short(column: tuple[Any, ...], default: object) -> tuple[Any, ...]:
    """Return the column, empty if it has the default only."""
    return column if any(each != default for each in column) else ()


def _cut(text: str) -> str:
    """Return text of at most 200 characters that is valid Unicode and controls no terminal."""
    if not text.isprintable():
        text = clean(text).encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
