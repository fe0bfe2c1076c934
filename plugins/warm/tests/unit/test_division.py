"""Divisions of tensors among ranks, and the pieces from one to another, for any meshes and any ranks that are gone."""

import json
import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_warm.division import (
    Division,
    Held,
    Routes,
    Tensor,
    corner_of,
    division_from,
    local_shape,
    pieces_of,
    shares_of,
    spans_of,
)


@st.composite
def divisions(draw, world_size, dimensions):
    """A division over a mesh of all ranks: copies, plain and nested splits, and those of FSDP over TP."""
    first = draw(st.sampled_from([size for size in range(1, world_size + 1) if world_size % size == 0]))
    mesh = draw(st.sampled_from([(world_size,), (first, world_size // first)]))
    ranks = draw(st.one_of(st.none(), st.permutations(range(world_size)).map(tuple)))
    split = st.tuples(st.integers(0, dimensions - 1), st.sampled_from([1, 1, 1, 2, 3]))
    splits = draw(st.lists(st.one_of(st.none(), split), min_size=len(mesh), max_size=len(mesh)))
    return Division(mesh, ranks, tuple(splits))


def indices(shape, division, rank):
    """The global indices of a rank's local part, in its order: a list for each dimension."""
    return [[at for begin, end in spans for at in range(begin, end)] for spans in spans_of(shape, division, rank)]


def boxes(begin, lengths):
    return product(*(range(at, at + length) for at, length in zip(begin, lengths, strict=True)))


def whole(needed):
    """Each place of a local part, with the global index that belongs there."""
    places = product(*(range(len(each)) for each in needed))
    return {place: tuple(needed[axis][at] for axis, at in enumerate(place)) for place in places}


@st.composite
def resharded(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    old, new = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return shape, draw(divisions(old, len(shape))), draw(divisions(new, len(shape))), old, new


@given(resharded(), st.sampled_from([1, 7, 64]))
def test_every_element_is_in_one_piece_of_bounded_size(case, limit):
    shape, source, target, old, new = case
    for rank in range(new):
        needed = indices(shape, target, rank)
        assert tuple(map(len, needed)) == local_shape(shape, target, rank)
        owners = [owner for owner in range(old) if shares_of((source,), old)[owner] == owner]
        found = {}
        for owner in owners:
            there = indices(shape, source, owner)
            for piece in pieces_of(spans_of(shape, source, owner), spans_of(shape, target, rank), 4, limit):
                assert math.prod(piece.lengths) * 4 <= max(limit, 4)
                pairs = zip(boxes(piece.source, piece.lengths), boxes(piece.target, piece.lengths), strict=True)
                for out, into in pairs:
                    assert into not in found
                    found[into] = tuple(there[axis][at] for axis, at in enumerate(out))
        assert found == {
            at: tuple(needed[axis][each] for axis, each in enumerate(at))
            for at in product(*(map(range, map(len, needed))))
        }


@given(st.data())
def test_all_ranks_get_their_part_from_the_copies_that_are_left(data):
    """Each rank has its own local parts, and its partner has them too; some ranks are lost, and others come."""
    dimensions = data.draw(st.integers(1, 2))
    old, new = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    tensors = []
    for _ in range(data.draw(st.integers(1, 3))):
        shape = tuple(data.draw(st.lists(st.integers(0, 6), min_size=dimensions, max_size=dimensions)))
        tensors.append(Tensor(shape, 4, data.draw(divisions(old, dimensions)), data.draw(divisions(new, dimensions))))
    dead = data.draw(st.sets(st.integers(0, old - 1), max_size=old - 1))
    places = data.draw(st.permutations(range(max(new, old))))
    kept = [(owner, keeper) for owner in range(old) for keeper in {owner, (owner + 1) % old} - dead]
    held = [Held(places[keeper], owner) for owner, keeper in kept if places[keeper] < new]
    shares = shares_of(tuple(tensor.source for tensor in tensors), old)
    if {shares[each.owner] for each in held} != set(shares):
        return  # some part is lost
    limit = data.draw(st.sampled_from([16, 80, 1 << 20]))
    routes = Routes(tensors, held, limit)
    for receiver in range(new):
        found = [{} for _ in tensors]
        for sender in range(new):
            for message in routes.messages(sender, receiver):
                assert message.size <= limit
                end = 0
                for packed in message.pieces:
                    assert packed.at >= end
                    end = packed.at + packed.size
                    assert Held(sender, packed.owner) in held
                    there = indices(tensors[packed.tensor].shape, tensors[packed.tensor].source, packed.owner)
                    piece = packed.piece
                    for out, into in zip(
                        boxes(piece.source, piece.lengths), boxes(piece.target, piece.lengths), strict=True
                    ):
                        assert into not in found[packed.tensor]
                        found[packed.tensor][into] = tuple(there[axis][at] for axis, at in enumerate(out))
                assert end == message.size
        for tensor, each in zip(tensors, found, strict=True):
            needed = indices(tensor.shape, tensor.target, receiver)
            assert each == whole(needed)


def test_shards_are_those_of_chunks_and_the_last_ones_may_be_empty():
    shards = Division((4,), None, ((0, 1),))
    assert [spans_of((5, 2), shards, rank) for rank in range(4)] == [
        (((0, 2),), ((0, 2),)),
        (((2, 4),), ((0, 2),)),
        (((4, 5),), ((0, 2),)),
        ((), ((0, 2),)),
    ]
    assert [local_shape((5, 2), shards, rank)[0] for rank in range(4)] == [2, 2, 1, 0]


def test_fsdp_over_tp_cuts_the_blocks_of_tp():
    both = Division((2, 2), None, ((0, 2), (0, 1)))
    assert [spans_of((8,), both, rank) for rank in range(4)] == [(((0, 2),),), (((4, 6),),), (((2, 4),),), (((6, 8),),)]
    over_tp = Division((2,), None, ((0, 2),))
    assert spans_of((8,), over_tp, 0) == (((0, 2), (4, 6)),)


def test_ranks_of_copies_have_the_same_share():
    shards_of_two = Division((2, 2), None, (None, (0, 1)))
    assert shares_of((shards_of_two,), 4) == (0, 1, 0, 1)
    assert shares_of((shards_of_two, Division((4,), None, ((0, 1),))), 4) == (0, 1, 2, 3)
    turned = Division((2, 2), (3, 1, 2, 0), (None, (1, 1)))
    assert corner_of(turned, 3) == corner_of(turned, 2) == (0,)


def test_a_part_of_a_mesh_covers_no_group():
    assert Division((2,), None, ((0, 1),)).covers(2)
    assert not Division((2,), None, ((0, 1),)).covers(4)
    assert not Division((2,), (), ((0, 1),)).covers(2)


def test_a_division_goes_through_json_and_a_malformed_one_is_an_error():
    division = Division((2, 2), (3, 1, 2, 0), (None, (1, 2)))
    assert division_from(json.loads(json.dumps(division))) == division
    assert division_from(None) is None
    for row in ([[2], None, []], [["2"], None, [None]], [[2], [-1], [None]], [[2]], 7):
        with pytest.raises((ValueError, TypeError)):
            division_from(row)
