"""How a global tensor is divided among the ranks of a group, and the pieces from one division to another; pure.

A rank has, of each dimension of the tensor, some spans of indices; what it has of the tensor is their product. Two
divisions of one tensor overlap in boxes. A box that one rank has and another rank needs is a piece.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

Shape = tuple[int, ...]
Span = tuple[int, int]
"""Begin and end of indices of one dimension."""

_ALIGNED: Final = 64
"""Pieces of a message begin at multiples of this many bytes."""


class Division(NamedTuple):
    """The division of a tensor over a mesh of ranks."""

    mesh: Shape
    """The size of each dimension of the mesh."""
    ranks: tuple[int, ...] | None
    """The ranks of the mesh in order. `None`: 0, 1, 2 and so on. Empty: others than all ranks of a group."""
    splits: tuple[tuple[int, int] | None, ...]
    """For each dimension of the mesh: `None` if its ranks have the same, else the tensor's dimension that is split
    among them, and into how many blocks it is cut before each of the blocks is split (1 but for FSDP over TP)."""

    def covers(self, world_size: int) -> bool:
        """Return whether it is over all ranks of a group of that size."""
        return self.ranks != () and math.prod(self.mesh) == world_size

    def is_like(self, other: "Division") -> bool:
        """Return whether a rank has the same in both, as far as that is known of meshes of some ranks."""
        return (self.mesh, self.ranks or None, self.splits) == (other.mesh, other.ranks or None, other.splits)


def division_from(row: Any) -> Division | None:  # noqa: ANN401  # JSON
    """Return a division from its JSON.

    Raises:
        ValueError: it is malformed.
    """
    if row is None:
        return None
    mesh, ranks, splits = row
    made = Division(
        tuple(mesh),
        None if ranks is None else tuple(ranks),
        tuple(None if each is None else (each[0], each[1]) for each in splits),
    )
    numbers = [*made.mesh, *(made.ranks or ()), *(number for each in made.splits if each for number in each)]
    if any(type(number) is not int or number < 0 for number in numbers) or len(made.mesh) != len(made.splits):
        raise ValueError(f"division {row!r}")
    return made


def division_of(tensor: Any) -> Division | None:  # noqa: ANN401  # a DTensor
    """Return how a DTensor is divided. `None` if it is in a way that is not known here.

    Not known are partial sums, another order of the dimensions of the mesh, and local parts of other sizes than torch
    makes them.
    """
    if any(list(each.mesh_dims) != sorted(each.mesh_dims) for each in _orders_of(tensor)):
        return None
    splits: list[tuple[int, int] | None] = []
    for placement in tensor.placements:
        kind = type(placement).__name__
        if kind == "Replicate":
            splits.append(None)
        elif kind in ("Shard", "_StridedShard"):
            splits.append((int(placement.dim) % tensor.ndim, int(getattr(placement, "split_factor", 1))))
        else:
            return None
    mesh = tensor.device_mesh
    if mesh not in _ranks:
        _ranks[mesh] = _ranks_of(mesh)
    return Division(tuple(mesh.shape), _ranks[mesh], tuple(splits))


_ranks: Final[WeakKeyDictionary[Any, tuple[int, ...] | None]] = WeakKeyDictionary()
"""The ranks of meshes that exist, as torch takes long to list them."""


def _ranks_of(mesh: Any) -> tuple[int, ...] | None:  # noqa: ANN401  # a DeviceMesh
    try:
        ranks = mesh.mesh.flatten().tolist()
    except RuntimeError:  # a part of a mesh in which this rank is not
        return ()
    ordered = list(range(len(ranks)))
    return None if ranks == ordered else tuple(ranks) if sorted(ranks) == ordered else ()


def _orders_of(tensor: Any) -> Iterable[Any]:  # noqa: ANN401  # a DTensor
    """Return in which order the mesh's dimensions split those of the tensor. Empty if torch knows of no such order."""
    return getattr(getattr(tensor, "_spec", None), "shard_order", None) or ()


# --- the spans of a rank


@lru_cache(maxsize=1 << 14)
def spans_of(shape: Shape, division: Division, rank: int) -> tuple[tuple[Span, ...], ...]:
    """Return the spans that a rank has of each dimension, in the order of its local part.

    Source: `torch.chunk`, which `Shard` and `_StridedShard` of torch.distributed.tensor use, from the first dimension
    of the mesh to the last.
    """
    spans: list[tuple[Span, ...]] = [((0, length),) if length else () for length in shape]
    for size, at, split in zip(division.mesh, _coordinate(division, rank), division.splits, strict=True):
        if split is not None:
            dimension, blocks = split
            whole = spans[dimension]
            mine = [span for block in range(blocks) for span in _chunk(_chunk(whole, blocks, block), size, at)]
            spans[dimension] = _merged(mine)
    return tuple(spans)


def _coordinate(division: Division, rank: int) -> Shape:
    at = rank if division.ranks is None else division.ranks.index(rank)
    found = []
    for size in reversed(division.mesh):
        found.append(at % size)
        at //= size
    return tuple(reversed(found))


def _chunk(spans: Sequence[Span], count: int, index: int) -> list[Span]:
    """Return one of so many chunks. The first ones have the same length, the last ones less or nothing."""
    total = sum(end - begin for begin, end in spans)
    length = -(-total // count)
    first, last = index * length, min(total, (index + 1) * length)
    found, at = [], 0
    for begin, end in spans:
        low, high = max(first, at), min(last, at + end - begin)
        if low < high:
            found.append((begin + low - at, begin + high - at))
        at += end - begin
    return found


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    found: list[Span] = []
    for begin, end in spans:
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return tuple(found)


def local_shape(shape: Shape, division: Division, rank: int) -> Shape:
    """Return the shape of a rank's local part."""
    return tuple(sum(end - begin for begin, end in spans) for spans in spans_of(shape, division, rank))


@lru_cache(maxsize=64)
def shares_of(divisions: tuple[Division, ...], world_size: int) -> tuple[int, ...]:
    """Return for each rank the lowest rank that has the same of all tensors."""
    first: dict[tuple[Shape, ...], int] = {}
    return tuple(
        first.setdefault(tuple(corner_of(division, rank) for division in divisions), rank) for rank in range(world_size)
    )


@lru_cache(maxsize=1 << 14)
def corner_of(division: Division, rank: int) -> Shape:
    """Return which of the different parts of a tensor a rank has: its place along the dimensions that are split."""
    places = zip(_coordinate(division, rank), division.splits, strict=True)
    return tuple(at for at, split in places if split is not None)


# --- the pieces between ranks


class Piece(NamedTuple):
    """A box that is in the local part of one rank, and in that of another rank in the other division."""

    source: Shape
    """Where it begins in the local part that is there."""
    target: Shape
    """Where it begins in the local part that is to be."""
    lengths: Shape


def pieces_of(
    source: Sequence[Sequence[Span]], target: Sequence[Sequence[Span]], itemsize: int, limit: int
) -> Iterator[Piece]:
    """Yield the pieces from one local part to another one.

    Args:
        source: The spans of each dimension that are there.
        target: Those that are to be.
        itemsize: Bytes of an element.
        limit: The most bytes of a piece.
    """
    overlaps = [_overlaps(mine, theirs) for mine, theirs in zip(source, target, strict=True)]
    for box in product(*overlaps):
        for offsets, lengths in _cut(tuple(length for _, _, length in box), itemsize, limit):
            yield Piece(
                tuple(at + offset for (at, _, _), offset in zip(box, offsets, strict=True)),
                tuple(at + offset for (_, at, _), offset in zip(box, offsets, strict=True)),
                lengths,
            )


def _overlaps(source: Sequence[Span], target: Sequence[Span]) -> list[tuple[int, int, int]]:
    """Return the common indices of ascending spans: their begin in either local part, and how many they are."""
    found = []
    mine, theirs, at, into = list(source), list(target), 0, 0
    while mine and theirs:
        (begin, end), (first, last) = mine[0], theirs[0]
        low, high = max(begin, first), min(end, last)
        if low < high:
            found.append((at + low - begin, into + low - first, high - low))
        if end <= last:
            at += end - begin
            del mine[0]
        else:
            into += last - first
            del theirs[0]
    return found


def _cut(lengths: Shape, itemsize: int, limit: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield boxes of at most so many bytes, each with where it begins in the whole."""
    axis = next((axis for axis, length in enumerate(lengths) if length > 1), None)
    if axis is None or math.prod(lengths) * itemsize <= limit:
        yield (0,) * len(lengths), lengths
        return
    step = max(1, limit // (math.prod(lengths[axis + 1 :]) * itemsize))
    for begin in range(0, lengths[axis], step):
        part = (*lengths[:axis], min(step, lengths[axis] - begin), *lengths[axis + 1 :])
        for offsets, each in _cut(part, itemsize, limit):
            yield (*offsets[:axis], offsets[axis] + begin, *offsets[axis + 1 :]), each


class Tensor(NamedTuple):
    """A global tensor that is divided anew."""

    shape: Shape
    itemsize: int
    source: Division
    target: Division


class Held(NamedTuple):
    """A rank of the new group has the local parts of a rank of the old one."""

    rank: int
    owner: int


class Packed(NamedTuple):
    """A piece in a message."""

    tensor: int
    """The tensor's number."""
    owner: int
    """The rank of the old group of whose local part it is."""
    piece: Piece
    at: int
    """Where it begins in the message, in bytes."""
    size: int


class Message(NamedTuple):
    """Some pieces from one rank to another."""

    size: int
    pieces: tuple[Packed, ...]


class Routes:
    """What each rank sends to each other rank, so that all have their part of the new division.

    All ranks compute the same. Of the copies of a local part, a rank uses one of its own if it has one; else the
    receivers take them in turn.

    Args:
        tensors: The tensors.
        held: The local parts that are alive, each as often as it is.
        limit: The most bytes of a message.
    """

    def __init__(self, tensors: Sequence[Tensor], held: Iterable[Held], limit: int) -> None:
        self._tensors = tensors
        self._held = sorted(set(held))
        self._limit = limit
        self._owners: dict[int, list[int]] = {}
        for rank, owner in self._held:
            self._owners.setdefault(rank, []).append(owner)
        self._copies: dict[Division, dict[Shape, list[Held]]] = {}
        self._known: dict[tuple[Tensor, int, int], list[tuple[int, Piece]]] = {}

    def messages(self, sender: int, receiver: int) -> Iterator[Message]:
        """Yield the messages from one rank to another, or the copies within one rank."""
        pieces: list[Packed] = []
        at = 0
        for number, tensor in enumerate(self._tensors):
            for owner, piece in self._pieces(tensor, sender, receiver):
                size = math.prod(piece.lengths) * tensor.itemsize
                if pieces and at + size > self._limit:
                    yield Message(pieces[-1].at + pieces[-1].size, tuple(pieces))
                    pieces, at = [], 0
                pieces.append(Packed(number, owner, piece, at, size))
                at += -(-size // _ALIGNED) * _ALIGNED
        if pieces:
            yield Message(pieces[-1].at + pieces[-1].size, tuple(pieces))

    def _pieces(self, tensor: Tensor, sender: int, receiver: int) -> list[tuple[int, Piece]]:
        """Return the pieces of a tensor. Tensors of one form have the same ones."""
        known = self._known.get((tensor, sender, receiver))
        if known is None:
            target = spans_of(tensor.shape, tensor.target, receiver)
            known = self._known[tensor, sender, receiver] = [
                (owner, piece)
                for owner in self._owners.get(sender, ())
                if self._chosen(tensor.source, owner, receiver) == (sender, owner)
                for piece in pieces_of(
                    spans_of(tensor.shape, tensor.source, owner), target, tensor.itemsize, self._limit
                )
            ]
        return known

    def _chosen(self, division: Division, owner: int, receiver: int) -> Held:
        """Return the copy of a local part, or of an equal one, that a rank uses."""
        copies = self._copies.get(division)
        if copies is None:
            copies = self._copies[division] = {}
            for held in self._held:
                copies.setdefault(corner_of(division, held.owner), []).append(held)
        found = copies[corner_of(division, owner)]
        near = next((held for held in found if held.rank == receiver), None)
        return near if near is not None else found[receiver % len(found)]
