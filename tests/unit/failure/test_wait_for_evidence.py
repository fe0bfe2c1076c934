"""How long other evidence may still change the first cause: a table, and what must hold for any evidence."""

import signal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elastic_core.failure.classify import ENDING_NS, LOST_PEER_S, SETTLE_S, STOP_S, judge, rank_causes, wait_s
from elastic_core.types import ErrorRecord, WorkerExit

AT_NS = 1_700_000_000_000_000_000
MS = 1_000_000
RECORD_S = ENDING_NS / 1e9
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def worker(rank=0, *, at_ms=0, code=1, kind="ValueError", timed=True, ended_ms=None, **end):
    """Return a failed worker; `kind` is the exception that it recorded, empty if it left no record."""
    ended_ms = at_ms if ended_ms is None else ended_ms
    exit = WorkerExit(
        local_rank=rank, global_rank=rank, pid=100 + rank, code=code, at_s=5.0 + ended_ms / 1e3,
        at_ns=AT_NS + ended_ms * MS, runtime_s=9.0, **end,
    )  # fmt: skip
    if not kind:
        return judge(exit, None)
    source = "hook" if timed else "stderr"
    return judge(exit, ErrorRecord(source=source, type=kind, message="", timestamp_ns=AT_NS + at_ms * MS))


RAISED, RESET = worker(0, ended_ms=30), worker(0, kind="ConnectionResetError", ended_ms=30)
CODE, KILLED = worker(0, kind=""), worker(0, kind="", code=-9)


@pytest.mark.parametrize(
    ("known", "begun_ms", "expected_s"),
    [
        ([RAISED], (), 0.0),
        ([RAISED], (1,), 0.0),  # begun later: the recorded one stays the first
        ([RAISED], (5, 20), 0.0),
        ([RAISED], (0,), RECORD_S),
        ([RAISED], (-1,), RECORD_S),
        ([RAISED], (5, -1), RECORD_S),
        ([worker(0, ended_ms=700)], (), 0.0),  # however long its interpreter took to end
        ([RESET], (), SETTLE_S),
        ([RESET], (99,), RECORD_S),  # it may be the cause
        ([RESET], (101,), SETTLE_S),
        ([RESET, worker(1, at_ms=5)], (), 0.0),  # the cause is known
        ([RESET, worker(1, at_ms=5)], (7,), 0.0),
        ([RESET, worker(1, at_ms=5)], (3,), RECORD_S),
        ([RESET, worker(1, at_ms=500, kind="")], (), SETTLE_S),
        ([RESET, worker(1, at_ms=5, kind="BrokenPipeError")], (), SETTLE_S),
        ([worker(0, timed=False)], (), SETTLE_S),  # only the end of its stderr
        ([CODE], (), SETTLE_S),
        ([CODE], (-1,), RECORD_S),
        ([CODE, worker(1, at_ms=-9)], (), 0.0),
        ([worker(0, kind="SystemExit", code=3)], (), 0.0),  # a code with its reason
        ([KILLED], (), 0.0),
        ([KILLED], (-1,), 0.0),
        ([worker(0, code=-6, kind="")], (), 0.0),
        ([worker(0, code=137, kind="")], (), SETTLE_S),
    ],
)
def test_the_wait_ends_where_no_other_worker_can_have_failed_before(known, begun_ms, expected_s):
    begun_ns = [AT_NS + at_ms * MS for at_ms in begun_ms]
    assert wait_s(known, begun_ns=begun_ns, others=True, stop_signals=STOP_SIGNALS) == expected_s


@pytest.mark.parametrize("known", [[RAISED], [RESET], [CODE], [KILLED]])
def test_nothing_is_waited_for_where_all_workers_are_known(known):
    assert wait_s(known) == 0.0


@pytest.mark.parametrize(("others", "expected_s"), [(False, LOST_PEER_S), (True, LOST_PEER_S + SETTLE_S)])
def test_a_lost_peer_may_be_on_another_node(others, expected_s):
    assert wait_s([RESET], others=others, peers=True) == expected_s
    assert wait_s([RAISED], others=others, peers=True) == 0.0


@pytest.mark.parametrize("code", [-15, 143, -2, 130, -1, 131])
def test_a_stop_signal_from_outside_may_be_the_stop_of_the_node(code):
    stopped = worker(0, code=code, kind="")
    assert wait_s([stopped], stop_signals=STOP_SIGNALS) == STOP_S
    assert wait_s([stopped, worker(1, at_ms=20, code=-2, kind="")], stop_signals=STOP_SIGNALS) == STOP_S


def test_the_time_for_a_stop_signal_counts_from_the_first_death_by_one():
    found = wait_s([CODE, worker(1, at_ms=40, code=-15, kind="")], others=True, stop_signals=STOP_SIGNALS)
    assert found == pytest.approx(STOP_S + 0.04)
    known = [RAISED, worker(1, at_ms=60, code=143, kind=""), worker(2, at_ms=90, code=-2, kind="")]
    assert wait_s(known, stop_signals=STOP_SIGNALS) == pytest.approx(STOP_S + 0.03)


@pytest.mark.parametrize("code", [-9, -11, -10, 137, 15, 1])
def test_other_deaths_do_not_wait_for_a_stop_signal(code):
    assert wait_s([worker(0, code=code, kind="")], others=True, stop_signals=STOP_SIGNALS) < STOP_S


def test_a_worker_that_the_agent_has_signalled_does_not_wait_for_a_stop_signal():
    ours = worker(0, code=-15, kind="", stop_signal=15, stop_sent_ns=1)
    assert wait_s([ours], others=True, stop_signals=STOP_SIGNALS) == 0.0


@st.composite
def moments(draw):
    """Return what is known at a moment, and what is not: of the unknown failures, some have begun to be recorded.

    A failure begins to be recorded before its time is taken; without a record, its time is that of the worker's end.
    """
    kinds = st.sampled_from(["ValueError", "ConnectionResetError", "SystemExit", ""])
    now_ms = draw(st.integers(0, 400))
    known, unknown, begun_ns = [], [], []
    for rank in range(draw(st.integers(1, 5))):
        kind, at_ms = draw(kinds), draw(st.integers(0, 400))
        begun_ms = at_ms - draw(st.integers(0, 3))
        if at_ms <= now_ms and draw(st.booleans()):
            known.append(worker(rank, at_ms=at_ms, kind=kind))
        elif kind:
            unknown.append(worker(rank, at_ms=at_ms, kind=kind, ended_ms=max(at_ms, now_ms)))
            begun_ns += [AT_NS + begun_ms * MS] * (begun_ms <= now_ms)
        else:
            unknown.append(worker(rank, at_ms=max(at_ms, now_ms), kind=kind))
    assume(known)
    return known, unknown, begun_ns


@given(moments())
def test_where_nothing_is_waited_for_no_other_evidence_would_have_changed_the_first_cause(moment):
    known, unknown, begun_ns = moment
    if wait_s(known, begun_ns=begun_ns, others=bool(unknown)) == 0.0:
        assert rank_causes([*known, *unknown])[0] == rank_causes(known)[0]


@given(moments())
def test_nothing_is_waited_for_where_all_is_known_and_never_longer_than_a_second(moment):
    known, unknown, begun_ns = moment
    before_s = wait_s(known, begun_ns=begun_ns, others=bool(unknown))
    assert wait_s([*known, *unknown], others=False) == 0.0
    assert 0.0 <= before_s <= RECORD_S
