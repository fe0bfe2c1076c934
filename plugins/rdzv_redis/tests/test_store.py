"""The contract, on real servers: members and leases, documents, revisions, pushes, expiry of the whole."""

import threading
import time

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import Revisions, Topic, WaitCancelledError, WaitExpiredError
from patience import kept, patience
from redis_servers import RedisServer
from support import wait_for
from time_limits import CANCELLED_S

ALL = tuple(Topic)


@pytest.fixture(params=["valkey", "redis"])
def server(request, tmp_path):
    running = RedisServer(tmp_path / request.param, kind=request.param)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def store(make_store, server):
    return make_store(server.endpoint)


def pass_by(seconds):
    """Let leases pass on the server's clock: the one thing here that can only be waited for."""
    threading.Event().wait(seconds)


def revisions(store, wait):
    return store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions


def enlist(store, name, wait, *, ttl_s=10.0, record=b""):
    return store.enlist(record or name.encode(), incarnation=name, ttl_s=ttl_s, wait=wait)


def names(store, wait):
    return [member.incarnation for member in store.members(wait=wait).members]


# --- members


def test_connect_returns_this_hosts_address(store, wait):
    assert store.connect(wait=wait) == "127.0.0.1"


def test_seats_are_in_the_order_of_arrival(store, wait):
    seats = [enlist(store, name, wait) for name in "abc"]
    assert [seat.ahead for seat in seats] == [0, 1, 2]
    assert [m.seat for m in store.members(wait=wait).members] == sorted(seat.number for seat in seats)
    assert [m.record for m in store.members(wait=wait).members] == [b"a", b"b", b"c"]


def test_an_incarnation_that_comes_again_has_its_seat_and_a_new_record(store, wait):
    first = enlist(store, "a", wait)
    enlist(store, "b", wait)
    assert enlist(store, "a", wait, record=b"\x00\xff new") == first
    assert [m.record for m in store.members(wait=wait).members] == [b"\x00\xff new", b"b"]


def test_a_seat_number_is_never_given_again(store, wait):
    first = enlist(store, "a", wait)
    store.withdraw(first, wait=wait)
    assert enlist(store, "a", wait).number > first.number


def test_update_needs_number_and_incarnation(store, wait):
    seat = enlist(store, "a", wait)
    assert store.update(seat, b"new", wait=wait)
    stranger = type(seat)(number=seat.number + 1, incarnation="a", ahead=0)
    assert not store.update(stranger, b"x", wait=wait)
    store.withdraw(stranger, wait=wait)
    assert [m.record for m in store.members(wait=wait).members] == [b"new"]
    store.withdraw(seat, wait=wait)
    assert not store.update(seat, b"x", wait=wait)
    assert store.renew(seat, ttl_s=1, wait=wait) is None


def test_renew_says_who_is_ahead_and_whose_lease_ends_next(store, wait):
    first, second = enlist(store, "a", wait, ttl_s=30), enlist(store, "b", wait, ttl_s=90)
    renewal = store.renew(second, ttl_s=90, wait=wait)
    assert (renewal.ahead, renewal.live) == (1, 2)
    assert 20 < renewal.next_expiry_s <= 30
    assert 80 < store.renew(first, ttl_s=90, wait=wait).next_expiry_s <= 90
    store.withdraw(second, wait=wait)
    assert store.renew(first, ttl_s=90, wait=wait).next_expiry_s is None


def test_an_expired_member_goes_when_another_renews(store, wait):
    ttl_s = patience(0.4)  # a silence of all would extend both leases
    enlist(store, "dead", wait, ttl_s=ttl_s)
    living = enlist(store, "living", wait, ttl_s=ttl_s)
    before = revisions(store, wait)

    def renewed_alone():  # by and by: a moment in which nobody gets a turn is such a silence
        pass_by(ttl_s / 4)
        renewal = store.renew(living, ttl_s=ttl_s, wait=wait)
        return renewal if renewal.live == 1 else None

    assert wait_for(renewed_alone, what="the end of the other lease").ahead == 0
    after = revisions(store, wait)
    assert (after.members, after.departures) == (before.members + 1, before.departures + 1)


def test_expired_members_go_before_members_are_told_and_before_a_seat_is_given(store, wait):
    enlist(store, "dead", wait, ttl_s=0.2)
    pass_by(0.25)
    assert names(store, wait) == []
    enlist(store, "dead", wait, ttl_s=0.2)
    pass_by(0.25)
    assert enlist(store, "new", wait).ahead == 0


def test_an_expired_seat_is_not_updated(store, wait):
    seat = enlist(store, "a", wait, ttl_s=0.2)
    pass_by(0.25)
    assert not store.update(seat, b"x", wait=wait)
    assert store.renew(seat, ttl_s=1, wait=wait) is None


def test_after_a_silence_of_all_the_first_renewal_extends_every_lease(store, wait):
    ttl_s = patience(0.4)  # in which all are enlisted
    seats = [enlist(store, name, wait, ttl_s=ttl_s) for name in "abc"]
    pass_by(1.25 * ttl_s)  # as if the server had been stopped
    assert store.renew(seats[1], ttl_s=ttl_s, wait=wait).live == 3
    assert store.renew(seats[0], ttl_s=ttl_s, wait=wait).live == 3


def test_a_silence_seen_by_an_update_first_still_extends_every_lease(store, wait):
    ttl_s = patience(0.4)  # in which all are enlisted
    leases = (("a", ttl_s), ("b", ttl_s), ("c", 60.0))
    seats = [enlist(store, name, wait, ttl_s=lease_s) for name, lease_s in leases]
    store.renew(seats[0], ttl_s=ttl_s, wait=wait)  # the lease that counts is the one asked for last
    pass_by(1.25 * ttl_s)
    assert store.update(seats[2], b"first to come back", wait=wait)
    assert store.renew(seats[1], ttl_s=ttl_s, wait=wait).live == 3


def test_a_seat_that_is_gone_does_not_bring_others_back(store, wait):
    gone = enlist(store, "gone", wait)
    store.withdraw(gone, wait=wait)
    enlist(store, "dead", wait, ttl_s=0.2)
    pass_by(0.25)
    assert store.renew(gone, ttl_s=9, wait=wait) is None
    assert names(store, wait) == []


def test_leases_survive_a_clock_that_goes_back(store, server, wait):
    seat = enlist(store, "a", wait)
    other = enlist(store, "b", wait)
    # What the server's clock said an hour later, before it was set right.
    (key,) = [line for line in server.call("KEYS *:state").split("\r\n") if "state" in line]
    ahead_ms = (int(server.call("TIME").split()[2]) + 3600) * 1000
    server.call(f"HSET {key} heard {ahead_ms}")
    server.call(f"ZADD {key.removesuffix('state')}leases {ahead_ms} b")
    assert store.renew(seat, ttl_s=5, wait=wait).next_expiry_s <= 5
    assert store.renew(other, ttl_s=5, wait=wait).live == 2


# --- documents


def test_a_document_is_replaced_by_who_knows_its_version_only(store, wait):
    assert store.load("round", wait=wait) is None
    first = store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
    assert first.applied
    assert store.load("round", wait=wait) == first.current
    again = store.swap("round", b"2", expect=None, keep_s=60, wait=wait)
    assert (again.applied, again.current) == (False, first.current)
    second = store.swap("round", b"\x00", expect=first.current.version, keep_s=60, wait=wait)
    assert second.applied
    assert store.load("round", wait=wait).value == b"\x00"
    assert not store.swap("round", b"3", expect=first.current.version, keep_s=60, wait=wait).applied
    assert store.load("control", wait=wait) is None
    assert store.swap("control", b"", expect="x", keep_s=60, wait=wait).current is None


def test_versions_differ_even_where_the_server_forgot(store, server, wait):
    first = store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
    server.call("FLUSHALL")
    second = store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
    assert first.current.version != second.current.version


# --- revisions and pushes


def test_each_operation_raises_its_revisions(store, wait):
    assert revisions(store, wait) == Revisions()
    seat = enlist(store, "a", wait)
    at_first = revisions(store, wait)
    assert at_first.birth
    assert (at_first.members, at_first.departures) == (1, 0)
    store.update(seat, b"x", wait=wait)
    store.renew(seat, ttl_s=5, wait=wait)
    assert revisions(store, wait).members == 2
    store.swap("round", b"", expect=None, keep_s=60, wait=wait)
    store.swap("control", b"", expect=None, keep_s=60, wait=wait)
    store.swap("round", b"", expect=None, keep_s=60, wait=wait)
    store.withdraw(seat, wait=wait)
    store.withdraw(seat, wait=wait)
    assert revisions(store, wait) == Revisions(birth=at_first.birth, members=3, departures=1, round=1, control=1)


def test_watch_returns_at_once_for_what_has_moved_already(store, wait):
    enlist(store, "a", wait)
    seen = store.watch(Revisions(), ALL, timeout_s=5, wait=wait)
    assert (seen.changed, seen.reset) == ({Topic.MEMBERS}, False)


def test_watch_ends_at_its_timeout_where_nothing_moves(store, wait):
    enlist(store, "a", wait)
    now = revisions(store, wait)
    began_s = time.monotonic()
    seen = store.watch(now, ALL, timeout_s=0.2, wait=wait)
    took_s = time.monotonic() - began_s
    assert took_s > 0.19
    kept(took_s, 1)
    assert (seen.revisions, seen.changed) == (now, frozenset())


def test_a_change_ends_a_watch_of_its_topic_only(store, make_store, server, wait):
    other = make_store(server.endpoint)
    seat = enlist(other, "a", wait)
    now = revisions(store, wait)
    timer = threading.Timer(0.2, lambda: other.update(seat, b"x", wait=wait))
    timer.start()
    began_s = time.monotonic()
    assert store.watch(now, [Topic.ROUND, Topic.DEPARTURES], timeout_s=0.5, wait=wait).changed == frozenset()
    assert time.monotonic() - began_s > 0.4
    timer.join()
    timer = threading.Timer(0.2, lambda: other.withdraw(seat, wait=wait))
    timer.start()
    began_s = time.monotonic()
    assert store.watch(now, [Topic.DEPARTURES], timeout_s=9, wait=wait).changed == {Topic.DEPARTURES}
    kept(time.monotonic() - began_s, 2)
    timer.join()


def test_a_watch_that_waits_asks_nothing_of_the_server(store, server, wait):
    now = revisions(store, wait)
    store.watch(now, ALL, timeout_s=0.05, wait=wait)

    def commands():
        return int(server.call("INFO stats").partition("total_commands_processed:")[2].split()[0])

    before = commands()
    store.watch(now, ALL, timeout_s=0.6, wait=wait)
    # Reading the revisions once (with what that script calls), and the two that count.
    assert commands() - before < 15


def test_a_watch_of_a_member_expired_by_another_ends(store, make_store, server, wait):
    other = make_store(server.endpoint)
    enlist(other, "dead", wait, ttl_s=0.2)
    now = revisions(store, wait)
    timer = threading.Timer(0.4, lambda: other.members(wait=wait))
    timer.start()
    assert store.watch(now, [Topic.DEPARTURES], timeout_s=9, wait=wait).changed == {Topic.DEPARTURES}
    timer.join()


def test_an_emptied_server_is_a_reset(store, server, wait):
    enlist(store, "a", wait)
    now = revisions(store, wait)
    server.call("FLUSHALL")
    seen = store.watch(now, [Topic.ROUND], timeout_s=9, wait=wait)
    assert (seen.reset, seen.changed, seen.revisions) == (True, {Topic.ROUND}, Revisions())
    enlist(store, "a", wait)
    enlist(store, "b", wait)
    seen = store.watch(now, [Topic.ROUND], timeout_s=9, wait=wait)
    assert seen.reset
    assert seen.revisions.birth != now.birth


def test_cancelling_ends_a_watch_and_the_store_stays_usable(store, wait):
    enlist(store, "a", wait)
    now = revisions(store, wait)
    cancelled = WaitBudget()
    ended_at_s = []

    def cancel():
        cancelled.cancel()
        ended_at_s.append(time.monotonic())

    threading.Timer(0.2, cancel).start()
    with pytest.raises(WaitCancelledError):
        store.watch(now, ALL, timeout_s=30, wait=cancelled)
    wait_for(lambda: ended_at_s)
    kept(time.monotonic() - ended_at_s[0], CANCELLED_S)
    with pytest.raises(WaitCancelledError):
        store.members(wait=cancelled)
    assert names(store, wait) == ["a"]


def test_a_wait_that_is_over_ends_a_call_at_once(store):
    with pytest.raises(WaitExpiredError):
        store.members(wait=WaitBudget.lasting(0))


# --- the whole


def test_two_runs_never_meet(store, make_store, server, wait):
    other = make_store(server.endpoint, run="another")
    enlist(store, "a", wait)
    store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
    assert (names(other, wait), other.load("round", wait=wait), revisions(other, wait)) == ([], None, Revisions())


def test_keys_have_one_hash_tag_and_expire(store, server, run_id, wait):
    enlist(store, "a", wait)
    keys = [line for line in server.call("KEYS *").split("\r\n") if line.startswith("elastic")]
    assert len(keys) == 4
    quoted = run_id.replace("/", "%2F").replace("{", "%7B").replace("}", "%7D")
    assert all(key.startswith(f"elastic:{{{quoted}}}:") for key in keys)
    day_ms = 24 * 3600 * 1000
    assert all(day_ms - 60_000 < int(server.call(f"PTTL {key}").strip(":\r\n")) <= day_ms for key in keys)
    store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
    assert all(int(server.call(f"PTTL {key}").strip(":\r\n")) <= 60_000 for key in keys)


def test_a_run_without_a_name_has_a_hash_tag_too(make_store, server, wait):
    store = make_store(server.endpoint, run="")
    enlist(store, "a", wait)
    assert server.call("ZCARD elastic:{%}:seats").strip() == ":1"


def test_a_run_is_kept_after_the_last_call_and_then_gone(store, server, wait):
    seat, keep_s = enlist(store, "a", wait), patience(0.6)
    store.swap("round", b"1", expect=None, keep_s=keep_s, wait=wait)
    for _ in range(5):
        pass_by(keep_s / 4)
        store.load("round", wait=wait)
    assert store.load("round", wait=wait).value == b"1"
    pass_by(1.1 * keep_s)
    assert "*0" in server.call("KEYS *")
    assert store.renew(seat, ttl_s=1, wait=wait) is None


def test_an_operation_is_one_command(store, server, wait):
    seat = enlist(store, "a", wait)

    def calls():
        stats = server.call("INFO commandstats")
        return sum(
            int(line.partition("calls=")[2].partition(",")[0])
            for line in stats.split("\r\n")
            if line.startswith(("cmdstat_eval", "cmdstat_ping", "cmdstat_select", "cmdstat_client"))
        )

    operations = [
        lambda: store.update(seat, b"x", wait=wait),
        lambda: store.renew(seat, ttl_s=9, wait=wait),
        lambda: store.load("round", wait=wait),
        lambda: store.swap("round", b"", expect=None, keep_s=9, wait=wait),
        lambda: store.members(wait=wait),
        lambda: enlist(store, "a", wait),
        lambda: store.withdraw(seat, wait=wait),
    ]
    for operation in operations:
        operation()  # the server learns the script
    before = calls()
    for operation in operations:
        operation()
    assert calls() - before == len(operations)
