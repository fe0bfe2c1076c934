"""The rules that name the rank for which others wait, by tables."""

import pytest

from elastic_watch.collectives.attribution import attribute
from elastic_watch.collectives.evidence import (
    Cause,
    GroupState,
    NodeEvidence,
    Operation,
    RankEvidence,
    Status,
)
from elastic_watch.collectives.texts import details, headline

USER, SILENT, ENDED = "", Status.SILENT, Status.ENDED


def op(seq, name="all_reduce", signature="Float[10] -> Float[10]"):
    return Operation(seq=seq, name=name, signature=signature)


def group(name, members, enqueued, completed=None, *, last=None, **fields):
    known = {"backend": "gloo", "description": name, **fields}
    return GroupState(
        group=name,
        members=tuple(members),
        enqueued=enqueued,
        completed=enqueued if completed is None else completed,
        last=((op(enqueued),) if enqueued else ()) if last is None else last,
        **known,
    )


def rank(number, call=USER, *groups, status=Status.ANSWERED, **fields):
    known = {"recorder": True, "stack": True, **fields}
    return RankEvidence(global_rank=number, status=status, call=call, groups=groups, **known)


def node(*ranks, name="node-a", world_size=0):
    return NodeEvidence(node_id=name, ranks=ranks, world_size=world_size)


def waits(number, members, seq, *more, name="dp", call="all_reduce", **fields):
    return rank(number, call, group(name, members, seq, seq - 1), *more, **fields)


def test_one_rank_has_not_entered_what_63_wait_for():
    members = range(64)
    nodes = [
        node(
            *(
                rank(each, USER, group("dp", members, 4710), place="train.py:12")
                if each == 17
                else waits(each, members, 4711)
                for each in range(begin, begin + 16)
            ),
            name=name,
        )
        for begin, name in ((0, "node-a"), (16, "node-b"), (32, "node-c"), (48, "node-d"))
    ]
    found = attribute(nodes)
    assert (found.cause, found.culprits, found.nodes, found.waiting_count) == (Cause.MISSING, (17,), ("node-b",), 63)
    assert headline(found) == "rank 17 on node-b has not entered all_reduce #4711 of group dp; 63 ranks wait for it"
    assert details(found) == "Rank 17 is in train.py:12. Evidence: flight recorder and stacks."


def test_chain_through_a_shared_rank():
    """Rank 0 waits for 1, rank 1 waits in another group for 2: rank 2 is the culprit."""
    found = attribute(
        [
            node(
                waits(0, (0, 1), 5, name="tp"),
                waits(1, (1, 2), 8, group("tp", (0, 1), 4), name="pp"),
                rank(2, USER, group("pp", (1, 2), 7)),
            )
        ]
    )
    assert (found.cause, found.culprits, found.waiting) == (Cause.MISSING, (2,), (0, 1))


def test_cycle_is_a_different_order_without_culprit():
    found = attribute(
        [
            node(
                waits(0, (0, 1), 5, group("b", (0, 1), 7), name="a"),
                waits(1, (0, 1), 8, group("a", (0, 1), 4), name="b"),
            )
        ]
    )
    assert (found.cause, found.culprits) == (Cause.DIFFERENT_ORDER, ())
    assert found.details == (
        "Rank 0 waits in all_reduce #5 of group a for rank 1.",
        "Rank 1 waits in all_reduce #8 of group b for rank 0.",
    )


def test_all_entered_names_the_network():
    found = attribute([node(*(waits(each, range(3), 5) for each in range(3)))])
    assert (found.cause, found.culprits) == (Cause.ALL_ENTERED, ())
    assert headline(found) == (
        "all ranks have entered all_reduce #5 of group dp, which does not complete: check the network and the devices"
    )


PAIR = (0, 1)
TRIO = (0, 1, 2)

SITUATIONS = {
    # Calls in which a rank waits, whatever is missing elsewhere.
    "the missing rank is in recv": (
        [waits(0, PAIR, 5), rank(1, "recv", group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank is in a store": (
        [waits(0, PAIR, 5), rank(1, "store.get", group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank makes a group": (
        [waits(0, PAIR, 5), rank(1, "new_group", group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank computes gradients, or waits for them": (
        [waits(0, PAIR, 5), rank(1, "backward", group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank may be in Work.wait()": (
        [waits(0, PAIR, 5), rank(1, "unknown", group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank has an operation that has not completed": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4), group("tp", (1, 2), 9, 8))],
        Cause.NO_RESPONSE,  # rank 2 is not in the evidence
        (),
    ),
    "the missing rank has unfinished point-to-point operations": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4, unfinished_p2p=1))],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank has no stack": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4), stack=False)],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank has more groups than the evidence": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4), groups_dropped=3)],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank makes progress": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4), stable=False)],
        Cause.UNKNOWN,
        (),
    ),
    "the waiting rank makes progress": (
        [waits(0, PAIR, 5, stable=False), rank(1, USER, group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    # Asynchronous operations.
    "a rank far ahead computes, and none waits": (
        [rank(0, USER, group("dp", PAIR, 9, 4)), rank(1, USER, group("dp", PAIR, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "a rank far ahead waits for its work": (
        [rank(0, "wait", group("dp", PAIR, 9, 4)), rank(1, USER, group("dp", PAIR, 4))],
        Cause.MISSING,
        (1,),
    ),
    "a rank in backward waits for the gradients of the other": (
        [rank(0, "backward", group("dp", PAIR, 9, 8)), rank(1, USER, group("dp", PAIR, 8))],
        Cause.MISSING,
        (1,),
    ),
    "both ranks compute gradients": (
        [rank(0, "backward", group("dp", PAIR, 8)), rank(1, "backward", group("dp", PAIR, 8))],
        Cause.UNKNOWN,
        (),
    ),
    # The device waits.
    "the kernel of NCCL runs on all but one": (
        [
            rank(0, USER, group("dp", TRIO, 5, 4, backend="nccl", started=True)),
            rank(1, USER, group("dp", TRIO, 5, 4, backend="nccl", started=True)),
            rank(2, USER, group("dp", TRIO, 4, backend="nccl", started=True)),
        ],
        Cause.MISSING,
        (2,),
    ),
    "the kernel of NCCL runs on all": (
        [rank(each, USER, group("dp", PAIR, 5, 4, backend="nccl", started=True)) for each in PAIR],
        Cause.ALL_ENTERED,
        (),
    ),
    # Operations from which a rank returns early.
    "the root of a broadcast is ahead, in its own code": (
        [
            rank(0, USER, group("dp", TRIO, 5, last=(op(5, "broadcast"),))),
            waits(1, TRIO, 6),
            rank(2, "recv", group("dp", TRIO, 4)),
        ],
        Cause.MISSING,
        (0,),
    ),
    "the root of a broadcast has returned, and one leaf is missing": (
        [
            rank(0, "all_reduce", group("dp", TRIO, 6, 5)),
            rank(1, USER, group("dp", TRIO, 4)),
            rank(2, "all_reduce", group("dp", TRIO, 6, 5)),
        ],
        Cause.MISSING,
        (1,),
    ),
    # Calls that the recorder does not record.
    "all others are in recv": (
        [
            rank(0, "recv", group("dp", TRIO, 4)),
            rank(1, "send", group("dp", TRIO, 4)),
            rank(2, USER, group("dp", TRIO, 4)),
        ],
        Cause.UNKNOWN,  # they may wait for each other
        (),
    ),
    "the other of two is in recv": (
        [rank(0, "recv", group("dp", PAIR, 4)), rank(1, USER, group("dp", PAIR, 4))],
        Cause.MISSING,
        (1,),
    ),
    "one is in recv, two in their own code": (
        [
            rank(0, "recv", group("dp", TRIO, 4)),
            rank(1, USER, group("dp", TRIO, 4)),
            rank(2, USER, group("dp", TRIO, 4)),
        ],
        Cause.UNKNOWN,
        (),
    ),
    "one is in recv, one in its own code, one is not in the evidence": (
        [rank(0, "recv", group("dp", TRIO, 4)), rank(1, USER, group("dp", TRIO, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "all others make a group": (
        [
            rank(0, "new_group", group("dp", TRIO, 0)),
            rank(1, USER, group("dp", TRIO, 0)),
            rank(2, "new_group", group("dp", TRIO, 0)),
        ],
        Cause.MISSING,
        (1,),
    ),
    "all are in recv": ([rank(each, "recv", group("dp", PAIR, 4)) for each in PAIR], Cause.UNKNOWN, ()),
    "all are in their own code": ([rank(each, USER, group("dp", PAIR, 4)) for each in PAIR], Cause.UNKNOWN, ()),
    # More than one, and fewer.
    "two have not entered": (
        [
            waits(0, range(4), 5),
            waits(1, range(4), 5),
            rank(2, USER, group("dp", range(4), 4)),
            rank(3, USER, group("dp", range(4), 3)),
        ],
        Cause.MISSING,
        (2, 3),
    ),
    "one waits, and most are in their own code": (
        [waits(0, TRIO, 5), rank(1, USER, group("dp", TRIO, 4)), rank(2, USER, group("dp", TRIO, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "a member is not in the evidence, and another one has not entered": (
        [waits(0, TRIO, 5), rank(1, USER, group("dp", TRIO, 4))],
        Cause.MISSING,
        (1,),
    ),
    "a member is not in the evidence, and all others wait": (
        [waits(0, TRIO, 5), waits(1, TRIO, 5)],
        Cause.NO_RESPONSE,
        (),
    ),
    # Ranks that have ended or do not respond.
    "the missing rank has ended": ([waits(0, PAIR, 5), rank(1, status=ENDED)], Cause.ENDED, (1,)),
    "a rank has ended before the creation of a group": (
        [rank(0, "new_group"), rank(1, status=ENDED), rank(2, "new_group", group("dp", TRIO, 4))],
        Cause.ENDED,
        (1,),
    ),
    "a rank has ended, and the others create different groups": (
        [rank(0, "new_group"), rank(1, status=ENDED), rank(2, "init_process_group")],
        Cause.UNKNOWN,
        (),
    ),
    "a rank has ended, and another one waits for a key": (
        [rank(0, "store.get"), rank(1, status=ENDED), rank(2, "store.get")],
        Cause.UNKNOWN,
        (),
    ),
    "two ranks have ended": (
        [waits(0, TRIO, 5), rank(1, status=ENDED), rank(2, status=ENDED)],
        Cause.UNKNOWN,
        (),
    ),
    "a rank has ended, and another one has not entered": (
        [waits(0, TRIO, 5), rank(1, status=ENDED), rank(2, USER, group("dp", TRIO, 4))],
        Cause.MISSING,
        (2,),
    ),
    "a rank has ended, and another one waits elsewhere": (
        [waits(0, TRIO, 5), rank(1, status=ENDED), rank(2, "recv", group("dp", TRIO, 4))],
        Cause.UNKNOWN,
        (),
    ),
    "a rank has ended, and another group has a missing rank that waits": (
        [
            waits(0, PAIR, 5),
            rank(1, status=ENDED),
            waits(2, (2, 3), 5, name="tp"),
            rank(3, "recv", group("tp", (2, 3), 4)),
        ],
        Cause.UNKNOWN,
        (),
    ),
    "the missing rank does not respond": (
        [waits(0, PAIR, 5), rank(1, status=SILENT, recorder=False, stack=False)],
        Cause.NO_RESPONSE,
        (1,),
    ),
    "a rank does not respond, and its stack is in a collective": (
        [waits(0, PAIR, 5), rank(1, "all_reduce", status=SILENT, recorder=False)],
        Cause.NO_RESPONSE,
        (),
    ),
    "a rank does not respond, and another one is in its own code": (
        [
            waits(0, PAIR, 5),
            rank(1, status=SILENT, recorder=False, stack=False),
            rank(2, USER, group("tp", (1, 2), 4)),
        ],
        Cause.NO_RESPONSE,
        (),
    ),
    # Groups.
    "two groups have one name": (
        [
            waits(0, PAIR, 5),
            waits(1, PAIR, 5),
            rank(2, USER, group("dp", (2, 3), 3)),
            rank(3, USER, group("dp", (2, 3), 3)),
        ],
        Cause.ALL_ENTERED,
        (),
    ),
    "the members are not known on one rank": (
        [waits(0, PAIR, 5), rank(1, USER, group("dp", (), 4))],
        Cause.MISSING,
        (1,),
    ),
    "the members are not known": (
        [rank(0, "all_reduce", group("dp", (), 5, 4)), rank(1, USER, group("dp", (), 4))],
        Cause.UNKNOWN,
        (),
    ),
    "a rank has not made the group, and all others wait": ([waits(0, PAIR, 5), rank(1, USER)], Cause.MISSING, (1,)),
    "a rank has not made the group, and another one is in its own code": (
        [waits(0, PAIR, 5), rank(1, USER), rank(2, USER)],
        Cause.UNKNOWN,
        (),
    ),
    "a rank reports a group of an earlier round": (
        [waits(0, PAIR, 5), waits(1, PAIR, 5), rank(2, USER, group("dp", PAIR, 1))],
        Cause.ALL_ENTERED,
        (),
    ),
    "the recorder is on at one rank only": (
        [waits(0, PAIR, 5), rank(1, USER, recorder=False)],
        Cause.UNKNOWN,
        (),
    ),
    "there is no recorder": (
        [rank(0, "all_reduce", recorder=False, step=7), rank(1, USER, recorder=False, step=7)],
        Cause.UNKNOWN,
        (),
    ),
    "there is nothing": ([], Cause.UNKNOWN, ()),
    # Other operations, sizes, types.
    "one rank has entered another operation": (
        [
            waits(0, TRIO, 5),
            waits(1, TRIO, 5),
            rank(2, "broadcast", group("dp", TRIO, 5, 4, last=(op(5, "broadcast"),))),
        ],
        Cause.MISMATCH,
        (2,),
    ),
    "one rank has entered another size, and returned": (
        [
            waits(0, TRIO, 5),
            waits(1, TRIO, 5),
            rank(2, USER, group("dp", TRIO, 5, last=(op(5, signature="Float[8] -> Float[8]"),))),
        ],
        Cause.MISMATCH,
        (2,),
    ),
    "one rank has entered another type": (
        [
            waits(0, TRIO, 5),
            waits(1, TRIO, 5),
            rank(2, "all_reduce", group("dp", TRIO, 5, 4, last=(op(5, signature="Long[10] -> Long[10]"),))),
        ],
        Cause.MISMATCH,
        (2,),
    ),
    "two ranks differ": (
        [waits(0, PAIR, 5), rank(1, "all_reduce", group("dp", PAIR, 5, 4, last=(op(5, signature="Float[8]"),)))],
        Cause.MISMATCH,
        (),
    ),
    "most of the known ranks differ from one, but not most of all members": (
        [
            rank(2, "broadcast", group("dp", range(5), 5, 4, last=(op(5, "broadcast"),))),
            waits(3, range(5), 5),
            waits(4, range(5), 5),
        ],
        Cause.MISMATCH,
        (),
    ),
    "another form has the same size": (
        [waits(0, PAIR, 5), rank(1, "all_reduce", group("dp", PAIR, 5, 4, last=(op(5, signature="Float[2, 5]"),)))],
        Cause.ALL_ENTERED,
        (),
    ),
    "members of a scatter have other tensors": (
        [
            rank(0, "scatter", group("dp", PAIR, 5, 4, last=(op(5, "scatter", "Float[10], Float[10] -> Float[10]"),))),
            rank(1, "scatter", group("dp", PAIR, 5, 4, last=(op(5, "scatter", " -> Float[10]"),))),
        ],
        Cause.ALL_ENTERED,
        (),
    ),
    "a mismatch that has completed is none": (
        [
            rank(0, "all_reduce", group("dp", PAIR, 5, 4, last=(op(4), op(5)))),
            rank(1, "all_reduce", group("dp", PAIR, 5, 4, last=(op(4, "broadcast"), op(5)))),
        ],
        Cause.ALL_ENTERED,
        (),
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation(situation):
    ranks, cause, culprits = SITUATIONS[situation]
    found = attribute([node(*ranks)])
    assert (found.cause, found.culprits) == (cause, culprits), found
    assert headline(found)
    assert details(found).endswith(".")


def test_two_nodes_with_one_rank_are_not_trusted():
    """One of them may be of an earlier round."""
    found = attribute(
        [
            node(waits(0, PAIR, 5), rank(1, USER, group("dp", PAIR, 4))),
            node(waits(1, PAIR, 5), name="node-b"),
        ]
    )
    assert (found.cause, found.culprits) == (Cause.NO_RESPONSE, ())


def test_all_ranks_of_a_stopped_node_are_named():
    members = range(8)
    stopped = node(*(rank(each, status=SILENT, recorder=False, stack=False) for each in range(4, 8)), name="node-b")
    found = attribute([node(*(waits(each, members, 5) for each in range(4))), stopped])
    assert (found.cause, found.culprits) == (Cause.NO_RESPONSE, (4, 5, 6, 7))
    assert headline(found) == "ranks 4-7 on node-b do not respond; 4 ranks wait for them"


def test_some_silent_ranks_of_a_node_are_not_named():
    """A busy machine delays responses."""
    members = range(8)
    ranks = [
        rank(each, status=SILENT, recorder=False, stack=False) if each in {5, 6} else waits(each, members, 5)
        for each in members
    ]
    found = attribute([node(*ranks)])
    assert (found.cause, found.culprits) == (Cause.NO_RESPONSE, ())
    assert "Ranks 5, 6 did not respond." in found.details


def mesh(stuck):
    """Tensor-parallel groups of 8 neighbours, data-parallel ones across them, and a culprit."""
    ranks = []
    for number in range(64):
        row, column = divmod(number, 8)
        tensor, data = range(row * 8, row * 8 + 8), range(column, 64, 8)
        in_row, in_column = row == stuck // 8, column == stuck % 8
        tp = group(f"tp{row}", tensor, 20 + in_row, 20, description="tp")
        dp = group(f"dp{column}", data, 30 + (in_column and not in_row), 30, description="dp")
        if number == stuck:
            ranks.append(
                rank(
                    number,
                    USER,
                    group(f"tp{row}", tensor, 20, description="tp"),
                    group(f"dp{column}", data, 30, description="dp"),
                )
            )
        elif in_row:  # in the tensor-parallel operation before
            ranks.append(rank(number, "all_reduce", tp, group(f"dp{column}", data, 30, description="dp")))
        else:
            dp = group(f"dp{column}", data, 31, 30, description="dp")
            ranks.append(rank(number, "all_reduce", group(f"tp{row}", tensor, 21, description="tp"), dp))
    return [node(*ranks[begin : begin + 8], name=f"node-{begin // 8}") for begin in range(0, 64, 8)]


@pytest.mark.parametrize("stuck", [0, 17, 63])
def test_mesh_of_64_ranks(stuck):
    found = attribute(mesh(stuck))
    assert (found.cause, found.culprits, found.nodes) == (Cause.MISSING, (stuck,), (f"node-{stuck // 8}",))
    assert found.waiting_count == 63


def test_a_chain_names_the_operation_of_the_culprit():
    found = attribute(mesh(17))
    assert headline(found) == "rank 17 on node-2 has not entered all_reduce #31 of group dp; 63 ranks wait for it"


def test_order_of_ranks_and_nodes_does_not_matter():
    nodes = mesh(17)
    turned = [NodeEvidence(node_id=each.node_id, ranks=each.ranks[::-1]) for each in reversed(nodes)]
    assert attribute(turned) == attribute(nodes)


def test_the_many_culprits_are_counted():
    members = range(60)
    ranks = [waits(each, members, 5) if each < 30 else rank(each, USER, group("dp", members, 4)) for each in members]
    found = attribute([node(*ranks)])
    assert (len(found.culprits), found.culprits[0], found.waiting_count) == (16, 30, 30)
    assert found.details[0] == "These are the first 16 of 30 ranks."


def test_two_culprits_of_different_groups():
    found = attribute(
        [
            node(
                waits(0, TRIO, 5),
                waits(1, TRIO, 5),
                rank(2, USER, group("dp", TRIO, 4)),
                waits(3, (3, 4), 8, name="tp"),
                rank(4, USER, group("tp", (3, 4), 7)),
            )
        ]
    )
    assert (found.culprits, found.elsewhere, found.waiting) == ((2, 4), 1, (0, 1, 3))
    assert headline(found) == (
        "rank 2 on node-a has not entered all_reduce #5 of group dp; rank 4 on node-a is missing in another group; "
        "3 ranks wait for them"
    )
    assert "Rank 4 has not entered all_reduce #8 of group tp." in found.details


def test_two_culprits_at_different_numbers_have_not_entered_the_later_operation():
    ranks = [waits(0, range(4), 6), waits(1, range(4), 6), rank(2, USER, group("dp", range(4), 4))]
    found = attribute([node(*ranks, rank(3, USER, group("dp", range(4), 3)))])
    assert headline(found) == (
        "ranks 2, 3 on node-a have not entered all_reduce #5 of group dp; 2 ranks wait for them"
    ).replace("all_reduce", "operation")
