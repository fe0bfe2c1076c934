"""What the simulation once found, told without it: each test failed before its mend."""

from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, decode
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.state import Me, State, Trouble, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat, Topic, Watched

ME = Me(node="n1", incarnation="n1#1", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=2, max_nodes=4)
SEATED = State(
    me=ME,
    want=Want.JOIN,
    connected=True,
    seat=Seat(number=3, incarnation="n1#1", ahead=2),
    confirmed_s=99.0,
    recorded=b"what it said last",
    since=Revisions(birth="b", members=7),
)


def test_a_record_is_written_again_to_a_store_that_lost_writes():
    lost = Watched(revisions=Revisions(birth="b", members=5), changed=frozenset(Topic), reset=True)
    assert observe(SEATED, m.WatchEnded(watched=lost), 100.0).recorded == b""


def test_a_record_is_written_again_after_trouble():
    trouble = Trouble(since_s=98.0, count=3, retry_s=99.9, text="away")
    same = Watched(revisions=SEATED.since, changed=frozenset())
    assert observe(replace(SEATED, trouble=trouble), m.WatchEnded(watched=same), 100.0).recorded == b""


def test_a_record_is_written_a_last_time_one_lease_after_trouble():
    """A request that was given up may arrive after the one that replaced it."""
    trouble = Trouble(since_s=98.0, count=3, retry_s=99.9, text="away")
    same = Watched(revisions=SEATED.since, changed=frozenset())
    state = observe(replace(SEATED, trouble=trouble), m.WatchEnded(watched=same), 100.0)
    assert state.repeat_s == 100.0 + ME.ttl_s


def test_a_node_that_waits_goes_over_to_the_run_that_has_begun_since_at_once():
    """It had a round in the one that the store lost; whoever leads the other must not give that token again."""
    other = ControlDocument(epoch="other", attempt=0, secret="s", fingerprint={})
    fresh = frozenset({CONTROL_KEY, ROUND_KEY})
    mine = ControlDocument(epoch="lost", attempt=0, secret="s", fingerprint={})
    here = replace(SEATED, epoch="lost", kept=mine, seen=4, renew_s=101.0)
    state = replace(here, control=other, round=None, fresh=fresh)
    done = step(state, (), now_s=100.0)
    assert isinstance(done.operation, m.Update)
    record = decode(done.operation.record, MemberRecord)
    assert (record.epoch, record.seen) == ("other", 4)
