"""A wait that is cancelled, just when an event arrives too: no trouble with the server, none for it, nothing missed."""

import pytest

from cancelled_calls import cancelled
from elastic_core.api import WaitBudget
from elastic_core.api.stores import Revisions, Topic, WaitCancelledError

TOPICS = (Topic.CONTROL, Topic.ROUND)


def test_a_watch_goes_on_after_one_that_was_cancelled_at_an_event(make_store, etcd_server, wait):
    store, other = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    other.swap("control", b"1", expect=None, keep_s=60, wait=wait)
    seen = store.watch(Revisions(), TOPICS, timeout_s=0, wait=wait).revisions
    assert not store.watch(seen, TOPICS, timeout_s=0.05, wait=wait).changed
    ended = WaitBudget.lasting(10)
    stream = store._watcher._stream  # no other way to be there just then
    read = stream._response.chunk

    def chunk():
        part = read()
        ended.cancel()
        return part

    stream._response.chunk = chunk
    other.swap("round", b"2", expect=None, keep_s=60, wait=wait)
    with pytest.raises(WaitCancelledError):
        store.watch(seen, TOPICS, timeout_s=5, wait=ended)
    assert store.watch(seen, TOPICS, timeout_s=5, wait=wait).changed == {Topic.ROUND}
    assert store._watcher._stream is not stream


@pytest.mark.parametrize("call", ["watch", "members", "connect"])
def test_a_cancelled_call_leaves_nothing_to_the_collector(make_store, etcd_private, wait, call):
    """Each one would hold a connection with its buffers until then."""
    store = make_store(etcd_private.endpoint)
    store.enlist(b"a", incarnation="a", ttl_s=5, wait=wait)
    now = store.watch(Revisions(), TOPICS, timeout_s=0, wait=wait).revisions
    calls = {
        "watch": lambda w: store.watch(now, TOPICS, timeout_s=30, wait=w),
        "members": lambda w: store.members(wait=w),
        "connect": lambda w: store.connect(wait=w),
    }
    etcd_private.pause()
    try:
        assert cancelled(calls[call])
    finally:
        etcd_private.resume()


def test_what_only_reads_is_no_transaction(make_store, etcd_server, wait):
    """A server before 3.5.5 dies when the client of one that only reads goes away meanwhile."""
    bodies = []

    def listened_to(store):
        ask = store._gateway.ask

        def asked(path, body, **how):
            if path == "kv/txn":
                bodies.append(body)
            return ask(path, body, **how)

        store._gateway.ask = asked
        return store

    store, late = listened_to(make_store(etcd_server.endpoint)), listened_to(make_store(etcd_server.endpoint))
    seat = store.enlist(b"a", incarnation="a", ttl_s=60, wait=wait)
    make_store(etcd_server.endpoint).enlist(b"b", incarnation="b", ttl_s=60, wait=wait)
    assert store.renew(seat, ttl_s=60, wait=wait).live == 2
    store.update(seat, b"c", wait=wait)
    store.renew(seat, ttl_s=60, wait=wait)
    store.watch(Revisions(), TOPICS, timeout_s=0, wait=wait)
    assert len(store.members(wait=wait).members) == 2
    store.survey(("round", "control"), wait=wait)
    made = store.swap("round", b"1", expect=None, keep_s=60, wait=wait).current
    assert store.load("round", wait=wait) == made
    assert not late.swap("round", b"2", expect=None, keep_s=7200, wait=wait).applied
    assert late.swap("round", b"2", expect=made.version, keep_s=7200, wait=wait).applied  # for longer: all is moved
    store.withdraw(seat, wait=wait)
    assert len(bodies) > 8
    for body in bodies:
        assert any("request_range" not in operation for operation in (*body["success"], *body["failure"])), body


def test_reads_whose_revision_is_forgotten_are_made_anew(make_store, etcd_private, wait):
    store, other = make_store(etcd_private.endpoint), make_store(etcd_private.endpoint)
    store.enlist(b"a", incarnation="a", ttl_s=60, wait=wait)
    ask, compacted = store._gateway.ask, []

    def compacting(path, body, **how):
        answer = ask(path, body, **how)
        if path == "kv/range" and len(compacted) < 2:
            now = other.swap("round", b"", expect=None, keep_s=60, wait=wait)
            other.swap("round", b"1", expect=now.current.version, keep_s=60, wait=wait)
            at = ask("kv/range", {"key": "eA=="}, wait=wait, writes=False)["header"]["revision"]
            ask("kv/compaction", {"revision": at}, wait=wait, writes=True)
            compacted.append(at)
        return answer

    store._gateway.ask = compacting
    assert [member.record for member in store.members(wait=wait).members] == [b"a"]
    assert len(compacted) == 2
