"""The steps of an idle member, from watch to renewal and back: they run no other rule, and give what all would give."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import machine, protocol
from elastic_core.rendezvous.member.documents import ControlDocument, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.duty import LeaderMemory
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.state import (
    Departure,
    LeaderDuty,
    Me,
    OwnLease,
    OwnRun,
    RoundWork,
    SeenStore,
    State,
    StoreConnection,
    Trouble,
    Want,
)
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Renewal, Revisions, Seat, Topic, Watched

ME = Me(node="n1", incarnation="n1#1", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=1, max_nodes=4)
CONTROL = ControlDocument(epoch="e", attempt="0", secret="s", fingerprint={})
ROUND = RoundDocument(
    epoch="e",
    token=1,
    nonce="a",
    index=0,
    lease_s=6.0,
    grace_s=120.0,
    master_addr="h",
    master_port=1,
    roster=tuple(RosterEntry(f"{name}#1", name, "h", 1) for name in ("n1", "n2")),
)
SINCE = Revisions(birth="b", round=1, control=1)
RUNS = State(
    me=replace(ME, ttl_s=6.0),
    want=Want.RUN,
    mine=ROUND,
    run=OwnRun(epoch="e", kept_control=CONTROL, kept_round=ROUND, seen_token=1),
    seen=SeenStore(control=CONTROL, round=ROUND, since=SINCE, live=2, fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
    connection=StoreConnection(connected=True, ever_connected=True, address="10.0.0.1", agent_port=9),
    lease=OwnLease(
        seat=Seat(number=3, incarnation="n1#1", ahead=4), ahead=4, confirmed_s=100.0, length_s=6.0, renew_s=102.0
    ),
)


def watched(*changed, revisions=SINCE, reset=False):
    return protocol.WatchEnded(watched=Watched(revisions=revisions, changed=frozenset(changed), reset=reset))


@pytest.fixture
def announced(monkeypatch):
    """Count how often all announcements were derived."""
    calls, announce = [], machine.announce
    monkeypatch.setattr(machine, "announce", lambda state, now_s: (calls.append(now_s), announce(state, now_s))[1])
    return calls


@pytest.fixture
def settled():
    """Return a member that has nothing to do but to watch."""
    done = step(RUNS, (protocol.WatchEnded(watched=None),), now_s=100.1)
    while isinstance(done.operation, protocol.Update):
        updated = protocol.Updated(record=done.operation.record, kept=True)
        done = step(done.state, (updated,), now_s=100.1)
    assert isinstance(done.operation, protocol.Watch)
    assert done.operation.until_s == 102.0
    return done.state


def renewed(*, live=2, sent_s=102.01, **renewal):
    renewal = Renewal(ahead=4, live=live, next_expiry_s=5.0, **renewal)
    return protocol.Renewed(renewal=renewal, sent_s=sent_s, ttl_s=6.0)


def test_a_renewal_without_a_change_runs_no_rules(settled, announced):
    due = step(settled, (watched(),), now_s=102.01)
    assert (due.operation, due.announcements, due.state) == (
        protocol.Renew(seat=RUNS.lease.seat, ttl_s=6.0),
        (),
        settled,
    )
    done = step(due.state, (renewed(),), now_s=102.02)
    assert (done.operation.until_s, done.state.lease.renew_s, done.state.cut_s) == (104.01, 104.01, 106.51)
    assert announced == []


@pytest.mark.parametrize("event", [watched(), renewed()])
def test_they_are_the_steps_that_all_rules_would_take(settled, monkeypatch, event):
    quick = step(settled, (event,), now_s=102.02)
    monkeypatch.setattr(machine, "_quick_step", lambda *_: None)
    full = step(settled, (event,), now_s=102.02)
    assert replace(full, state=replace(full.state, settled=True)) == quick


def test_after_a_change_all_rules_run_until_they_change_nothing(settled, announced):
    more = step(settled, (renewed(live=3),), now_s=102.02)
    assert announced == [102.02]
    assert step(more.state, (renewed(live=3, sent_s=104.01),), now_s=104.02).operation.until_s == 106.01
    assert announced == [102.02]
    step(more.state, (watched(), m.ReportFinishing()), now_s=104.0)
    assert announced == [102.02, 104.0]


@pytest.mark.parametrize(
    ("events", "now_s", "changes"),
    [
        ((watched(),), 101.9, {}),  # not due yet
        ((watched(),), 104.5, {}),  # so late that the workers must be stopped
        ((watched(Topic.ROUND, revisions=Revisions(birth="b", round=2, control=1)),), 102.01, {}),
        ((watched(revisions=Revisions(birth="c"), reset=True),), 102.01, {}),
        ((watched(), protocol.WatchEnded(watched=None)), 102.01, {}),
        ((protocol.WatchEnded(watched=None),), 102.01, {}),
        ((watched(),), 102.01, {"want": Want.LEAVE}),
        ((watched(),), 102.01, {"trouble": Trouble(since_s=101.0, retry_s=101.5)}),
        ((watched(),), 102.01, {"lease": OwnLease()}),
        ((renewed(), renewed()), 102.02, {}),
        ((renewed(live=3),), 102.02, {}),
        ((protocol.Renewed(renewal=None, sent_s=102.01, ttl_s=6.0),), 102.02, {}),
        ((renewed(),), 102.02, {"settled": False}),
        ((renewed(),), 102.02, {"duty": LeaderDuty(look_s=102.0)}),  # a duty is due
        ((renewed(),), 102.02, {"duty": LeaderDuty(look_s=104.0)}),  # or will be before the next renewal
    ],
)
def test_all_rules_run_after_anything_else(settled, announced, events, now_s, changes):
    step(replace(settled, **changes), events, now_s=now_s)
    assert announced == [now_s]


@pytest.mark.parametrize(
    "changes",
    [
        {"want": Want.JOIN},
        {"trouble": Trouble(since_s=101.0, retry_s=101.5)},
        {"work": RoundWork(wanted={"topic": 5.0})},
        {"work": RoundWork(asked=2, concluded=1)},
        {"lease": replace(RUNS.lease, repeat_s=110.0)},
        {"duty": LeaderDuty(memory=LeaderMemory(losses_from_s=110.0))},
        {"departure": Departure(parting=True, leave_s=101.9)},
    ],
)
def test_rules_with_times_that_end_no_watch_run_after_each_renewal(settled, changes):
    state = replace(settled, settled=False, **changes)
    assert not machine._has_no_timers(state, 102.0)
    assert machine._has_no_timers(settled, 102.0)
