"""Whatever the ledgers have: each lane is gapless, and the account is the sum of all lanes."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic_report.combining.combine import combine
from elastic_report.combining.evidence import AgentEvidence, RunEvidence
from elastic_report.ledger.document import Hung, Ledger, Sum
from elastic_report.ledger.states import LedgerState as S
from run_kit import EPOCH_NS, Node

STATES = st.sampled_from([state for state in S if state is not S.QUEUED])
SECONDS = st.floats(0, 5000, allow_nan=False, width=32)


@st.composite
def agents(draw: st.DrawFn) -> AgentEvidence:
    """One agent, with a ledger that may be torn, summed up, corrected, without an end, or missing."""
    names = ("a", "b", "c")
    node = Node(
        draw(st.sampled_from(names)),
        started_s=draw(SECONDS),
        ahead_s=draw(st.sampled_from([0.0, 1.0, -3600.0, 86_400.0])),
        uptime_s=draw(SECONDS),
        queued_s=draw(st.none() | st.floats(-5000, 0)),
        boot_id=draw(st.sampled_from(["", "boot-1"])),
    )
    rank = names.index(node.node_id)
    if draw(st.booleans()):
        node.lines.append(
            Sum(
                begin_s=node.at_s + node.uptime_s,
                end_s=node.at_s + node.uptime_s + 100,
                states=draw(st.dictionaries(STATES, st.floats(0, 100), max_size=3)),
                rounds=3,
            )
        )
        node.at_s += 100
    for index in range(draw(st.integers(0, 4))):
        for state, seconds in draw(st.lists(st.tuples(STATES, SECONDS), max_size=4)):
            node.spend(state, seconds)
        node.join(index, rank, draw(st.sampled_from([names, names[:2], ()])), count=3)
        for state, seconds in draw(st.lists(st.tuples(STATES, SECONDS), max_size=4)):
            node.spend(state, seconds)
        node.worker(min(10.0, node.at_s - node.started_s), code=draw(st.sampled_from([0, 1, -9, None])))
        if draw(st.booleans()):
            node.fail(f"ValueError: {index}")
        node.over(
            draw(st.sampled_from(["failure", "membership", "end"])), lost=draw(st.sampled_from([(), ("b",), ("c",)]))
        )
        if draw(st.booleans()):
            node.note("lost", "lost", node="c")
    if draw(st.booleans()):
        low_s = node.started_s + node.uptime_s
        node.lines.append(Hung(begin_s=low_s + draw(SECONDS), end_s=low_s + draw(SECONDS)))
    if draw(st.booleans()):
        node.end(draw(st.sampled_from(["succeeded", "failed", "stopped"])))
    found = node.found(with_ledger=draw(st.integers(0, 5)) > 0, alive=draw(st.booleans()), current=draw(st.booleans()))
    if found.ledger is not None and draw(st.booleans()):  # some lines are lost
        kept = tuple(line for line in found.ledger.lines if draw(st.integers(0, 4)))
        found = replace(found, ledger=Ledger(begin=found.ledger.begin, lines=kept, torn=1))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(agents(), max_size=6), st.floats(0, 30_000))
def test_seconds_are_neither_lost_nor_counted_twice(found: list[AgentEvidence], now_s: float) -> None:
    now_ns = EPOCH_NS + round(now_s * 1e9)
    report = combine(RunEvidence(run_id="bert-7", now_ns=now_ns, source="here", agents=tuple(found)))
    for lane in report.nodes:
        if lane.begin_s == lane.end_s:
            continue
        assert lane.spans
        assert lane.spans[0].begin_s == pytest.approx(lane.begin_s, abs=1e-6)
        assert lane.spans[-1].end_s == pytest.approx(lane.end_s, abs=1e-6)
        assert all(one.end_s == pytest.approx(two.begin_s, abs=1e-6) for one, two in pairwise(lane.spans))
        assert all(span.begin_s <= span.end_s for span in lane.spans)
        assert sum(lane.states.values()) == pytest.approx(lane.end_s - lane.begin_s, abs=1)
    account = report.account
    assert sum(account.states.values()) == pytest.approx(account.present_s, abs=1e-6)
    assert account.present_s == pytest.approx(sum(lane.end_s - lane.begin_s for lane in report.nodes), abs=1)
    for ratio in (account.goodput, account.goodput_nvidia):
        assert ratio is None or 0 <= ratio.low <= ratio.high <= 1
    assert all(one.at_s <= two.at_s for one, two in pairwise(report.events))
    for row in report.incidents:
        assert row.lost_s <= account.present_s + 1
        assert row.recover_s is None or row.recover_s >= 0
    assert all(row.end_s is None or row.end_s >= row.begin_s for row in report.rounds)
