"""What a watcher makes of the events that a server pushes."""

import pytest
from msgspec.structs import replace

from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_core.api.stores import Revisions, Topic, compare
from elastic_rdzv_etcd.coding import b64
from elastic_rdzv_etcd.messages import Answer, Found, Keys
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_etcd.watching import Watcher

KEYS = Keys("/elastic/", "run")
TOPICS = frozenset(Topic)


class Pushed:
    """A stream whose events the test chooses."""

    closed = False

    def __init__(self):
        self.coming = []

    def events(self, timeout_s, wait):
        events, self.coming = self.coming, []
        return events

    def close(self):
        self.closed = True


def raw(key, value, puts):
    return {"key": b64(key), "value": b64(value), "version": str(puts), "mod_revision": "7", "create_revision": "1"}


def put(key, puts, *, at, value=b"-1"):
    return {"type": "PUT", "key": key, "value": value, "version": puts, "mod_revision": at}


@pytest.fixture
def watcher():
    """One that has read the content at revision 7: each topic was put once."""
    kvs = [raw(KEYS.birth, b"b1", 1), *(raw(KEYS.topic(topic), b"-1", 1) for topic in Topic)]
    answer = {"header": {"revision": "7"}, "responses": [{"response_range": {"kvs": kvs}}]}
    made = Watcher(KEYS, lambda *_: Answer(answer), lambda *_: Pushed())
    made.listen(TOPICS, WaitBudget(), judges=True)
    return made


def look(watcher, *events):
    watcher._stream.coming += events
    watcher.hear(0.0, WaitBudget())
    return watcher.look(WaitBudget(), believe=True)


def test_events_say_how_far_the_topics_are(watcher):
    before = look(watcher)
    now = look(watcher, put(KEYS.topic("control"), 2, at=8), put(KEYS.topic("round"), 3, at=9))
    assert compare(before, now, TOPICS).changed == {Topic.CONTROL, Topic.ROUND}


def test_events_that_are_older_than_what_was_read_are_nothing_new(watcher):
    before = look(watcher)
    assert look(watcher, put(KEYS.topic("control"), 1, at=6)) == before


def test_events_that_are_older_than_what_was_noticed_take_nothing_back(watcher):
    look(watcher)
    watcher.notice_members(Found(raw(KEYS.busy, b"-1", 4)))  # an update of ours, answered before it was pushed
    noticed = look(watcher)
    pushed = [look(watcher, put(KEYS.busy, puts, at=6 + puts)) for puts in (2, 3, 4, 5)]
    assert [now.members for now in pushed] == [noticed.members] * 3 + [noticed.members + 1]
    assert not any(compare(noticed, now, TOPICS).reset for now in pushed)


def documents(watcher, key, *events):
    """Return the values of a document that a watch which ends after these events has received."""
    watcher.offer(look(watcher, *events))
    found = watcher.take_document(key)
    assert watcher.take_document(key) is None  # once: then it is read
    return None if found is None else list(found.values())


def test_a_document_arrives_with_its_topic(watcher):
    assert documents(watcher, "round") == []  # the first read had none
    value = {"type": "PUT", "key": KEYS.doc("round") + b"value", "value": b"roster", "version": 1, "mod_revision": 8}
    assert documents(watcher, "round", value, put(KEYS.topic("round"), 2, at=8)) == [b"roster"]
    assert documents(watcher, "control") == []
    gone = {**value, "type": "DELETE", "value": b"", "version": 0, "mod_revision": 9}
    assert documents(watcher, "round", gone, put(KEYS.topic("round"), 3, at=9)) == []


def test_a_document_of_which_a_later_revision_is_known_is_read(watcher):
    look(watcher)
    watcher._looked_s = float("-inf")
    kvs = [raw(KEYS.birth, b"b1", 1), *(raw(KEYS.topic(topic), b"-1", 2) for topic in Topic)]
    watcher._read = lambda *_: Answer({"header": {"revision": "9"}, "responses": [{"response_range": {"kvs": kvs}}]})
    assert documents(watcher, "round") is None


def test_documents_of_a_stream_that_is_lost_are_read(watcher):
    watcher.offer(look(watcher))
    watcher.drop()
    assert watcher.take_document("control") is None


def test_another_content_is_read(watcher):
    before = look(watcher)
    watcher._read = lambda *_: Answer({"header": {"revision": "9"}, "responses": [{"response_range": {}}]})
    gone = look(watcher, {"type": "DELETE", "key": KEYS.birth, "value": b"", "version": 0, "mod_revision": 9})
    assert compare(before, gone, TOPICS).reset


def test_all_watches_begin_where_they_are_more_than_a_server_reads_at_once(make_gateway, etcd_server):
    gateway = make_gateway(etcd_server.endpoint)
    key = b64(b"x" * 63)
    creates = [
        {"key": key, "range_end": b64(b"y" * 63)} for _ in range(3)
    ]  # the first two within 512 bytes, the third beyond
    for _ in range(40):
        gateway.stream(creates, wait=WaitBudget.lasting(10)).close()


class Events(Watcher):
    """A watcher of a test: each time it hears, it has the next of these changes."""

    def __init__(self, *changes):
        self.heard, self._changes, self._now = [], list(changes), Revisions(birth="b")

    def listen(self, topics, wait, *, judges):
        pass

    def look(self, wait, *, believe):
        return self._now

    def hear(self, timeout_s, wait):
        self.heard.append(timeout_s)
        change = self._changes.pop(0) if self._changes else {}
        self._now = replace(self._now, **change)
        return bool(change)

    def offer(self, seen):
        assert seen == self._now


@pytest.fixture
def watch():
    """Return how a store watches for a minute, with a watcher."""

    def watched(watcher):
        store = EtcdStore(RendezvousSettings(backend="etcd", endpoint="h:1", run_id="run", min_nodes=1, max_nodes=2))
        store._watcher = watcher
        return store.watch(Revisions(birth="b"), TOPICS, timeout_s=60.0, wait=WaitBudget())

    return watched


def test_a_watch_without_a_change_waits_once(watch):
    watcher = Events()
    assert not watch(watcher).changed
    assert 59 < watcher.heard[0] <= 60
    assert watcher.heard[1:] == [0.0]


def test_a_watch_ends_with_all_that_has_come_with_a_change(watch):
    watcher = Events({"round": 1}, {"control": 1})
    assert watch(watcher).changed == {Topic.ROUND, Topic.CONTROL}
    assert watcher.heard[1:] == [0.0]


def test_a_watch_whose_thread_did_not_run_has_what_came_meanwhile(watch):
    watcher = Events({}, {"round": 1})
    assert watch(watcher).changed == {Topic.ROUND}
