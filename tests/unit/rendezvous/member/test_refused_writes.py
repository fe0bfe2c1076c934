"""What a member does whose store answers reads and renews leases, and takes no writes."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import RendezvousConnectionError, RendezvousTimeoutError
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.state import (
    JoinWait,
    Me,
    OwnLease,
    OwnRun,
    SeenStore,
    State,
    StoreConnection,
    Trouble,
    Want,
)
from elastic_core.rendezvous.shell.grants import peer_view
from elastic_core.rendezvous.store import (
    CONTROL_KEY,
    ROUND_KEY,
    Document,
    Renewal,
    Revisions,
    Seat,
    Swapped,
    Watched,
)
from elastic_core.types import Decided, Stop

ME = Me(
    node="n1", incarnation="n1#1", run_id="r", where="redis at r:1", fresh_epoch="e", secret="s", min_nodes=1,
    max_nodes=4, connect_timeout_s=5.0, join_timeout_s=20.0,
)  # fmt: skip
FULL = "r:1 is out of memory"
AWAY = f"store unreachable: {FULL}; "
HINT = "raise maxmemory of the server"
SEAT = Seat(number=1, incarnation="n1#1", ahead=0)
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s", fingerprint={})
ROUND = RoundDocument(
    epoch="e", token=7, nonce="x", index=0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(f"{name}#1", name, "h", 1) for name in ("n1", "n2")),
)  # fmt: skip
RUNS = State(
    me=replace(ME, on_store_loss="fail", store_outage_grace_s=4.0),
    want=Want.RUN,
    mine=ROUND,
    run=OwnRun(seen_token=7, epoch="e", kept_control=CONTROL, kept_round=ROUND),
    connection=StoreConnection(connected=True, ever_connected=True),
    lease=OwnLease(seat=SEAT, renew_s=101.0, confirmed_s=99.5, length_s=5.0),
    seen=SeenStore(since=Revisions(), round=ROUND, control=CONTROL, fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
)


class Store:
    """A store with a run's control document, or none, that takes no writes before `room_s`."""

    def __init__(self, state, now_s, *, control=None, round_=None, room_s=float("inf")):
        self.state, self.now_s, self.room_s = state, now_s, room_s
        self.documents = {CONTROL_KEY: control, ROUND_KEY: round_}
        self.told, self.operations = [], []

    def until(self, end_s, *events):
        """Let the member go on until then, or until its join has failed; return what it announced, with the times."""
        while self.now_s < end_s and not any(isinstance(line, protocol.JoinFailed) for _, line in self.told):
            done = step(self.state, events, now_s=self.now_s)
            self.state = done.state
            self.told += [(self.now_s, line) for line in done.announcements]
            self.operations.append(done.operation)
            events = self._answer(done.operation)
        return self.told

    def _answer(self, operation):
        sent_s, self.now_s = self.now_s, self.now_s + 0.001
        full = self.now_s < self.room_s
        match operation:
            case protocol.Enlist() | protocol.Update() | protocol.Swap() if full:
                return (protocol.Failed(text=FULL, hint=HINT, write=True, key=getattr(operation, "key", "")),)
            case protocol.Connect():
                return (protocol.Connected(address="h", alternative="", agent_port=1),)
            case protocol.Enlist(record=record, ttl_s=ttl_s):
                return (protocol.Enlisted(seat=SEAT, record=record, sent_s=sent_s, ttl_s=ttl_s),)
            case protocol.Update(record=record):
                return (protocol.Updated(record=record, kept=True),)
            case protocol.Renew(ttl_s=ttl_s):
                renewal = Renewal(ahead=0, live=1, next_expiry_s=None)
                return (protocol.Renewed(renewal=renewal, sent_s=sent_s, ttl_s=ttl_s),)
            case protocol.Load(key=key):
                return (protocol.Loaded(key=key, document=self._document(key), value=self.documents[key]),)
            case protocol.Swap(key=key, document=document):
                self.documents[key] = document
                swapped = Swapped(applied=True, current=self._document(key))
                return (protocol.SwapAnswered(key=key, swapped=swapped, value=document),)
            case protocol.ReadMembers():
                return (protocol.MembersRead(members=()),)
            case protocol.Watch(until_s=until_s):
                self.now_s = max(self.now_s, until_s)
                return (protocol.WatchEnded(watched=Watched(revisions=Revisions(), changed=frozenset())),)
            case protocol.Pause(until_s=until_s):
                self.now_s = until_s
                return ()
        raise AssertionError(operation)

    def _document(self, key):
        return None if self.documents[key] is None else Document(value=b"{}", version="1")


def joining(**me):
    return State(me=replace(ME, **me))


@pytest.mark.parametrize("control", [None, CONTROL], ids=["begins the run", "is a second node"])
def test_a_node_whose_first_write_is_refused_gives_up_after_the_connect_timeout(control):
    store = Store(joining(), 100.0, control=control)
    (line_s, line), (failed_s, failed) = store.until(200.0, protocol.JoinAsked(master_port=1))
    assert line == m.PrintLine(text=AWAY + "trying again", store_reachable=False)
    assert 101.0 <= line_s < 101.7
    assert 105.0 <= failed_s < 105.7
    assert failed == protocol.JoinFailed(
        error=RendezvousConnectionError,
        what=f"run 'r': redis at r:1 has not let this node in within 5 s: {FULL}",
        hint=HINT,
    )
    assert len(store.operations) < 60, "pauses between tries, as for an outage"


@pytest.mark.parametrize("seated", [True, False])
def test_only_a_node_that_was_let_in_says_who_has_come(seated):
    state = State(
        me=ME,
        want=Want.JOIN,
        connection=StoreConnection(connected=True, ever_connected=True),
        seen=SeenStore(since=Revisions()),
        waiting=JoinWait(began_s=90.0, since_s=90.0, line_s=100.0),
        lease=OwnLease(confirmed_s=99.0 if seated else float("-inf")),
    )
    told = step(state, (), now_s=100.5).announcements
    assert [line.text for line in told if "waiting for nodes: 0 of at least 1 node joined" in line.text] == [
        line.text for line in told
    ]
    assert len(told) == seated


def test_a_join_timeout_that_ends_first_names_the_reason_and_its_remedy():
    told = Store(joining(join_timeout_s=2.0), 0.0).until(9.0, protocol.JoinAsked(master_port=1))
    (failed,) = [announcement for _, announcement in told if isinstance(announcement, protocol.JoinFailed)]
    assert failed == protocol.JoinFailed(
        error=RendezvousTimeoutError, what=f"run 'r': no round within 2 s: {FULL}", hint=HINT
    )


def test_a_node_goes_on_when_its_write_is_taken():
    store = Store(joining(), 0.0, room_s=3.0)
    told = [line for _, line in store.until(6.0, protocol.JoinAsked(master_port=1))]
    assert told[:2] == [
        m.PrintLine(text=AWAY + "trying again", store_reachable=False),
        m.PrintLine(text="store back: redis at r:1", store_reachable=True),
    ]
    assert (store.state.lease.seat, store.state.trouble) == (SEAT, None)


def test_a_node_that_has_had_a_seat_is_not_held_to_the_connect_timeout():
    state = replace(
        RUNS,
        me=ME,
        want=Want.JOIN,
        waiting=replace(RUNS.waiting, began_s=100.0, since_s=100.0),
        lease=replace(RUNS.lease, recorded=b"old"),
    )
    store = Store(state, 100.0, control=CONTROL, round_=ROUND)
    assert not [line for _, line in store.until(112.0) if isinstance(line, protocol.JoinFailed)]


def test_a_member_that_runs_has_one_line_and_ends_by_its_grace():
    """Its lease is renewed meanwhile, and what others write is read."""
    store = Store(RUNS, 100.0, control=CONTROL, round_=ROUND)
    (line_s, line), (ended_s, ended) = store.until(110.0)
    assert line == m.PrintLine(text=AWAY + "workers keep running", store_reachable=False)
    assert isinstance(ended, m.RoundChanged)
    assert isinstance(ended.change, Decided)
    assert ended.change.decision == Stop(reason="--on-store-loss is fail", rule="store")
    assert 101.0 <= line_s < 101.7
    assert 104.0 <= ended_s < 104.7
    counts = {
        kind: sum(isinstance(one, kind) for one in store.operations)
        for kind in (protocol.Renew, protocol.Load, protocol.Update)
    }
    assert counts[protocol.Renew] >= 5
    assert 10 < counts[protocol.Update] < 30
    assert counts[protocol.Load] >= counts[protocol.Update]


def test_others_are_asked_for_grants_only_while_the_store_gives_this_member_no_answer():
    state = observe(RUNS, protocol.Failed(text=FULL, write=True), 100.0)
    assert peer_view(state, 99.0).troubled_s == 100.0
    state = observe(
        state, protocol.Renewed(renewal=Renewal(ahead=0, live=2, next_expiry_s=None), sent_s=101, ttl_s=5), 101
    )
    assert state.trouble is not None
    assert peer_view(state, 101.0).troubled_s is None
    assert peer_view(observe(state, protocol.Failed(text=FULL, write=True), 102.0), 101.0).troubled_s is None
    state = observe(state, protocol.Failed(text="connection refused"), 102.0)
    assert peer_view(state, 101.0).troubled_s == 100.0
    assert observe(state, protocol.Loaded(key=CONTROL_KEY, document=None, value=None), 103.0).trouble is None


@pytest.mark.parametrize(
    ("event", "ends"),
    [
        (protocol.Enlisted(seat=SEAT, record=b"", sent_s=100.0, ttl_s=5.0), True),
        (protocol.Updated(record=b"", kept=True), True),
        (protocol.SwapAnswered(key="k", swapped=Swapped(applied=True, current=None), value=None), True),
        (protocol.Surveyed(epochs=frozenset()), True),
        (protocol.Renewed(renewal=Renewal(ahead=0, live=1, next_expiry_s=None), sent_s=100.0, ttl_s=5.0), False),
        (protocol.Loaded(key=CONTROL_KEY, document=None, value=None), False),
        (protocol.MembersRead(members=()), False),
        (protocol.WatchEnded(watched=Watched(revisions=Revisions(), changed=frozenset())), False),
    ],
)
def test_what_ends_the_trouble(event, ends):
    trouble = Trouble(since_s=99.0, no_write=True)
    assert (observe(replace(RUNS, trouble=trouble), event, 100.0).trouble is None) is ends
    assert observe(replace(RUNS, trouble=replace(trouble, no_write=False)), event, 100.0).trouble is None


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_that_leaves_gives_its_seat_back_where_the_store_answers(answers):
    state = replace(RUNS, trouble=Trouble(since_s=99.0, retry_s=99.5, no_write=True, answers=answers))
    done = step(state, (m.LeaveRendezvous(close=False),), now_s=100.0)
    if answers:
        assert done.operation == protocol.Withdraw(seat=SEAT)
        done = step(done.state, (protocol.Withdrawn(),), now_s=100.1)
    assert done.operation == protocol.Gone()
    assert done.announcements == ()
