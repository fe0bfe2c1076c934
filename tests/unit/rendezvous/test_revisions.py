"""The comparison of two revisions of a store's content."""

import pytest

from elastic_core.rendezvous.store import Revisions, Topic, Watched, compare

SINCE = Revisions(birth="b", members=3, departures=1, round=2, control=5)


def test_equal_revisions_are_compared_as_a_whole(monkeypatch):
    # An idle node compares them at each renewal of its lease.
    monkeypatch.delattr(Revisions, "of")
    assert compare(SINCE, Revisions(birth="b", members=3, departures=1, round=2, control=5), tuple(Topic)) == Watched(
        revisions=SINCE, changed=frozenset()
    )
    assert compare(Revisions(), Revisions(), tuple(Topic)) == Watched(revisions=Revisions(), changed=frozenset())


@pytest.mark.parametrize(
    ("now", "changed", "reset"),
    [
        ({"members": 4}, {Topic.MEMBERS}, False),
        ({"members": 4, "control": 6}, {Topic.MEMBERS}, False),
        ({"round": 1}, {Topic.MEMBERS, Topic.ROUND}, True),
        ({"birth": "c"}, {Topic.MEMBERS, Topic.ROUND}, True),
        ({"birth": "", "members": 0, "departures": 0, "round": 0, "control": 0}, {Topic.MEMBERS, Topic.ROUND}, True),
    ],
)
def test_topics_that_moved_are_reported_and_all_after_a_reset(now, changed, reset):
    values = {"birth": "b", "members": 3, "departures": 1, "round": 2, "control": 5, **now}
    seen = compare(SINCE, Revisions(**values), (Topic.MEMBERS, Topic.ROUND))
    assert (seen.changed, seen.reset) == (changed, reset)


def test_the_first_content_is_no_reset():
    assert not compare(Revisions(), SINCE, tuple(Topic)).reset
