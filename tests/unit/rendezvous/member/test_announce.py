"""What a member tells people of a store that it can't reach, and takes from its agent."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    decode,
)
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.state import (
    NEVER_S,
    Departure,
    LeaderDuty,
    Me,
    OwnLease,
    OwnRun,
    Progress,
    RoundEnd,
    SeenStore,
    State,
    StoreConnection,
    Want,
    question_about,
)
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Renewal, Revisions, Seat
from elastic_core.reports import NodeReport
from elastic_core.types import Restart, Stop
from elastic_plugin_kit import sample_failure

ME = Me(node="n1", incarnation="n1#1", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=2, max_nodes=4)
FAILED = protocol.Failed(text="refused")
STOPS = Stop(reason="the store goes with n1")
LATE_S = 0.2
"""How much later than it asked for a member on a busy host is called."""


def lines(connect_timeout_s):
    """Return when a member says what that never reaches the store, until it has left."""
    state, now_s, told = State(me=replace(ME, connect_timeout_s=connect_timeout_s)), 0.0, []
    events = (protocol.JoinAsked(master_port=1),)
    while True:
        done = step(state, events, now_s=now_s)
        state = done.state
        told += [(now_s, line) for line in done.announcements]
        match done.operation:
            case protocol.Gone():
                return told
            case protocol.Connect():
                now_s, events = now_s + 0.01, (FAILED,)
            case protocol.Pause(until_s=until_s) if (
                until_s == NEVER_S
            ):  # the join is over, and its error on its way through a busy agent
                now_s, events = now_s + 5.0, (m.LeaveRendezvous(close=False),)
            case protocol.Pause(until_s=until_s):
                assert until_s > now_s + 0.01, "it must not turn in circles"
                now_s, events = until_s + LATE_S, ()


@pytest.mark.parametrize("connect_timeout_s", [0.5, 1.0, 1.3, 2.0])
def test_who_soon_gives_up_on_a_store_says_one_line(connect_timeout_s):
    ((at_s, line),) = lines(connect_timeout_s)
    assert isinstance(line, protocol.JoinFailed)
    assert connect_timeout_s <= at_s < connect_timeout_s + 2 * LATE_S


def test_a_lease_is_renewed_a_third_of_it_after_the_last_renewal_was_sent():
    seat = Seat(number=1, incarnation="n1#1", ahead=0)
    state = State(
        me=ME,
        want=Want.JOIN,
        connection=StoreConnection(connected=True, ever_connected=True),
        lease=OwnLease(seat=seat),
        seen=SeenStore(since=Revisions(birth="b")),
    )
    renewed = protocol.Renewed(renewal=Renewal(ahead=0, live=1, next_expiry_s=None), sent_s=100.0, ttl_s=5.0)
    state = observe(state, renewed, 100.4)
    due_s = 100.0 + ME.ttl_s / 3
    assert not isinstance(step(state, (), now_s=due_s - 0.1).operation, protocol.Renew)
    assert step(state, (), now_s=due_s).operation == protocol.Renew(seat=seat, ttl_s=5.0)


@pytest.mark.parametrize("connect_timeout_s", [4.0, 60.0])
def test_who_waits_longer_for_a_store_says_so_soon(connect_timeout_s):
    (first_s, first), (last_s, last) = lines(connect_timeout_s)
    assert isinstance(first, m.PrintLine)
    assert "store unreachable" in first.text
    assert 1.0 <= first_s < 2.0
    assert isinstance(last, protocol.JoinFailed)
    assert connect_timeout_s <= last_s < connect_timeout_s + 2 * LATE_S


def test_the_silence_of_the_last_try_does_not_hide_what_the_tries_before_have_found():
    state = State(me=ME)
    for event in (
        protocol.Failed(text="cannot resolve 'redis.example'"),
        protocol.Failed(text="w does not answer", silent=True),
    ):
        state = observe(state, event, 1.0)
    assert state.trouble.text == "cannot resolve 'redis.example'"
    state = observe(State(me=ME), protocol.Failed(text="w does not answer", silent=True), 1.0)
    assert state.trouble.text == "w does not answer"


ROUND = RoundDocument(
    epoch="e",
    token=7,
    nonce="x",
    index=0,
    master_addr="h",
    master_port=1,
    roster=tuple(RosterEntry(f"{name}#1", name, "h", 1) for name in ("n1", "n2")),
)
CONTROL = ControlDocument(epoch="e", attempt="0", secret="s", fingerprint={})
ENDED = Ending(token=7, nonce="x", kind="regroup", reason="n1 left", by="n2", lost=("n1",))
DRAINED = State(
    me=ME,
    want=Want.RUN,
    departure=Departure(leaving=True),
    mine=ROUND,
    run=OwnRun(seen_token=7, epoch="e", kept_control=CONTROL, kept_round=ROUND),
    connection=StoreConnection(connected=True, ever_connected=True),
    lease=OwnLease(ahead=1, seat=Seat(number=2, incarnation="n1#1", ahead=1), renew_s=200.0, confirmed_s=99.0),
    seen=SeenStore(since=Revisions(), round=ROUND, control=CONTROL, fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
)


def operations(state, *times):
    """Return what a member does at these times that was told to leave at the first; its record is always written."""
    found, events = [], (m.LeaveRendezvous(close=False),)
    for at_s in times:
        done = step(state, events, now_s=at_s)
        if isinstance(done.operation, protocol.Update):
            written = protocol.Updated(record=done.operation.record, kept=True)
            done = step(done.state, (written,), now_s=at_s)
        state, events = done.state, ()
        found.append(type(done.operation))
    return found


def test_who_was_told_to_stop_leaves_when_the_others_know_that_it_has_left():
    told = replace(DRAINED, seen=replace(DRAINED.seen, control=replace(CONTROL, ending=ENDED)))
    assert protocol.Withdraw not in operations(DRAINED, 100.0, 100.4)
    assert operations(DRAINED, 100.0, 100.6)[-1] is protocol.Withdraw
    assert operations(told, 100.0) == [protocol.Withdraw]


@pytest.mark.parametrize(
    "state",
    [
        replace(DRAINED, departure=replace(DRAINED.departure, leaving=False)),
        replace(DRAINED, work=replace(DRAINED.work, progress=Progress.DONE)),
        replace(DRAINED, mine=replace(ROUND, roster=ROUND.roster[:1])),
        replace(DRAINED, end=replace(DRAINED.end, announced=7)),
    ],
    ids=["at the end", "done", "alone", "known"],
)
def test_nobody_else_waits_to_leave(state):
    assert operations(state, 100.0) == [protocol.Withdraw]


def test_the_host_of_the_store_gives_the_runs_verdict_before_it_says_that_it_leaves():
    """Else the others form a round that can't be kept, between the one word and the other."""
    state, events, now_s = (
        replace(DRAINED, departure=replace(DRAINED.departure, leaving=False)),
        (m.PublishDecision(decision=STOPS), m.AnnounceDeparture()),
        100.0,
    )
    while True:
        done = step(state, events, now_s=now_s)
        match done.operation:
            case protocol.Update(record=record):
                assert decode(record, MemberRecord).state != "leaving"
                events = (protocol.Updated(record=record, kept=True),)
            case protocol.Swap(key=key, document=document):
                assert (key, document.verdict.decision) == (CONTROL_KEY, STOPS)
                break
        state = done.state
    assert done.state.departure.leaving


def test_who_ordered_a_stop_that_was_published_late_tells_how_long_before_that_it_failed():
    """Another node's order may stand in its place; without the store each had counted from its own."""
    report = NodeReport(node_id="n1", age_s=0.1)
    ordered = observe(
        replace(DRAINED, departure=replace(DRAINED.departure, leaving=False)),
        m.OrderStop(failure=sample_failure(summary="boom"), report=report),
        100.0,
    )
    theirs = StopOrder(token=7, nonce="x", by="n2", incarnation="n2#1", reason="reset", report=NodeReport(node_id="n2"))
    assert record_of(ordered, 100.0).report is None  # the order has it
    stood = step(
        replace(ordered, seen=replace(ordered.seen, control=replace(CONTROL, stopping=theirs))), (), now_s=103.0
    ).state
    assert record_of(stood, 100.0).report.age_s == pytest.approx(3.1)
    final = observe(stood, replace(report, final=True), 104.0)
    assert record_of(final, 100.0).report.age_s == pytest.approx(3.1)


DECIDED = m.PublishDecision(decision=Restart(), failure=sample_failure(), evidence="what n2 saw")


@pytest.mark.parametrize(
    ("question", "posted"),
    [(question_about(7, "b"), (7, "b")), (question_about(6, "a"), None), (question_about(7, "a"), None)],
    ids=["this round's", "the one's before", "one's that the store has lost"],
)
def test_an_answer_counts_for_the_round_that_it_was_asked_about_only(question, posted):
    """A policy thought so long that another node decided, and the next round has failed, too."""
    asked = State(me=ME, want=Want.STOP, duty=LeaderDuty(asked=(7, "b"), asked_s=90.0))
    after = observe(asked, replace(DECIDED, question=question), 100.0)
    assert (None if after.end.post is None else (after.end.post.token, after.end.post.nonce)) == posted
    assert after.duty.asked == (asked.duty.asked if posted is None else None)


@pytest.mark.parametrize(
    ("changes", "fenced"),
    [({}, True), ({"me": replace(ME, hosted=True)}, True), ({"end": RoundEnd(verdict_announced=True)}, True),
     ({"me": replace(ME, hosted=True), "end": RoundEnd(verdict_announced=True)}, False)],
    ids=["a server's", "a member's", "a server's, after the verdict", "a member's, after the verdict"],
)  # fmt: skip
def test_a_store_that_goes_with_its_host_after_the_verdict_cuts_no_grace_period_short(changes, fenced):
    state = replace(State(me=ME, want=Want.STOP, lease=OwnLease(confirmed_s=100.0)), **changes)
    assert state.fence_s == (100.0 + 0.88 * ME.ttl_s if fenced else NEVER_S)


# --- a seat that is gone before its lease can have ended

SEATED = replace(DRAINED, departure=replace(DRAINED.departure, leaving=False))
NO_SEAT = {
    "renewed": protocol.Renewed(renewal=None, sent_s=101.0, ttl_s=5.0),
    "updated": protocol.Updated(record=b"", kept=False),
}


def seat_lines(state, *times, event):
    """Return the lines of a member that finds at each of these times that its seat is gone, and gets another."""
    found = []
    for at_s in times:
        done = step(state, (event,), now_s=at_s)
        found += [line.text for line in done.announcements if isinstance(line, m.PrintLine)]
        state = replace(done.state, lease=replace(done.state.lease, seat=SEATED.lease.seat, confirmed_s=at_s))
    return found


@pytest.mark.parametrize("event", NO_SEAT.values(), ids=NO_SEAT)
def test_a_seat_that_the_store_took_away_is_said_to_be_the_stores_doing(event):
    (line,) = seat_lines(SEATED, 101.2, event=event)
    assert line == (
        "this node's seat in w was gone 2.2 s after its lease of 5 s was renewed: "
        "the store has lost it, or ends leases early"
    )


def test_a_lease_that_nobody_renewed_in_time_ends_without_that_line():
    assert seat_lines(SEATED, 99.0 + ME.ttl_s, event=NO_SEAT["renewed"]) == []


def test_a_store_that_ends_every_lease_early_has_one_line_a_minute():
    assert len(seat_lines(SEATED, *range(101, 158, 2), event=NO_SEAT["renewed"])) == 1
    assert len(seat_lines(SEATED, *range(101, 171, 2), event=NO_SEAT["renewed"])) == 2


# --- a store that stays away from a node that waits

CUT_OFF = replace(
    DRAINED,
    departure=replace(DRAINED.departure, leaving=False),
    want=Want.JOIN,
    waiting=replace(DRAINED.waiting, since_s=100.0, line_s=200.0),
)
FAILS = replace(ME, on_store_loss="fail", store_outage_grace_s=8.0)


def ends_at(me):
    """Return when a node that waits for its next round gives up, and why, if the store is away from 101 s on."""
    state, now_s, events = replace(CUT_OFF, me=me), 100.9, (FAILED,)
    while now_s < 150:
        done = step(state, events, now_s=now_s)
        found = [each for each in done.announcements if isinstance(each, protocol.JoinFailed)]
        if found:
            return now_s, found[0]
        state, events, now_s = (
            done.state,
            (() if isinstance(done.operation, protocol.Pause) else (FAILED,)),
            now_s + 0.1,
        )
    return None


def test_a_node_that_was_cut_off_does_not_outwait_a_store_that_is_to_fail_the_run():
    at_s, failed = ends_at(FAILS)
    assert 108.5 < at_s < 110
    assert failed == protocol.JoinFailed(
        error=RendezvousConnectionError, what="run 'r': w stayed away for 8 s: refused (--on-store-loss is fail)"
    )
    assert ends_at(ME) is None, "it waits for as long as --join-timeout says"


def test_a_node_that_is_told_to_stop_between_two_rounds_is_in_none_and_has_left():
    """It says so first, and waits for others to read it: else they would form a round with it, and miss it there."""
    asked = replace(
        SEATED,
        want=Want.JOIN,
        mine=ROUND,
        end=replace(SEATED.end, announced=ROUND.token),
        seen=replace(SEATED.seen, live=2),
        run=replace(SEATED.run, epoch="e"),
        departure=replace(SEATED.departure, leaving=True),
        lease=replace(SEATED.lease, recorded=b"ready"),
    )
    assert record_of(asked, 101.0).state == "leaving"
    left = step(asked, (m.LeaveRendezvous(close=False),), now_s=101.0)
    assert left.state.departure.parting
    assert left.operation == protocol.Withdraw(seat=SEATED.lease.seat)
    behind = step(left.state, (protocol.Withdrawn(),), now_s=101.1)
    assert isinstance(behind.operation, protocol.Enlist)
    assert decode(behind.operation.record, MemberRecord).state == "gone"
    seat = Seat(number=9, incarnation="n1#1", ahead=1)
    there = step(
        behind.state,
        (protocol.Enlisted(seat=seat, record=behind.operation.record, sent_s=101.1, ttl_s=5.0),),
        now_s=101.2,
    )
    assert not isinstance(there.operation, protocol.Withdraw)
    assert step(there.state, (), now_s=101.6).operation == protocol.Withdraw(seat=seat)
