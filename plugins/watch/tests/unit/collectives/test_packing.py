"""The evidence of a node as bytes: sizes, round trips, damage."""

import time
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_watch.collectives.attribution import attribute
from elastic_watch.collectives.evidence import (
    Cause,
    GroupState,
    NodeEvidence,
    Operation,
    RankEvidence,
    Status,
)
from elastic_watch.collectives.packing import MAX_BYTES, pack, parse_ranges, ranges, unpack

RUN = 1000


def state(name, members, enqueued, completed, *, operations=8, description="mesh_dp"):
    last = tuple(
        Operation(
            seq=enqueued - back,
            name=("all_reduce", "_all_gather_base", "_reduce_scatter_base")[(enqueued - back) % 3],
            signature=f"Float[{4096 * (1 + (enqueued - back) % 5)}] -> Float[{4096 * (1 + (enqueued - back) % 5)}]",
        )
        for back in reversed(range(min(operations, enqueued)))
    )
    return GroupState(
        group=name,
        description=description,
        backend="gloo",
        members=members,
        enqueued=enqueued,
        completed=completed,
        last=last,
    )


def busy_rank(number, groups, *, local, stuck=()):
    """A rank in that many groups: the default one, and strided or contiguous ones, each with its own numbers."""
    states = []
    for index in range(groups):
        width = (2, 4, 8, 40)[index % 4]
        members = {
            0: tuple(range(RUN)),
            1: tuple(range(number % local, RUN, local)),
            2: tuple(range(number // local * local, min(RUN, (number // local + 1) * local))),
        }.get(index) or tuple(range(number % width, RUN, width))
        enqueued = 4000 + 37 * index
        waits = index == 1 and number not in stuck
        states.append(state(f"{index}", members, enqueued + waits, enqueued, description=f"mesh_{index % 5}"))
    return RankEvidence(
        global_rank=number,
        status=Status.ANSWERED,
        recorder=True,
        groups=tuple(states),
        stack=True,
        call="" if number in stuck else "all_reduce",
        place=f"train.py:{100 + number % 7}",
        step=4711,
    )


def busy_node(index, *, local, groups, stuck=()):
    first = index * local
    return NodeEvidence(
        node_id=f"node-{index}.cluster.example.com",
        ranks=tuple(busy_rank(number, groups, local=local, stuck=stuck) for number in range(first, first + local)),
        world_size=RUN,
    )


@pytest.mark.parametrize(("local", "groups"), [(8, 64), (64, 8)])
def test_a_node_of_a_thousand_ranks_fits_without_a_loss(local, groups):
    node = busy_node(3, local=local, groups=groups)
    data = pack(node)
    assert len(data) <= MAX_BYTES
    assert unpack(data) == node


def test_a_thousand_ranks_are_attributed_within_half_a_second():
    data = [pack(busy_node(index, local=8, groups=8, stuck=(517,))) for index in range(125)]
    nodes = [unpack(each) for each in data]
    begin_s = time.process_time()
    found = attribute(nodes)
    spent_s = time.process_time() - begin_s
    assert (found.cause, found.culprits, found.nodes) == (Cause.MISSING, (517,), ("node-64.cluster.example.com",))
    assert found.waiting_count == RUN // 8 - 1
    assert spent_s < 0.5


text = st.text(max_size=12).filter(str.isprintable)
numbers = st.integers(0, 10**7)
operations = st.builds(Operation, seq=st.integers(1, 10**7), name=text, signature=text)
members = st.lists(st.integers(0, 2000), unique=True, max_size=20).map(sorted).map(tuple)


@st.composite
def states(draw):
    enqueued = draw(numbers)
    last = draw(st.lists(operations, max_size=8))
    return GroupState(
        group=draw(text),
        description=draw(text),
        backend=draw(st.sampled_from(["", "gloo", "nccl"])),
        members=draw(members),
        enqueued=enqueued,
        completed=draw(st.integers(0, enqueued)),
        last=tuple(last),
        started=draw(st.sampled_from([None, True, False])),
        unfinished_p2p=draw(st.integers(0, 3)),
    )


rank_evidence = st.builds(
    RankEvidence,
    global_rank=st.integers(0, 10**6),
    status=st.sampled_from(Status),
    recorder=st.booleans(),
    stable=st.booleans(),
    groups=st.lists(states(), max_size=4).map(tuple),
    groups_dropped=st.integers(0, 9),
    groups_finished=st.integers(0, 9),
    stack=st.booleans(),
    call=text,
    place=text,
    step=st.none() | st.integers(0, 10**9),
)
nodes = st.builds(
    NodeEvidence,
    node_id=text,
    ranks=st.lists(rank_evidence, max_size=4).map(tuple),
    world_size=st.integers(0, 10**6),
)


@given(nodes)
def test_every_node_is_read_as_it_was(node):
    assert unpack(pack(node)) == node


@given(st.lists(st.integers(0, 10**6), unique=True).map(sorted))
def test_ranges_return(found):
    assert list(parse_ranges(ranges(found))) == found


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((), ""),
        ((5,), "5"),
        (range(1000), "0-999"),
        (range(0, 1000, 8), "0-992:8"),
        ((0, 1, 2, 8, 16, 24, 30), "0-2,8-24:8,30"),
        ((0, 3, 9), "0,3,9"),
        ((4, 5), "4-5"),
    ],
)
def test_members_are_written_as_ranges(found, text):
    assert ranges(tuple(found)) == text


@pytest.mark.parametrize(
    "text", ["a", "3-1", "1,1", "5,4", "0-9:0", "-1", "1-", "0-999999999", "1:2:3", " 1", "1,", "٣", "0-200000"]
)
def test_other_ranges_are_rejected(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_ranges(text)


def test_what_does_not_fit_is_left_out_from_the_end_that_matters_least():
    """Operations first, then groups in which all has completed; at last all groups, which are counted."""
    node = busy_node(3, local=8, groups=64, stuck=(25,))
    sizes = [len(pack(node, max_bytes=limit)) for limit in (8192, 2700, 2500, 1000, 250, 200)]
    assert all(size <= limit for size, limit in zip(sizes, (8192, 2700, 2500, 1000, 250, 200), strict=True))
    fewer = unpack(pack(node, max_bytes=len(pack(node)) - 1))
    assert [len(rank.groups) for rank in fewer.ranks] == [64] * 8
    assert max(len(each.last) for rank in fewer.ranks for each in rank.groups) == 2
    smaller = (unpack(pack(node, max_bytes=limit)) for limit in range(3000, 300, -50))
    finished = next(each for each in smaller if each.ranks[0].groups_finished == 63)
    assert [(len(rank.groups), rank.groups_finished, rank.groups_dropped) for rank in finished.ranks] == [
        (0, 64, 0) if rank.global_rank == 25 else (1, 63, 0) for rank in finished.ranks
    ]
    bare = unpack(pack(node, max_bytes=220))
    assert [(len(rank.groups), rank.groups_dropped) for rank in bare.ranks] == [(0, 64)] * 8


def test_ranks_without_groups_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="evidence of 8 ranks exceeds 50 bytes"):
        pack(busy_node(3, local=8, groups=8), max_bytes=50)


def test_long_texts_are_cut():
    rank = RankEvidence(
        global_rank=1, status=Status.ANSWERED, place="x" * 300, groups=(state("g" * 300, (0, 1), 2, 1),)
    )
    found = unpack(pack(NodeEvidence(node_id="n", ranks=(rank,)))).ranks[0]
    assert (len(found.place), len(found.groups[0].group)) == (200, 200)


@given(st.binary(max_size=200))
def test_other_bytes_are_rejected(data):
    with pytest.raises(ValueError, match="evidence"):
        unpack(data)


@given(st.data())
def test_damaged_bytes_are_rejected_or_evidence(data):
    raw = bytearray(zlib.decompress(pack(busy_node(1, local=2, groups=3))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = unpack(zlib.compress(bytes(raw)))
    except ValueError:
        return
    attribute([found])  # whatever it is, it is harmless


def test_a_bomb_is_rejected():
    with pytest.raises(ValueError, match="cut, or too large"):
        unpack(zlib.compress(bytes(100_000_000)))


def test_members_of_a_damaged_node_are_bounded():
    groups = [[f"{number}", "", "", f"0-{100_000 + number}"] for number in range(100)]
    data = zlib.compress(msgspec.msgpack.encode([1, "n", 0, groups, [], []]))
    with pytest.raises(ValueError, match="too many members"):
        unpack(data)


def test_another_version_is_rejected():
    with pytest.raises(ValueError, match="version 2, not 1"):
        unpack(zlib.compress(msgspec.msgpack.encode([2, "n", 0, [], [], []])))


def test_texts_that_control_a_terminal_are_cleaned():
    rank = RankEvidence(global_rank=1, status=Status.ANSWERED, place="a\x1b[2J\udcff\n.py:3")
    found = unpack(pack(NodeEvidence(node_id="n\n", ranks=(rank,))))
    assert (found.node_id, found.ranks[0].place) == ("n ", "a?[2J? .py:3")
