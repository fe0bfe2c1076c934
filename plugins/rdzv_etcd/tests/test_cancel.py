"""A wait that is cancelled just when an event arrives: no trouble with the server, and nothing missed."""

import pytest

from elastic_core.api import Revisions, Topic, WaitBudget, WaitCancelledError

TOPICS = (Topic.CONTROL, Topic.ROUND)


def test_a_watch_goes_on_after_one_that_was_cancelled_at_an_event(make_store, etcd_server, wait):
    store, other = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    other.swap("control", b"1", expect=None, keep_s=60, wait=wait)
    seen = store.watch(Revisions(), TOPICS, timeout_s=0, wait=wait).revisions
    assert not store.watch(seen, TOPICS, timeout_s=0.05, wait=wait).changed
    cancelled = WaitBudget.lasting(10)
    stream = store._watcher._stream  # no other way to be there just then
    read = stream._response.chunk

    def chunk():
        part = read()
        cancelled.cancel()
        return part

    stream._response.chunk = chunk
    other.swap("round", b"2", expect=None, keep_s=60, wait=wait)
    with pytest.raises(WaitCancelledError):
        store.watch(seen, TOPICS, timeout_s=5, wait=cancelled)
    assert store.watch(seen, TOPICS, timeout_s=5, wait=wait).changed == {Topic.ROUND}
    assert store._watcher._stream is not stream
