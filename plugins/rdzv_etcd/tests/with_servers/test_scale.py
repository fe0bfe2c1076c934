"""What operations cost when a run has many members, and what an idle one asks of the server: counted, never timed."""

import re
import urllib.request
from collections import Counter

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import Revisions, Topic
from patience import patience
from support import wait_for

MEMBERS = 200
RECORD = b"r" * 300
_STARTED = re.compile(r'^grpc_server_started_total\{grpc_method="(\w+)",grpc_service="([\w.]+)".* (\d+)$', re.M)


@pytest.fixture
def store(make_store, etcd_server):
    return make_store(etcd_server.endpoint)


@pytest.fixture
def asked(etcd_private):
    """Return a function: what calls the server was asked for, by their names, while something was done."""

    def counted():
        with urllib.request.urlopen(f"{etcd_private.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(
            r'^grpc_server_started_total\{grpc_method="(\w+)",grpc_service="([\w.]+)".* (\d+)$', text, re.M
        )
        return Counter({name: int(count) for name, service, count in found if service.startswith("etcdserverpb")})

    def during(act):
        before = counted()
        act()
        return dict(counted() - before)

    return during


def test_many_arrive_at_a_price_that_does_not_grow(store, wait):
    requests = Counter()
    ask = store._gateway.ask

    def counting(path, body, **how):
        answer = ask(path, body, **how)
        requests["calls"] += 1
        requests["bytes"] += len(str(body)) + len(str(answer))
        return answer

    store._gateway.ask = counting
    seats, prices = [], []
    for at in range(MEMBERS):
        before = requests.copy()
        seats.append(store.enlist(RECORD, incarnation=f"member-{at}", ttl_s=60, wait=wait))
        prices.append(requests - before)
    assert [seat.ahead for seat in seats] == list(range(MEMBERS))
    assert sorted(seat.number for seat in seats) == [seat.number for seat in seats]
    # The first one begins the run, and a few are seated at once.
    assert max(price["calls"] for price in prices[1:]) <= 3
    assert prices[-1]["calls"] <= prices[4]["calls"]
    assert prices[-1]["bytes"] < 1.2 * prices[4]["bytes"]

    renewals = []
    for seat in seats:
        before = requests.copy()
        assert store.renew(seat, ttl_s=60, wait=wait) is not None
        renewals.append(requests - before)
    # A sign of life, and what is there: what grows with the members only the first few ask for.
    assert sorted(price["calls"] for price in renewals)[: MEMBERS * 9 // 10][-1] <= 2
    assert renewals[-1]["bytes"] < 4000
    again = [store.renew(seat, ttl_s=60, wait=wait) for seat in seats]
    assert [renewal.ahead for renewal in again] == list(range(MEMBERS))
    assert {renewal.live for renewal in again} == {MEMBERS}


def test_who_is_alone_with_the_server_only_renews_its_lease(make_store, etcd_private, asked, wait):
    store = make_store(etcd_private.endpoint)
    seat = store.enlist(RECORD, incarnation="a", ttl_s=60, wait=wait)
    since = store.watch(Revisions(), (Topic.CONTROL,), timeout_s=0, wait=wait).revisions

    def idle():
        for _ in range(5):
            assert store.renew(seat, ttl_s=60, wait=wait).live == 1
            assert not store.watch(since, (Topic.CONTROL,), timeout_s=0.01, wait=wait).changed

    idle()
    assert asked(idle) == {"LeaseKeepAlive": 5}


def test_a_thing_pushed_need_not_be_read(make_store, etcd_private, asked, wait):
    store, other = make_store(etcd_private.endpoint), make_store(etcd_private.endpoint)
    other.swap("control", b"first", expect=None, keep_s=600, wait=wait)
    topics = (Topic.CONTROL, Topic.ROUND)
    since = store.watch(Revisions(), topics, timeout_s=0, wait=wait).revisions
    assert not store.watch(since, topics, timeout_s=0.01, wait=wait).changed
    other.swap("round", b"roster", expect=None, keep_s=600, wait=wait)

    def hear():
        seen = store.watch(since, topics, timeout_s=5, wait=wait)
        assert seen.changed == {Topic.ROUND}
        assert store.load("round", wait=wait).value == b"roster"  # it came with the push
        assert seen.revisions == store.watch(Revisions(), topics, timeout_s=0, wait=wait).revisions  # this one is read

    assert asked(hear) == {"Range": 1}


def test_the_loser_of_the_first_swap_asks_once(make_store, etcd_private, asked, wait):
    first, second = make_store(etcd_private.endpoint), make_store(etcd_private.endpoint)
    second.connect(wait=wait)
    won = first.swap("control", b"mine", expect=None, keep_s=600, wait=wait)
    outcomes = []
    counted = asked(lambda: outcomes.append(second.swap("control", b"late", expect=None, keep_s=600, wait=wait)))
    assert counted == {"Txn": 1}
    assert (outcomes[0].applied, outcomes[0].current) == (False, won.current)


def test_the_loss_of_all_who_judge_at_once_is_found_by_the_next(make_store, etcd_private):
    """The first of many die together: nobody tells the others, of whom the next ones in line count again."""
    wait = WaitBudget.lasting(patience(60))
    stores = [make_store(etcd_private.endpoint) for _ in range(40)]
    ttl_s = float(round(patience(1.6)))  # in which all have come and listen, and in which each is heard again
    seats = [store.enlist(RECORD, incarnation=f"m{at}", ttl_s=ttl_s, wait=wait) for at, store in enumerate(stores)]
    topics = (Topic.DEPARTURES,)
    since = [store.watch(Revisions(), topics, timeout_s=0, wait=wait).revisions for store in stores]  # all listen
    for store, seat in zip(stores[:5], seats[:5], strict=True):
        assert store.renew(seat, ttl_s=ttl_s, wait=wait).live == len(stores)  # the last word of these
    ahead = {}

    def found():
        for at in range(5, len(stores)):
            renewal = stores[at].renew(seats[at], ttl_s=ttl_s, wait=wait)
            ahead[at] = renewal.ahead
            stores[at].watch(since[at], topics, timeout_s=0.001, wait=wait)
        return list(ahead.values()) == list(range(len(stores) - 5))

    wait_for(found, within_s=20, what="seats of the others without the first five")
    assert len(stores[-1].members(wait=wait).members) == len(stores) - 5
