"""The built-in policy: so many restarts, sooner or later, and some never."""

from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.errors import ConfigError
from elastic_core.failure.intensity import Intensity
from elastic_core.history import cost_a_restart, remembered
from elastic_core.rendezvous.member.documents import ControlDocument, Ending, decode, encode
from elastic_core.types import Failure, FailureClass, Ignore, PolicySettings, Restart, Stop


def policy(**settings):
    return Intensity(PolicySettings(name="intensity", **settings))


def failure(**changes):
    base = {
        "failure_class": FailureClass.EXIT,
        "summary": "exit code 1",
        "node_id": "n0",
        "round_index": 0,
        "at_s": 0.0,
        "uptime_s": 1.0,
    }
    return Failure(**(base | changes))


def run(handler, failures):
    """Have failures decided in turn, each with the history that the earlier ones left."""
    history, decisions = [], []
    for one in failures:
        decision = handler.decide(one, tuple(history))
        decisions.append(decision)
        history.append(msgspec.structs.replace(one, decision=decision))
    return decisions


def test_no_restarts_by_default():
    assert policy().decide(failure(), ()) == Stop(
        reason="no restarts are allowed (--max-restarts 0)", rule="max-restarts"
    )


def test_budget_and_the_failure_after_it():
    *restarts, last = run(policy(max_restarts=2), [failure(round_index=i) for i in range(3)])
    assert all(isinstance(decision, Restart) for decision in restarts)
    assert last == Stop(reason="restart budget of 2 used up", rule="max-restarts")


def test_backoff_doubles_to_its_cap():
    decisions = run(policy(max_restarts=12), [failure() for _ in range(10)])
    assert [d.delay_s for d in decisions] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_long_uptime_begins_the_pauses_anew():
    uptimes = [1, 1, 1, 60, 61, 1, 1, 500, 500, 1]
    decisions = run(policy(max_restarts=20), [failure(uptime_s=float(u)) for u in uptimes])
    assert [d.delay_s for d in decisions] == [0.0, 0.5, 1.0, 2.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(("base", "expected"), [(0.0, [0, 0, 0]), (10.0, [0, 10, 20]), (45.0, [0, 45, 45])])
def test_backoff_base(base, expected):
    decisions = run(policy(max_restarts=5, restart_backoff_s=base), [failure()] * 3)
    assert [d.delay_s for d in decisions] == expected


def test_thousands_of_restarts_overflow_nothing():
    past = failure(decision=Restart())
    assert policy(max_restarts=10_000).decide(failure(), [past] * 5_000).delay_s == 30.0


def test_window_forgets_old_restarts():
    times = [0.0, 10.0, 20.0, 105.0, 111.0, 112.0]
    handler = policy(max_restarts=2, restart_window_s=100.0)
    decisions = run(handler, [failure(at_s=t) for t in times[:2]])
    assert all(isinstance(d, Restart) for d in decisions)
    stop = run(handler, [failure(at_s=t) for t in times[:3]])[-1]
    assert stop == Stop(reason="restart budget of 2 within 100 s used up", rule="max-restarts")
    assert isinstance(run(handler, [failure(at_s=t) for t in (0.0, 10.0, 105.0)])[-1], Restart)
    assert isinstance(run(handler, [failure(at_s=t) for t in (0.0, 10.0, 100.0)])[-1], Restart)
    assert isinstance(run(handler, [failure(at_s=t) for t in (0.0, 10.0, 105.0, 106.0)])[-1], Stop)


def test_fatal_exit_code_is_not_retried():
    handler = policy(max_restarts=3, fatal_exit_codes=(3, 139))
    assert handler.decide(failure(exit_code=3), ()) == Stop(
        reason="exit code 3 is fatal (--fatal-exit-codes)", rule="fatal-exit-codes"
    )
    assert isinstance(handler.decide(failure(exit_code=139), ()), Stop)
    assert isinstance(handler.decide(failure(exit_code=4), ()), Restart)


def test_what_a_retry_cant_mend_is_not_retried():
    decision = policy(max_restarts=3).decide(failure(retryable=False, summary="SyntaxError: invalid syntax"), ())
    assert decision == Stop(reason="another try would fail in the same way", rule="not-retryable")


def test_preemption_and_ignored_failures_cost_nothing():
    free = [
        failure(failure_class=FailureClass.PREEMPTED, decision=Restart()),
        failure(decision=Ignore()),
        failure(failure_class=FailureClass.PREEMPTED, decision=Restart()),
    ]
    assert policy(max_restarts=1).decide(failure(), free) == Restart(rule="max-restarts")
    preempted = failure(failure_class=FailureClass.PREEMPTED)
    assert policy(max_restarts=0).decide(preempted, [failure(decision=Restart())] * 5) == Restart(rule="preempted")


def test_a_straggler_is_ignored_whatever_the_budget():
    slow = failure(failure_class=FailureClass.STRAGGLER, retryable=False)
    for restarts in (0, 3):
        assert policy(max_restarts=restarts).decide(slow, ()) == Ignore(rule="straggler")


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"max_restarts": -1}, "--max-restarts is -1"),
        ({"restart_window_s": 0.0}, "--restart-window is 0 s"),
        ({"same_failure_limit": 1}, "--same-failure-limit is 1"),
        ({"restart_backoff_s": -0.5}, "--restart-backoff is -0.5 s"),
        ({"restart_backoff_s": float("nan")}, "--restart-backoff is nan s"),
    ],
)
def test_settings_out_of_range_are_refused(settings, flag):
    with pytest.raises(ConfigError, match=flag):
        policy(**settings)


@given(st.integers(0, 6), st.lists(st.floats(0, 200), min_size=8, max_size=8))
def test_never_more_restarts_than_the_budget(budget, uptimes):
    decisions = run(policy(max_restarts=budget), [failure(uptime_s=u) for u in uptimes])
    restarts = [d for d in decisions if isinstance(d, Restart)]
    assert len(restarts) == budget
    assert all(0 <= d.delay_s <= 30 for d in restarts)
    assert all(isinstance(d, Stop) for d in decisions[budget:])


# --- failures that a restart can't mend


def raised(fingerprint="a", **changes):
    return failure(**({"exception_type": "ValueError", "fingerprint": fingerprint} | changes))


def test_the_same_exception_again_is_told_and_ends_the_run_at_its_limit():
    reasons = [decision.reason for decision in run(policy(max_restarts=9), [raised()] * 3 + [raised("b")])]
    assert reasons == ["", *(f"the same failure {n} times in a row, and no step between" for n in (2, 3)), ""]
    decisions = run(policy(max_restarts=9, same_failure_limit=3), [raised("b"), *[raised()] * 3])
    assert [type(decision) for decision in decisions] == [Restart, Restart, Restart, Stop]
    assert decisions[-1] == Stop(
        reason="the same failure 3 times in a row, and no step between (--same-failure-limit 3)",
        rule="same-failure-limit",
    )


@pytest.mark.parametrize(
    ("failures", "same"),
    [
        ([raised(progress=10), raised(progress=10)], True),  # as far as its checkpoint lets it, and the same batch
        ([raised(progress=10), raised(progress=4)], True),
        ([raised(progress=10), raised(progress=11)], False),
        ([raised(progress=10, uptime_s=999.0), raised(progress=10, uptime_s=999.0)], True),
        ([raised(progress=10), raised(progress=None)], True),  # at once, before any step
        ([raised(progress=10), raised(progress=None, uptime_s=61.0)], False),
        ([raised(uptime_s=999.0), raised(uptime_s=60.0)], True),
        ([raised(), raised(uptime_s=60.1)], False),
        ([raised(), raised("b"), raised()], False),
        ([failure(fingerprint="a"), failure(fingerprint="a")], False),  # killed twice: by whom, nobody knows
        ([raised(""), raised("")], False),
    ],
)
def test_what_is_the_same_failure_without_a_step(failures, same):
    last = run(policy(max_restarts=9, same_failure_limit=2), failures)[-1]
    assert isinstance(last, Stop) is same


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ([raised(membership_changes=1)], True),
        ([raised(membership_changes=0)], False),
        ([raised(membership_changes=None)], False),
        ([raised(membership_changes=1, uptime_s=61.0)], False),
        ([failure(membership_changes=1)], False),
        ([raised("b", membership_changes=1), raised(membership_changes=1)], False),
        ([raised("b", membership_changes=1), raised(membership_changes=2)], True),
    ],
)
def test_an_exception_at_once_after_nodes_came_or_went_is_told(failures, told):
    last = run(policy(max_restarts=9), failures)[-1]
    assert last.reason == ("at once after nodes had come or gone" if told else "")


KINDS = st.builds(
    raised,
    st.sampled_from("ab"),
    uptime_s=st.sampled_from([1.0, 100.0]),
    progress=st.sampled_from([None, 1, 2]),
    exception_type=st.sampled_from(["ValueError", ""]),
)


@given(st.lists(KINDS, min_size=1, max_size=12), st.integers(2, 5), st.integers(0, 12))
def test_the_limit_ends_no_run_that_the_budget_or_another_failure_would_not_let_go_on_alike(failures, limit, budget):
    plain = run(policy(max_restarts=budget), failures)
    limited = run(policy(max_restarts=budget, same_failure_limit=limit), failures)
    for at, (without, with_limit) in enumerate(zip(plain, limited, strict=True)):
        row = failures[max(0, at + 1 - limit) : at + 1]
        if isinstance(with_limit, Stop) and with_limit.rule == "same-failure-limit":
            assert len(row) == limit
            assert len({(one.exception_type, one.fingerprint) for one in row}) == 1
            return  # the run is over
        assert with_limit == without


# --- a bounded history


OUTCOMES = st.builds(
    lambda kind, gap_s, uptime_s, mark: {
        "failure_class": kind, "gap_s": gap_s, "uptime_s": uptime_s, "exception_type": mark, "fingerprint": mark,
    },
    st.sampled_from((FailureClass.EXIT, FailureClass.PREEMPTED)),
    st.sampled_from((0.0, 1.0, 40.0)),
    st.sampled_from((1.0, 90.0)),
    st.sampled_from(("", "a", "b")),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    outcomes=st.lists(OUTCOMES, min_size=1, max_size=60),
    budget=st.integers(0, 12),
    window_s=st.none() | st.sampled_from((5.0, 100.0)),
    limit=st.none() | st.integers(2, 6),
)
def test_a_bounded_history_decides_as_the_whole_one_does(outcomes, budget, window_s, limit):
    """As long as no more is asked for within a window than is kept; without a window, whatever is asked for."""
    handler = policy(max_restarts=budget, restart_window_s=window_s, same_failure_limit=limit)
    whole, document, at_s = [], ControlDocument(epoch="e", attempt=0, secret="s"), 0.0
    with mock.patch("elastic_core.history.HISTORY_LIMIT", 24):
        for number, outcome in enumerate(outcomes):
            outcome = dict(outcome)
            at_s += outcome.pop("gap_s")
            one = failure(at_s=at_s, round_index=number, **outcome)
            decided = handler.decide(one, tuple(whole))
            answer = handler.decide(one, document.history)
            if len(whole) <= 24 or sum(map(cost_a_restart, document.history)) >= 12:
                assert answer == decided
            elif window_s is None:  # of pauses after many preemptions in a row nothing is promised
                assert type(answer) is type(decided)
            decision = decided if isinstance(decided, Restart) else Restart(rule="asked")
            whole.append(msgspec.structs.replace(one, decision=decision))
            post = Ending(token=1, nonce="x", kind="restart", by="n", decision=decision, failure=one)
            document = decode(encode(document.after(post)), ControlDocument)


@pytest.mark.parametrize("budget", [65, 700])
def test_a_budget_above_what_is_kept_ends_when_it_should(budget):
    handler, history = policy(max_restarts=budget, restart_backoff_s=0.0), ()
    decisions = []
    while len(decisions) <= budget + 1:
        decisions.append(handler.decide(failure(at_s=float(len(decisions))), history))
        if isinstance(decisions[-1], Stop):
            break
        history = remembered(history, msgspec.structs.replace(failure(), decision=decisions[-1]))
    assert len(decisions) == budget + 1
    assert decisions[-1] == Stop(reason=f"restart budget of {budget} used up", rule="max-restarts")


@pytest.mark.parametrize("changes", [{"max_restarts": 65, "restart_window_s": 60.0}, {"same_failure_limit": 65}])
def test_what_can_not_be_counted_is_refused(changes):
    with pytest.raises(ConfigError, match="64 or less"):
        policy(**changes)
