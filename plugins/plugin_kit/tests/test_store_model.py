"""The model of a store's server keeps the contract of `CoordinationStore`, request by request."""

import pytest

from elastic_core.api.stores import Revisions, Seat, Topic, compare
from elastic_plugin_kit import StoreModel

TTL_S = 6.0


@pytest.fixture
def model():
    return StoreModel("b")


def enlist(model, incarnation, now_s=0.0, record=b"r", ttl_s=TTL_S):
    return model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)


def live(model, now_s=0.0):
    return [(m.seat, m.incarnation, m.record) for m in model.members(now_s=now_s).members]


def renew(model, seat, now_s, ttl_s=TTL_S):
    return model.renew(seat, ttl_s=ttl_s, now_s=now_s)


def swap(model, new, expect=None, key="round", now_s=0.0, keep_s=100.0):
    return model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)


def moved(model, before, now_s=0.0):
    return set(compare(before, model.revisions(now_s=now_s), list(Topic)).changed)


def test_seats_are_in_order_of_arrival_and_never_used_again(model):
    first, second = enlist(model, "a"), enlist(model, "b")
    assert (first.ahead, second.ahead) == (0, 1)
    model.withdraw(second, now_s=0)
    third = enlist(model, "c")
    assert first.number < second.number < third.number
    assert [number for number, *_ in live(model)] == [first.number, third.number]


def test_a_repeated_enlist_finds_its_seat_and_renews_it(model):
    seat = enlist(model, "a", record=b"one")
    enlist(model, "b")
    assert enlist(model, "a", now_s=3.0, record=b"two") == seat
    assert live(model, now_s=7.0) == [(seat.number, "a", b"two")]


def test_an_expired_incarnation_gets_a_new_seat(model):
    old = enlist(model, "a")
    enlist(model, "b", now_s=3.0)  # somebody is heard: the silence is a's own
    assert enlist(model, "a", now_s=TTL_S).number > old.number


def test_after_a_silence_of_all_a_newcomer_spares_everybody(model):
    first, second = enlist(model, "a"), enlist(model, "b")
    before = model.revisions(now_s=0.0)
    third = enlist(model, "c", now_s=60.0)
    assert third.ahead == 2
    assert moved(model, before, now_s=60.0) == {Topic.MEMBERS}
    assert renew(model, second, 63.0).live == 3
    assert renew(model, first, 66.0) is None  # one lease more, not for ever


def test_expiry_is_told_once_and_the_rest_is_counted(model):
    first, second, third = enlist(model, "a"), enlist(model, "b", now_s=1.0), enlist(model, "c", now_s=3.0)
    before = model.revisions(now_s=6.5)
    assert renew(model, third, 6.5).live == 2
    assert moved(model, before) == {Topic.MEMBERS, Topic.DEPARTURES}
    answer = renew(model, second, 6.75)
    assert (answer.ahead, answer.live, answer.next_expiry_s) == (0, 2, 5.75)
    assert renew(model, first, 6.75) is None
    assert renew(model, third, 6.75).ahead == 1


def test_one_alone_has_no_foreign_lease_to_wait_for(model):
    assert renew(model, enlist(model, "a"), 1.0).next_expiry_s is None


def test_after_a_silence_of_all_a_renewal_spares_everybody(model):
    first, second = enlist(model, "a"), enlist(model, "b")
    assert renew(model, first, 100.0).live == 2
    assert renew(model, second, 105.0).live == 2


def test_without_a_silence_nobody_is_spared(model):
    first, second = enlist(model, "a"), enlist(model, "b")
    for now_s in (2.0, 4.0, 6.0):
        answer = renew(model, first, now_s)
    assert answer.live == 1
    assert renew(model, second, 6.0) is None


def test_a_seat_that_is_gone_keeps_no_dead_one_alive_by_asking(model):
    gone = enlist(model, "a")
    model.withdraw(gone, now_s=0)
    enlist(model, "b")
    for now_s in (3.0, 5.0, 6.0, 8.0):
        assert renew(model, gone, now_s) is None
    assert live(model, now_s=8.0) == []


def test_only_a_renewal_by_a_member_ends_a_pause(model):
    third, first, second = enlist(model, "c", ttl_s=20.0), enlist(model, "a"), enlist(model, "b")
    model.withdraw(first, now_s=0)
    assert renew(model, first, 10.0) is None
    assert model.update(third, b"new", now_s=10.0)
    assert renew(model, third, 11.0).live == 2
    assert renew(model, second, 12.0).live == 2


def test_an_expired_member_is_gone_for_its_own_update(model):
    first, second = enlist(model, "a"), enlist(model, "b")
    before = model.revisions(now_s=6.0)
    assert not model.update(first, b"late", now_s=6.0)
    assert moved(model, before, now_s=6.0) == {Topic.MEMBERS, Topic.DEPARTURES}
    assert renew(model, second, 6.0).live == 1


def test_only_the_incarnation_that_has_a_seat_can_use_it(model):
    seat = enlist(model, "a")
    stranger = Seat(number=seat.number, incarnation="x", ahead=0)
    model.withdraw(stranger, now_s=0)
    assert not model.update(stranger, b"no", now_s=0)
    assert renew(model, stranger, 0.0) is None
    assert model.update(seat, b"yes", now_s=0)
    assert live(model) == [(seat.number, "a", b"yes")]


def test_a_document_is_replaced_only_where_it_is_the_expected_one(model):
    assert swap(model, b"x", expect="1") == swap(model, b"x", expect="2")
    one = swap(model, b"one").current
    assert swap(model, b"no").current == one
    two = swap(model, b"two", expect=one.version).current
    three = swap(model, b"one", expect=two.version).current
    refused = swap(model, b"no", expect=one.version)
    assert (refused.applied, refused.current) == (False, three)
    assert model.load("round", now_s=0) == three


def test_each_request_moves_its_topics_only(model):
    before = model.revisions(now_s=0)
    assert before == Revisions()
    seat = enlist(model, "a")
    assert moved(model, before) == {Topic.MEMBERS}
    for act, topics in [
        (lambda: model.update(seat, b"2", now_s=0), {Topic.MEMBERS}),
        (lambda: renew(model, seat, 0.0), set()),
        (lambda: swap(model, b"1"), {Topic.ROUND}),
        (lambda: swap(model, b"1"), set()),
        (lambda: swap(model, b"1", key="control"), {Topic.CONTROL}),
        (lambda: swap(model, b"1", key="members"), set()),
        (lambda: model.withdraw(seat, now_s=0), {Topic.MEMBERS, Topic.DEPARTURES}),
        (lambda: model.withdraw(seat, now_s=0), set()),
        (lambda: model.update(seat, b"2", now_s=0), set()),
    ]:
        before = model.revisions(now_s=0)
        act()
        assert moved(model, before) == topics


def test_content_is_forgotten_after_the_last_request(model):
    swap(model, b"x", keep_s=10.0)
    assert model.load("round", now_s=9.0)
    before = model.revisions(now_s=18.0)
    assert before.round == 1
    assert model.revisions(now_s=19.0) == Revisions()
    assert model.load("round", now_s=19.0) is None
    swap(model, b"y", now_s=19.0)
    assert compare(before, model.revisions(now_s=19.0), [Topic.ROUND]).reset


def test_an_emptied_server_is_another_one(model):
    old = swap(model, b"x").current
    enlist(model, "a")
    before = model.revisions(now_s=0)
    model.empty("c")
    assert live(model) == []
    assert compare(before, model.revisions(now_s=0), []).reset
    assert swap(model, b"y", expect=old.version).current is None
    assert swap(model, b"x").current.version != old.version


def test_a_copy_is_the_past_to_go_back_to(model):
    seat = enlist(model, "a")
    past = model.copy()
    model.update(seat, b"later", now_s=0)
    lost = swap(model, b"lost").current
    renew(model, seat, 5.0)
    assert live(past) == [(seat.number, "a", b"r")]
    assert compare(model.revisions(now_s=0), past.revisions(now_s=0), []).reset
    assert swap(past, b"other").current.version != lost.version
    assert live(past, now_s=7.0) == []
    assert len(live(model, now_s=7.0)) == 1


def test_expiry_without_a_request_hears_nobody(model):
    seat = enlist(model, "a")
    assert model.earliest_deadline_s == TTL_S
    model.expire(now_s=TTL_S)
    assert model.earliest_deadline_s is None
    assert model.revisions(now_s=TTL_S).departures == 1
    assert renew(model, seat, TTL_S) is None
