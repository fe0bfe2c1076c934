"""Who takes part, and with which rank."""

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.rendezvous.member.documents import MemberRecord, RosterEntry
from elastic_core.rendezvous.member.roster import Candidate, assign, choose, entries


def member(seat, node=None, hint=None, address="10.0.0.1", boot="b", alternative=""):
    record = MemberRecord(
        epoch="e", node=node or f"n{seat}", state="ready", rank_hint=hint, address=address, boot=boot,
        alternative=alternative,
    )  # fmt: skip
    return Candidate(seat=seat, incarnation=f"i{seat}", record=record)


def last(*seats):
    return [RosterEntry(f"i{seat}", f"n{seat}", "", 0) for seat in seats]


def seats(candidates):
    return [candidate.seat for candidate in candidates]


def test_newcomers_are_ranked_by_arrival():
    assert seats(assign([member(3), member(1), member(2)], [], {})) == [1, 2, 3]


def test_a_newcomer_fills_the_hole_and_survivors_keep_their_ranks():
    assert seats(assign([member(1), member(3), member(9)], last(1, 2, 3), {})) == [1, 9, 3]


def test_survivors_move_up_in_order_when_the_round_shrinks():
    assert seats(assign([member(1), member(3), member(4)], last(1, 2, 3, 4), {})) == [1, 3, 4]
    assert seats(assign([member(3), member(4)], last(1, 2, 3, 4), {})) == [3, 4]


def test_a_returning_node_gets_its_old_rank_where_it_is_free():
    back = member(9, node="n2")
    assert seats(assign([member(8), back, member(1)], last(1, 2), {})) == [1, 9, 8]
    assert seats(assign([member(8), back, member(1)], last(1), {"n2": 2})) == [1, 8, 9]


def test_a_hint_is_followed_where_the_rank_is_free():
    assert seats(assign([member(1, hint=1), member(2, hint=0)], [], {})) == [2, 1]
    assert seats(assign([member(1, hint=0), member(2, hint=0), member(3, hint=7)], [], {})) == [1, 2, 3]


def test_members_of_the_last_round_come_before_spares():
    assert seats(choose([member(1), member(2), member(3)], last(3, 2), 2)) == [3, 2]


def test_loopback_counts_only_on_one_host():
    here = member(1, address="127.0.0.1", boot="x", alternative="10.0.0.7")
    there = member(2, address="10.0.0.8", boot="y")
    assert [entry.host for entry in entries([here, there])] == ["10.0.0.7", "10.0.0.8"]
    assert [entry.host for entry in entries([here, member(3, address="127.0.0.1", boot="x")])] == ["127.0.0.1"] * 2
    assert [entry.host for entry in entries([here])] == ["127.0.0.1"]


def test_hosts_that_are_not_known_are_not_one():
    unknown = [member(seat, address="127.0.0.1", boot="", alternative=f"10.0.0.{seat}") for seat in (1, 2)]
    assert [entry.host for entry in entries(unknown)] == ["10.0.0.1", "10.0.0.2"]


def test_an_address_that_the_node_id_ends_with_is_written_once():
    (entry,) = entries([member(1, node="n1@10.0.0.1")])
    assert (entry.address, entry.host) == ("", "10.0.0.1")


@given(
    before=st.lists(st.integers(0, 12), unique=True, max_size=8),
    now=st.lists(st.integers(0, 12), unique=True, min_size=1, max_size=8),
    hints=st.dictionaries(st.integers(0, 12), st.integers(0, 9)),
    left=st.dictionaries(st.integers(0, 12).map(lambda n: f"n{n}"), st.integers(0, 9)),
)
def test_ranks_are_a_bijection_and_survivors_keep_their_order(before, now, hints, left):
    ranked = assign([member(seat, hint=hints.get(seat)) for seat in now], last(*before), left)
    assert sorted(seats(ranked)) == sorted(now)
    stayed = [seat for seat in seats(ranked) if seat in before]
    assert stayed == [seat for seat in before if seat in now]


@given(
    before=st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=6),
    gone=st.integers(0, 5),
    newcomer=st.integers(20, 30),
)
def test_one_node_replaced_moves_nobody(before, gone, newcomer):
    index = gone % len(before)
    now = [seat for seat in before if seat != before[index]] + [newcomer]
    ranked = seats(assign([member(seat) for seat in now], last(*before), {}))
    assert ranked == [*before[:index], newcomer, *before[index + 1 :]]
