"""A round of which nobody is heard: who is waited for before the next one, how long, and what is no loss."""

import pytest
from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import ControlDocument, Ending, MemberRecord, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import (
    LONG_AGO_S,
    Me,
    OwnLease,
    OwnRun,
    SeenStore,
    State,
    StoreConnection,
    Trouble,
    Want,
)
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Renewal, Revisions, Seat
from elastic_core.types import RendezvousInfo

LEASE_S, GRACE_S = 5.0, 60.0
ROUND = RoundDocument(
    epoch="e", token=7, nonce="x", index=3, master_addr="h", master_port=1, lease_s=LEASE_S, grace_s=GRACE_S,
    roster=tuple(RosterEntry(f"{name}#1", name, "h", 1) for name in ("a", "b")),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
ENDED = Ending(token=7, nonce="x", kind="restart", reason="a failed", by="a")
SPARE = Candidate(seat=9, incarnation="c#1", record=MemberRecord(epoch="e", node="c", state="ready", seen=7))


def member(name, state, seen=7, token=7, nonce="x"):
    record = MemberRecord(epoch="e", node=name, state=state, seen=seen, token=token, nonce=nonce)
    return Candidate(seat=ord(name), incarnation=f"{name}#1", record=record)


def view(*members, now_s=100.0, ending=None, **more):
    given = {
        "now_s": now_s, "node": "c", "nonce": "y", "incarnation": "c#1", "min_nodes": 1, "max_nodes": 2,
        "first_call_s": 0.0, "last_call_s": 0.0, "max_changes": None, "round": ROUND, "members": (SPARE, *members),
        "control": replace(CONTROL, ending=ending), "ttl_s": LEASE_S,
    }  # fmt: skip
    return View(**(given | more))


@pytest.mark.parametrize("ending", [None, ENDED])
def test_a_spare_that_leads_waits_for_a_round_that_has_gone_silent(ending):
    """Also where the round was ended: those who are cut off have not heard of it."""
    first = judge(view(ending=ending), LeaderMemory())
    noted = {"control": replace(CONTROL, ending=ending, silent_of="x")}
    assert first.duty.document == noted["control"]
    second = judge(view(ending=ending, now_s=101.0, **noted), first.memory)
    assert (second.duty, second.look_s) == (None, 100.0 + LEASE_S + GRACE_S)
    third = judge(view(ending=ending, now_s=100.1 + LEASE_S + GRACE_S, **noted), second.memory)
    assert third.duty.name.startswith("end " if ending is None else "form ")


def test_it_waits_for_longer_while_one_answers_that_it_runs():
    memory = LeaderMemory(token=7, silent_s=0.0)
    over_s = LEASE_S + GRACE_S
    noted = {"control": replace(CONTROL, silent_of="x")}
    asked = judge(view(now_s=over_s + 1, still_runs_s=over_s, **noted), memory)
    assert (asked.duty, asked.look_s) == (None, over_s + LEASE_S)
    assert judge(view(now_s=over_s + LEASE_S + 1, still_runs_s=over_s, **noted), memory).duty.name.startswith("end ")


def test_members_of_a_round_that_was_silent_have_time_to_be_heard_again_one_after_the_other():
    first = judge(view(member("a", "running"), now_s=110.0), LeaderMemory(token=7, silent_s=100.0))
    assert (first.duty, first.look_s) == (None, 110.0 + LEASE_S)
    assert judge(view(member("a", "running"), now_s=110.1 + LEASE_S), first.memory).duty.name.startswith("end ")


@pytest.mark.parametrize("state", ["running", "ready", "stopped", "leaving"])
def test_nobody_waits_for_the_silent_where_one_of_the_round_is_heard(state):
    """It says `running` for as long as a grant of its own lasts."""
    assert judge(view(member("a", state)), LeaderMemory()).memory.silent_s is None


@pytest.mark.parametrize("state", ["ready", "out", "stopped", "done", "gone"])
def test_nobody_waits_for_those_who_were_seen_without_workers(state):
    seen = judge(view(member("a", state), member("b", state), ending=ENDED), LeaderMemory()).memory
    assert judge(view(ending=ENDED), seen).memory.silent_s is None


def test_a_record_of_before_the_round_says_nothing_about_it():
    """A member whose record is late has the state that it had before it heard of the round."""
    late = judge(view(member("a", "ready", seen=6, token=6, nonce="w")), LeaderMemory()).memory
    assert judge(view(), late).memory.silent_s == 100.0


def test_nodes_that_stopped_while_the_store_was_away_are_no_loss():
    """No strike, no membership change, and none of the restarts: they are here again."""
    found = judge(view(member("a", "ready"), member("b", "ready"), max_changes=0), LeaderMemory())
    assert found.duty.name.startswith("end ")
    ending = found.duty.document.ending
    assert (ending.kind, ending.unclean, ending.left, ending.lost) == ("outage", (), (), ("a", "b"))
    assert ending.reason.startswith("a, b stopped while the store was away; ")
    formed = judge(view(member("a", "ready"), member("b", "ready"), ending=ending), found.memory)
    assert formed.duty.name.startswith("form ")
    document = formed.duty.document
    assert (document.changes, document.restarts, dict(document.strikes)) == (0, 0, {})


@pytest.mark.parametrize(
    ("before_s", "age_s", "unclean", "after_s"),
    [
        (LEASE_S, 10.0, ("a",), 2 * LEASE_S),
        (4 * LEASE_S, 30.0, ("a",), 40.0),
        (40.0, 10.0, ("a",), 40.0),
        (20.0, 900.0, ("a",), 10.0),
        (20.0, 10.0, (), 10.0),
        (LEASE_S, 900.0, (), LEASE_S),
        (LEASE_S, 10.0, "outage", 2 * LEASE_S),
    ],
)
def test_the_lease_is_longer_after_a_round_that_has_lost_nodes_while_workers_started(before_s, age_s, unclean, after_s):
    ending = Ending(token=7, nonce="x", kind="regroup", reason="", by="b", lost=("a",), unclean=unclean, age_s=age_s)
    given = view(member("b", "ready"), ending=ending, round=replace(ROUND, lease_s=before_s), shortest_ttl_s=LEASE_S)
    formed = judge(given, LeaderMemory()).duty
    assert formed.document.lease_s == after_s


# --- one member


ME = Me(
    node="b", incarnation="b#1", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=1, max_nodes=2,
    store_outage_grace_s=GRACE_S, ttl_s=LEASE_S,
)  # fmt: skip
RUNS = State(
    me=ME,
    want=Want.RUN,
    mine=ROUND,
    run=OwnRun(seen_token=7, epoch="e", kept_control=CONTROL, kept_round=ROUND),
    connection=StoreConnection(connected=True, ever_connected=True),
    seen=SeenStore(since=Revisions(), round=ROUND, control=CONTROL, fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
    lease=OwnLease(seat=Seat(number=2, incarnation="b#1", ahead=1), renew_s=200.0, confirmed_s=100.0, length_s=LEASE_S),
)
CUT = replace(
    RUNS, trouble=Trouble(since_s=101.0, retry_s=110.0, text="away"), peers=replace(RUNS.peers, needed_s=101.0)
)


def gathered(oldest_s, **more):
    given = {"token": 7, "nonce": "x", "asked": 1, "granted": 1, "reaching": 0} | more
    return protocol.PeersAnswered(oldest_s=oldest_s, **given)


def test_grants_of_all_keep_the_workers_and_the_guards_fence_moves_on():
    kept = step(CUT, (gathered(103.0),), now_s=103.2).state
    assert (kept.want, kept.fence_s) == (Want.RUN, 103.0 + 0.88 * LEASE_S)
    assert step(kept, (), now_s=103.0 + 0.74 * LEASE_S).state.want is Want.RUN
    assert step(kept, (), now_s=103.0 + 0.76 * LEASE_S).state.want is Want.STOP


@pytest.mark.parametrize(
    "odd",
    [
        gathered(LONG_AGO_S, granted=0),
        gathered(103.0, token=6),
        gathered(103.0, nonce="w"),
    ],
)
def test_nothing_less_does(odd):
    stopped = step(CUT, (odd,), now_s=100.0 + 0.76 * LEASE_S)
    assert stopped.state.want is Want.STOP


def test_who_gave_a_grant_says_that_it_runs_until_it_has_ended_whatever_became_of_it():
    granted = step(CUT, (), now_s=102.0).state
    assert granted.peers.granted_s == 102.0
    waits = observe(granted, protocol.JoinAsked(master_port=1), 103.0)
    assert record_of(waits, 102.0 + LEASE_S - 0.01).state == "running"
    assert record_of(waits, 102.0 + LEASE_S).state == "ready"


def test_nor_does_it_start_workers_of_a_later_round_before():
    later = replace(ROUND, token=8, nonce="z")
    state = replace(
        RUNS,
        want=Want.JOIN,
        peers=replace(RUNS.peers, granted_s=99.0),
        seen=replace(RUNS.seen, round=later),
        run=replace(RUNS.run, kept_round=ROUND),
        end=replace(RUNS.end, announced=7),
        lease=replace(RUNS.lease, confirmed_s=103.5),
    )
    assert not step(state, (), now_s=99.0 + LEASE_S - 0.2).announcements
    done = step(replace(state, lease=replace(state.lease, confirmed_s=104.0)), (), now_s=99.0 + LEASE_S)
    assert any(isinstance(one, RendezvousInfo) for one in done.announcements)


@pytest.mark.parametrize("length_s", [2 * LEASE_S, LEASE_S / 2])
def test_a_node_takes_its_place_with_a_lease_of_the_length_that_the_round_has(length_s):
    """Others wait for so long before they take a node that has gone for the reason of their failures."""
    later = replace(ROUND, token=8, nonce="z")
    state = replace(
        RUNS,
        want=Want.JOIN,
        seen=replace(RUNS.seen, round=later),
        end=replace(RUNS.end, announced=7),
        lease=replace(RUNS.lease, confirmed_s=104.0, length_s=length_s, renew_s=110.0),
    )
    first = step(state, (), now_s=104.5)
    assert (first.operation, first.announcements) == (protocol.Renew(seat=state.lease.seat, ttl_s=LEASE_S), ())
    renewal = Renewal(ahead=0, live=2, next_expiry_s=None)
    done = step(first.state, (protocol.Renewed(renewal=renewal, sent_s=104.5, ttl_s=LEASE_S),), now_s=104.6)
    assert any(isinstance(one, RendezvousInfo) for one in done.announcements)


def test_a_store_that_stays_away_for_longer_than_the_grace_is_one_line():
    state = replace(
        CUT, peers=replace(CUT.peers, evidence_s=101.0 + GRACE_S), printed=replace(CUT.printed, outage=True)
    )
    done = step(state, (), now_s=101.1 + GRACE_S)
    (line,) = [one.text for one in done.announcements]
    assert "may begin another round from now on" in line
    assert not step(done.state, (), now_s=101.2 + GRACE_S).announcements


def test_members_that_can_not_be_asked_are_one_line_a_round():
    done = step(RUNS, (protocol.PeersUnreachable(token=7, nonce="x", ranks=(0,)),), now_s=101.0)
    (line,) = [one.text for one in done.announcements]
    assert line.startswith("a does not answer this node's datagrams: if w goes away for all, workers stop here")
    assert not step(done.state, (protocol.PeersUnreachable(token=7, nonce="x", ranks=(0,)),), now_s=102.0).announcements


# --- a newcomer at the door


def door(silent, now_s=200.0, **more):
    control = replace(CONTROL, over_s=7.0, **more)
    state = State(
        me=replace(ME, node="d", incarnation="d#1"),
        want=Want.JOIN,
        connection=StoreConnection(connected=True, ever_connected=True),
        seen=SeenStore(since=Revisions(), control=control, round=ROUND, fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
    )
    return step(state, (protocol.Surveyed(epochs=frozenset(), silent=silent),), now_s=now_s)


def begins(state, after_s, silent):
    return step(state, (protocol.Surveyed(epochs=frozenset(), silent=silent),), now_s=200.0 + after_s).state.run.begin


@pytest.mark.parametrize(("silent", "more"), [({"a#1"}, {}), (None, {}), (set(), {"silent_of": "x"})])
def test_a_newcomer_waits_the_grace_where_members_may_train_on(silent, more):
    silent = None if silent is None else frozenset(silent)
    first = door(silent, **more)
    (line,) = [one.text for one in first.announcements]
    assert "has no live node, and a, b may train on without the store" in line
    assert "--rdzv-attempt 1" in line
    assert not begins(first.state, 8.0, silent)
    assert begins(first.state, 7.0 + GRACE_S, silent)


def test_it_does_not_where_all_have_given_their_seats_back():
    first = door(frozenset())
    assert begins(first.state, 7.0, frozenset())


def test_it_goes_on_waiting_while_one_answers_that_it_runs():
    first = door(frozenset({"a#1"}))
    heard = observe(first.state, protocol.StillRuns(token=7, nonce="x"), 200.0 + GRACE_S + 6)
    assert not begins(heard, 7.0 + GRACE_S, frozenset({"a#1"}))
    assert begins(heard, 7.0 + GRACE_S + LEASE_S, frozenset({"a#1"}))
