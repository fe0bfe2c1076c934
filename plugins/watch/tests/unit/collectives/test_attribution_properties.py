"""Random programs with a known culprit: no other rank is ever named."""

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collective_runs import Op, Run
from elastic_watch.collectives.attribution import attribute
from elastic_watch.collectives.evidence import Cause
from elastic_watch.collectives.packing import pack, unpack

KINDS = ("all_reduce", "all_reduce", "all_gather", "barrier", "broadcast", "reduce")


@st.composite
def scripts(draw, *, p2p=True, later=True):
    """A world and operations in one order for all ranks, so that nothing hangs without a fault."""
    world = draw(st.integers(2, 6))
    groups = [tuple(range(world))]
    for _ in range(draw(st.integers(0, 3))):
        members = draw(st.sets(st.integers(0, world - 1), min_size=2, max_size=world))
        groups.append(tuple(sorted(members)))
    script = []
    for index in range(draw(st.integers(2, 14))):
        asynchronous = [
            at for at, op in enumerate(script) if op.later and not any(each.target == at for each in script)
        ]
        choice = draw(st.integers(0, 9))
        if choice == 0 and p2p:
            pair = draw(st.permutations(range(world)))[:2]
            script.append(Op("p2p", tuple(pair), later=later and draw(st.booleans())))
        elif choice <= 3 and asynchronous:
            target = draw(st.sampled_from(asynchronous))
            script.append(Op("wait", script[target].members, target=target))
        else:
            number = draw(st.integers(0, len(groups) - 1))
            members = groups[number]
            script.append(
                Op(
                    draw(st.sampled_from(KINDS)),
                    members,
                    group=f"{number}",
                    root=draw(st.sampled_from(members)),
                    later=later and draw(st.integers(0, 3)) == 0,
                    size=draw(st.integers(1, 3)),
                )
            )
        assert index < len(script)
    return world, script


@st.composite
def hangs(draw, **kinds):
    """A run with one fault or two, stopped by them, or seen while it goes on."""
    world, script = draw(scripts(**kinds))
    faulty = draw(st.lists(st.integers(0, world - 1), min_size=1, max_size=2, unique=True))
    faults = {}
    for rank in faulty:
        length = sum(rank in op.members for op in script)
        if length:
            faults[rank] = draw(st.integers(0, length - 1))
    run = Run(world, script, faults)
    run.run(draw(st.lists(st.integers(0, 5), max_size=60)))
    if draw(st.integers(0, 3)):
        run.settle()
    return run, faults


def truth(run, faults):
    return {rank for rank in faults if run.ranks[rank].stopped}


VIEWS = st.fixed_dictionaries(
    {
        "hidden_waits": st.booleans(),
        "ends": st.booleans(),
        "nodes": st.integers(1, 3),
        "backward": st.sets(st.integers(0, 5)),
    }
)


@st.composite
def less(draw, nodes):
    """The same evidence without parts of it."""
    kept = []
    for node in nodes:
        if draw(st.integers(0, 5)) == 0:
            continue
        ranks = []
        for rank in node.ranks:
            loss = draw(st.integers(0, 9))
            if loss == 0:
                continue
            if loss == 1:
                rank = replace(rank, stack=False, call="")
            elif loss == 2:
                rank = replace(rank, recorder=False, groups=())
            elif loss == 3 and rank.groups:
                out = draw(st.sampled_from(rank.groups))
                groups = tuple(each for each in rank.groups if each is not out)
                rank = replace(rank, groups=groups, groups_dropped=1)
            elif loss == 4:
                groups = tuple(replace(each, members=()) if draw(st.booleans()) else each for each in rank.groups)
                rank = replace(rank, groups=groups)
            elif loss == 5:
                rank = replace(rank, groups=tuple(replace(each, last=each.last[-1:]) for each in rank.groups))
            ranks.append(rank)
        kept.append(replace(node, ranks=tuple(ranks), world_size=draw(st.sampled_from([0, node.world_size]))))
    return kept


@settings(max_examples=200, deadline=None)
@given(hangs(), VIEWS, st.booleans(), st.data())
def test_no_other_rank_is_named(hang, view, silent, data):
    run, faults = hang
    nodes = run.evidence(**view, silent=faults if silent else ())
    found = attribute(nodes)
    event(found.cause.value)
    assert set(found.culprits) <= truth(run, faults), found
    fewer = attribute(data.draw(less(nodes)))
    assert set(fewer.culprits) <= truth(run, faults), fewer
    assert attribute([unpack(pack(node)) for node in nodes]) == found


@settings(max_examples=150, deadline=None)
@given(hangs(p2p=False, later=False))
def test_the_culprit_of_synchronous_programs_is_named(hang):
    run, faults = hang
    run.settle()
    waits = [rank for rank in run.ranks if not rank.stopped and not rank.finished]
    stopped = truth(run, faults)
    found = attribute(run.evidence())
    assert set(found.culprits) <= stopped
    if waits and len(stopped) == 1:
        assert (found.cause, set(found.culprits)) == (Cause.MISSING, stopped), found
    if waits and len(stopped) == 2 and len(waits) > 1:
        assert found.cause is Cause.MISSING
        assert found.culprits
    event(f"{len(stopped)} culprits, {bool(waits)}")


@settings(max_examples=150, deadline=None)
@given(scripts(), st.data())
def test_a_rank_in_another_order_is_named_or_none(script, data):
    world, operations = script
    odd = data.draw(st.integers(0, world - 1))
    run = Run(world, operations, {}, {odd: data.draw(st.integers(0, 8))})
    run.settle()
    nodes = run.evidence(**data.draw(VIEWS))
    found = attribute(nodes)
    event(found.cause.value)
    assert set(found.culprits) <= {odd}, found
    fewer = attribute(data.draw(less(nodes)))
    assert set(fewer.culprits) <= {odd}, fewer


@settings(max_examples=200, deadline=None)
@given(scripts(later=False), st.data())
def test_a_rank_with_another_size_is_named_or_none(script, data):
    world, operations = script
    odd = data.draw(st.integers(0, world - 1))
    run = Run(world, operations, {})
    run.ranks[odd].sizes = {index: op.size + 1 for index, op in enumerate(operations)}
    run.run(data.draw(st.lists(st.integers(0, 5), max_size=60)))
    found = attribute(run.evidence(**data.draw(VIEWS)))
    assert set(found.culprits) <= {odd}, found
