"""Grants: what members of a round ask and answer each other while the store is away."""

import heapq
import itertools
import os
import random

import pytest
from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.outage import grant, grant_ends_s
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, Me, OwnRun, PeerGrants, State, Trouble, Want
from elastic_core.rendezvous.shell.grants import (
    CHECK_EVERY_S,
    UNITS,
    UNKNOWN,
    GrantTable,
    PeerExchange,
    PeerView,
    peer_view,
)

LEASE_S = 5.0
LARGE = [(1000, 0.05)] if "SIMULATE_SEEDS" in os.environ else []
"""With `make simulate`: it takes half a minute."""


def round_of(count, token=7):
    roster = tuple(RosterEntry(f"i{rank}", f"n{rank}", f"10.0.0.{rank}", 40000) for rank in range(count))
    return RoundDocument(
        epoch="e", token=token, nonce="x", index=0, master_addr="", master_port=1, roster=roster, lease_s=LEASE_S
    )


def view(round_, rank, **more):
    given = {"incarnation": f"i{rank}", "secret": "s", "lease_s": LEASE_S, "mine": round_, "runs": True}
    return PeerView(**(given | more))


class Talk:
    """Members that exchange datagrams: each takes up to 2 ms, and a share of them is lost."""

    def __init__(self, views, seed, loss=0.0):
        self.rng, self.loss, self.now_s = random.Random(seed), loss, 100.0
        self.members = {one.incarnation: PeerExchange(one, self.rng) for one in views}
        self.heard = {name: [] for name in self.members}
        self.sent = 0
        self._events, self._order = [], itertools.count()
        for one in views:
            self.tell(one)

    def tell(self, one):
        self.members[one.incarnation].update(one, self.now_s)
        self._plan(one.incarnation)

    def _at(self, time_s, call):
        heapq.heappush(self._events, (time_s, next(self._order), call))

    def _plan(self, name):
        due_s = self.members[name].due_s
        if due_s < NEVER_S:
            self._at(max(due_s, self.now_s), lambda: self._ask(name))

    def _ask(self, name):
        member = self.members[name]
        if self.now_s < member.due_s:
            return
        for entry, question in member.ask(self.now_s):
            self._carry(lambda q=question, to=entry.incarnation: self._answer(name, to, q))
        self._hear(name)
        self._plan(name)

    def _carry(self, call):
        self.sent += 1
        if self.rng.random() >= self.loss:
            self._at(self.now_s + self.rng.uniform(0.0002, 0.002), call)

    def _answer(self, asker, name, question):
        answer = self.members[name].answer(question, self.now_s)
        self._hear(name)
        self._plan(name)
        if answer is not None:
            self._carry(lambda: self._take(asker, answer))

    def _take(self, name, answer):
        self.members[name].take(answer, self.now_s)
        self._hear(name)

    def _hear(self, name):
        self.heard[name] += [(self.now_s, event) for event in self.members[name].take_events()]

    def run(self, until_s, done=lambda: False):
        while not done() and self._events and self._events[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = until_s

    def evidence_s(self, name):
        found = [e.oldest_s for _, e in self.heard[name] if isinstance(e, protocol.PeersAnswered)]
        return max(found, default=LONG_AGO_S)


def troubled(round_, rank, since_s=100.0):
    return view(round_, rank, troubled_s=since_s, granted_s=since_s)


@pytest.mark.parametrize(("count", "loss"), [(2, 0.05), (9, 0.05), (60, 0.05), *LARGE])
def test_all_grants_arrive_within_a_sixth_of_the_lease(count, loss):
    round_ = round_of(count)
    talk = Talk([troubled(round_, rank) for rank in range(count)], seed=count, loss=loss)
    late = set(talk.members)

    def all_know():
        if talk.now_s > talk.looked_s + 0.01:
            talk.looked_s = talk.now_s
            late.difference_update({name for name in late if talk.evidence_s(name) >= 100.0 - 9 * LEASE_S / UNITS})
        return not late

    talk.looked_s = 100.0
    talk.run(100.0 + LEASE_S / 6, all_know)
    assert late == set()


def test_a_grant_that_is_missing_is_missed_by_all():
    round_ = round_of(4)
    talk = Talk([*(troubled(round_, rank) for rank in range(3)), view(round_, 3, reached_s=99.9)], seed=1)
    talk.run(104.0)
    assert {talk.evidence_s(f"i{rank}") for rank in range(3)} == {LONG_AGO_S}
    last = [e for _, e in talk.heard["i0"] if isinstance(e, protocol.PeersAnswered)][-1]
    assert (last.asked, last.granted, last.reaching) == (3, 2, 0)


def test_who_is_asked_tries_the_store_and_asks_others_meanwhile():
    round_ = round_of(30)
    talk = Talk([troubled(round_, 0), *(view(round_, rank) for rank in range(1, 30))], seed=3)
    talk.run(100.0 + LEASE_S / 12)
    asked = [name for name, heard in talk.heard.items() if any(isinstance(e, protocol.PeerAsked) for _, e in heard)]
    assert len(asked) >= 29
    needed = [name for name, heard in talk.heard.items() if any(getattr(e, "needs", False) for _, e in heard)]
    assert 8 <= len(needed) < 29 * 3


def test_an_answer_about_another_round_counts_for_nothing():
    older, newer = round_of(2, token=5), round_of(2, token=6)
    talk = Talk([troubled(older, 0), troubled(newer, 1)], seed=1)
    talk.run(101.0)
    assert talk.evidence_s("i0") == LONG_AGO_S
    assert not any(isinstance(e, protocol.PeerAsked) for _, e in talk.heard["i1"])


def test_time_on_the_way_makes_a_grant_older_never_younger():
    """The answer is half a second late: its ages count back from when it was asked."""
    round_ = round_of(2)
    asker, other = (
        PeerExchange(troubled(round_, 0), random.Random(1)),
        PeerExchange(troubled(round_, 1), random.Random(1)),
    )
    for one, rank in ((asker, 0), (other, 1)):
        one.update(troubled(round_, rank), 100.0)
    ((_, question),) = asker.ask(101.0)
    answer = other.answer(question, 101.4)  # its grant is 1.4 s old by then
    asker.take(answer, 101.9)
    (event,) = [e for e in asker.take_events() if isinstance(e, protocol.PeersAnswered) and e.granted]
    assert 101.0 - 1.4 - 2 * LEASE_S / UNITS <= event.oldest_s <= 101.0 - 1.4


def test_the_same_answer_again_and_a_forged_one_change_nothing():
    round_ = round_of(2)
    asker, other = (
        PeerExchange(troubled(round_, 0), random.Random(1)),
        PeerExchange(troubled(round_, 1), random.Random(1)),
    )
    asker.update(troubled(round_, 0), 100.0)
    other.update(troubled(round_, 1), 100.0)
    ((_, question),) = asker.ask(100.0)
    answer = other.answer(question, 100.0)
    asker.take(answer, 100.0)
    first = [e for e in asker.take_events() if isinstance(e, protocol.PeersAnswered)]
    for odd in (
        answer,
        msgspec_replace(answer, serial=99),
        msgspec_replace(answer, asker="i7"),
        msgspec_replace(answer, addressee="i9"),
        msgspec_replace(answer, ages=b"\0" * 7),
    ):
        asker.take(odd, 103.0)
    asker.ask(103.0)
    assert [e.oldest_s for e in asker.take_events() if isinstance(e, protocol.PeersAnswered)] == [first[-1].oldest_s]


def msgspec_replace(struct, **changes):
    return replace(struct, **changes)


def test_a_question_to_another_incarnation_has_no_answer():
    round_ = round_of(2)
    asker, other = PeerExchange(troubled(round_, 0), random.Random(1)), PeerExchange(view(round_, 1), random.Random(1))
    asker.update(troubled(round_, 0), 100.0)
    ((_, question),) = asker.ask(100.0)
    assert other.answer(replace(question, addressee="i1 of before"), 100.0) is None


def test_the_ages_of_a_table():
    table = GrantTable(3, 1, LEASE_S)
    assert table.ages(10.0) == bytes([UNKNOWN] * 3)
    table.merge(bytes([0, 0, 40]), 10.0)
    assert table.oldest_s == 10.0 - 40 * LEASE_S / UNITS
    assert table.ages(10.0) == bytes([0, UNKNOWN, 40])
    assert table.ages(10.01) == bytes([1, UNKNOWN, 41])
    assert table.ages(20.0) == bytes([UNKNOWN] * 3)
    assert table.missing(9.5) == (2,)
    table.merge(bytes([200, 200, 200]), 10.0)
    assert table.ages(10.0) == bytes([0, UNKNOWN, 40])


# --- while the store is well


def unreachable(talk, name):
    return [e.ranks for _, e in talk.heard[name] if isinstance(e, protocol.PeersUnreachable)]


def test_members_try_once_a_round_and_then_each_minute_whether_all_could_be_asked():
    round_ = round_of(5)
    talk = Talk([view(round_, rank) for rank in range(5)], seed=2)
    talk.run(100.0 + 2 * LEASE_S)
    first = talk.sent
    assert 0 < first < 5 * 5 * 20
    talk.run(100.0 + CHECK_EVERY_S / 2)
    assert talk.sent == first
    talk.run(100.0 + LEASE_S + CHECK_EVERY_S + 1)
    assert talk.sent > first
    assert [unreachable(talk, f"i{rank}") for rank in range(5)] == [[]] * 5


def test_members_that_answer_nobody_are_named_after_the_second_try():
    round_ = round_of(4)
    talk = Talk([view(round_, rank) for rank in range(4)], seed=2)
    silent = talk.members["i3"]
    silent.answer = lambda question, now_s: None
    silent.ask = lambda now_s: ()
    silent.update(view(None, 3, runs=False), 100.0)
    talk.run(100.0 + 1.6 * LEASE_S)
    assert unreachable(talk, "i0") == []
    talk.run(100.0 + 5 * LEASE_S)
    assert unreachable(talk, "i0") == [(3,)]


def test_a_try_that_is_due_in_trouble_is_put_off():
    round_ = round_of(2)
    member = PeerExchange(view(round_, 0), random.Random(1))
    member.update(view(round_, 0), 100.0)
    member.update(troubled(round_, 0, since_s=104.0), 104.0)
    now_s = 100.0 + LEASE_S
    for _ in range(3):
        member.ask(now_s)
        assert member.due_s > now_s
        now_s = member.due_s


# --- who waits for a round of which nobody is alive


def test_who_waits_asks_whether_members_run_the_round_and_hears_who_does():
    round_ = round_of(3)
    waits = view(None, 9, runs=False, vigil=round_)
    talk = Talk([waits, view(round_, 0, runs=False), view(round_, 1)], seed=4)
    talk.members["i2"] = PeerExchange(view(round_of(3, token=8), 2), random.Random(1))
    talk.heard["i2"] = []
    talk.run(103.0)
    assert {e for _, e in talk.heard["i9"]} == {protocol.StillRuns(token=7, nonce="x")}


# --- a member's own


ME = Me(node="n0", incarnation="i0", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=1, max_nodes=4)
CUT = State(
    me=ME,
    want=Want.RUN,
    mine=round_of(2),
    run=OwnRun(kept_round=round_of(2), kept_control=ControlDocument(epoch="e", attempt=0, secret="s"), epoch="e"),
    trouble=Trouble(since_s=99.0),
    peers=PeerGrants(needed_s=99.5),
)


def test_a_grant_is_given_while_another_member_needs_it_and_the_store_does_not_answer():
    assert grant(CUT, 100.0).peers.granted_s == 100.0
    assert grant_ends_s(grant(CUT, 100.0)) == 100.0 + LEASE_S


@pytest.mark.parametrize(
    "changes",
    [
        {"trouble": None},
        {"trouble": Trouble(since_s=99.0, own=True)},
        {"peers": PeerGrants(needed_s=100.0 - LEASE_S - 1)},
        {"want": Want.JOIN},
        {"mine": round_of(1)},
        {"me": replace(ME, hosted=True)},
    ],
)
def test_otherwise_none_is_given(changes):
    assert grant(replace(CUT, **changes), 100.0).peers.granted_s == LONG_AGO_S


def test_the_view_of_a_round_that_nobody_else_is_in_asks_nobody():
    alone = peer_view(replace(CUT, mine=round_of(1)), 90.0)
    assert (alone.troubled_s, alone.runs) == (None, True)
    assert peer_view(replace(CUT, me=replace(ME, hosted=True)), 90.0).mine is None
    assert peer_view(CUT, 90.0).troubled_s == 99.0
