"""The policy passes the kit, is found by its name, and its properties hold for any rules and failures."""

import dataclasses
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.api import ConfigError, Failure, FailureClass, Ignore, PolicySettings, Restart, Stop
from elastic_plugin_kit import FailureHandlerConformance
from elastic_policy_rules.book import Backoff, Blame, Match, Rule, RuleBook
from elastic_policy_rules.engine import Engine
from elastic_policy_rules.matching import mismatch
from elastic_policy_rules.policy import Rules
from elastic_policy_rules.reader import read_file

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples" / "policies").glob("*.yaml"))

EVERYTHING = """
rules:
  - {name: nan, match: {message: "(?i)nan"}, action: fail}
  - {name: spot, match: {class: preempted}, action: restart, max: 3, per: 1h, backoff: {base: 1s, jitter: 0.5}}
  - {name: same, match: {repeats: 4}, action: done}
  - {name: lost, match: {class: [node lost, hang]}, action: restart, exclude: node, max: 2, exhausted: next}
  - {name: full, match: {message: No space}, action: wait, delay: 5m, max: 2, exhausted: ignore}
  - {name: rank, match: {rank: 3}, action: ignore, max: 2}
"""


def policy_of(tmp_path, text, **given):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return Rules(PolicySettings(name="rules", options={"file": str(path)}, **given))


class TestRules(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self, tmp_path):
        return lambda max_restarts: policy_of(tmp_path, EVERYTHING, max_restarts=max_restarts, run_id="run")


class TestOneRule(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self, tmp_path):
        text = "rules: [{{action: restart, max: {}, backoff: {{base: 1s, jitter: 1}}}}]"
        return lambda max_restarts: policy_of(tmp_path, text.format(min(max_restarts, 50)), min_nodes=2, max_nodes=4)


def test_a_file_with_problems_makes_no_policy(tmp_path):
    with pytest.raises(ConfigError, match=r"rules.yaml:1:18: action: 'strat'; expected .* Try: restart$"):
        policy_of(tmp_path, "rules: [{action: strat}]")


def test_the_policy_says_why(tmp_path):
    policy = policy_of(tmp_path, "rules: [{action: fail}]")
    failure = Failure(
        failure_class=FailureClass.EXIT, summary="exit code 1", node_id="n", round_index=0, at_s=1, uptime_s=1
    )
    assert policy.explain(failure, ()) == ("rule 'rule 1' (line 1) matches",)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_have_no_problems(path):
    assert read_file(str(path)).rules


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {"spot-instances", "flaky-node", "nan-loss", "cuda-nccl"}


# --- properties

names = st.sampled_from("abcdefg")
seconds = st.floats(0.001, 1e5)
matches = st.builds(
    Match,
    classes=st.frozensets(st.sampled_from(FailureClass), max_size=3),
    exit_codes=st.lists(st.tuples(st.integers(0, 3), st.integers(3, 255)), max_size=1).map(tuple),
    signals=st.frozensets(st.integers(1, 15), max_size=2),
    ranks=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4)), max_size=1).map(tuple),
    under_s=st.none() | seconds,
    repeats=st.none() | st.integers(2, 5),
)
backoffs = st.builds(
    Backoff,
    base_s=st.floats(0, 1e6),
    factor=st.floats(1, 100),
    cap_s=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
rules = st.builds(
    Rule,
    name=names,
    line=st.just(1),
    action=st.sampled_from(["restart", "restart", "wait", "ignore", "fail", "done"]),
    match=st.just(Match()) | matches,
    max_count=st.none() | st.integers(0, 4),
    per_s=st.none() | seconds,
    backoff=st.none() | backoffs,
    reset_after_s=st.none() | seconds,
    delay_s=seconds,
    exhausted=st.sampled_from(["fail", "done", "ignore", "next"]),
    exclude=st.booleans(),
    blame=st.none() | st.booleans(),
)
blames = st.none() | st.builds(
    Blame,
    times=st.integers(1, 3),
    within_s=seconds,
    exclude_for_s=seconds,
    factor=st.floats(1, 100),
    cap_s=seconds,
    classes=st.frozensets(st.sampled_from(FailureClass)),
)
books = st.builds(
    RuleBook,
    rules=st.lists(rules, min_size=1, max_size=5, unique_by=lambda rule: rule.name).map(tuple),
    otherwise=st.sampled_from(["intensity", "fail"]),
    blame=blames,
)
policies = st.builds(
    PolicySettings,
    name=st.just("rules"),
    max_restarts=st.integers(0, 3),
    restart_window_s=st.none() | seconds,
    fatal_exit_codes=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    run_id=st.text(max_size=3),
    min_nodes=st.integers(1, 4),
    max_nodes=st.just(8),
)


def failures(numbers):
    return st.builds(
        Failure,
        failure_class=st.sampled_from(FailureClass),
        summary=st.text(max_size=5),
        node_id=st.sampled_from(["", "n0", "n1", "n2", "n3"]),
        round_index=st.integers(-1, 5),
        at_s=numbers,
        uptime_s=numbers,
        exit_code=st.integers(-5, 300),
        global_rank=st.none() | st.integers(0, 5),
        local_rank=st.none() | st.integers(0, 5),
        exception_type=st.sampled_from(["", "ValueError", "torch.cuda.OutOfMemoryError", "é\udcff"]),
        message=st.text(max_size=5),
        retryable=st.booleans(),
        signal=st.none() | st.integers(1, 64),
        log_tail=st.text(max_size=5),
        fingerprint=st.sampled_from(["", "a", "b"]),
        progress=st.none() | st.integers(0, 3),
        node_count=st.none() | st.integers(0, 6),
    )


def played(engine, run):
    """Yield each failure with what was decided before and about it; a decision to stop does not end it here."""
    history = []
    for failure in run:
        verdict = engine.judge(failure, tuple(history))
        yield failure, tuple(history), verdict
        history.append(msgspec.structs.replace(failure, decision=verdict.decision))


runs = st.lists(failures(st.floats(0, 1e4)), min_size=1, max_size=8)


def in_time(run):
    times = sorted(failure.at_s for failure in run)
    return [msgspec.structs.replace(failure, at_s=at_s) for failure, at_s in zip(run, times, strict=True)]


@given(books, policies, st.lists(failures(st.floats()), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_any_failure_is_decided_in_a_way_that_can_be_followed(book, given_settings, run):
    for _, _, verdict in played(Engine(book, given_settings), run):
        match verdict.decision:
            case Restart(delay_s=delay_s, exclude_nodes=nodes, exclude_s=times):
                assert all(math.isfinite(time_s) and time_s >= 0 for time_s in (delay_s, *times))
                assert len(times) == len(nodes)
                assert len(set(nodes)) == len(nodes)
                assert "" not in nodes
            case Stop(reason=reason, outcome=outcome):
                assert reason.strip()
                assert "\n" not in reason
                assert outcome in ("failed", "done")
            case decision:
                assert isinstance(decision, Ignore)
        assert verdict.why


@given(books, policies, runs)
@settings(max_examples=50, deadline=None)
def test_the_first_rule_that_matches_and_has_budget_decides(book, given_settings, run):
    by_name = {rule.name: index for index, rule in enumerate(book.rules)}
    for failure, history, verdict in played(Engine(book, given_settings), in_time(run)):
        chosen = by_name.get(verdict.decision.rule, len(book.rules))
        for rule in book.rules[:chosen]:
            unlike = mismatch(rule, failure, history, given_settings.fatal_exit_codes)
            assert unlike or rule.exhausted in ("next", "ignore")
        if chosen < len(book.rules):
            assert not mismatch(book.rules[chosen], failure, history, given_settings.fatal_exit_codes)


@given(books, policies, runs)
@settings(max_examples=70, deadline=None)
def test_no_rule_restarts_more_often_than_it_may_within_its_window(book, given_settings, run):
    # What heals resets the count on purpose: see the table of the engine's tests.
    unforgiving = tuple(dataclasses.replace(rule, reset_after_s=None) for rule in book.rules)
    book = dataclasses.replace(book, rules=unforgiving)
    decided = [(f.at_s, v.decision) for f, _, v in played(Engine(book, given_settings), in_time(run))]
    for rule in book.rules:
        wanted = Ignore if rule.action == "ignore" else Restart
        times = [at_s for at_s, d in decided if isinstance(d, wanted) and d.rule == rule.name]
        if rule.max_count is None or rule.exhausted == "ignore":
            continue
        for end_s in times:
            within = [t for t in times if t <= end_s and (rule.per_s is None or end_s - t < rule.per_s)]
            assert len(within) <= rule.max_count


@given(books, policies, runs)
@settings(max_examples=40, deadline=None)
def test_the_same_question_has_the_same_answer(book, given_settings, run):
    first = [verdict for _, _, verdict in played(Engine(book, given_settings), run)]
    assert [verdict for _, _, verdict in played(Engine(book, given_settings), run)] == first


@given(books, policies, st.data())
@settings(max_examples=70, deadline=None)
def test_excluded_nodes_never_bring_the_run_below_its_fewest(book, given_settings, data):
    """A run of as many nodes as are there: each round has all that are neither gone nor left out."""
    everybody = {f"n{number}" for number in range(data.draw(st.integers(given_settings.min_nodes, 6), label="nodes"))}
    there, history, at_s = set(everybody), [], 0.0
    engine = Engine(book, given_settings)
    for _ in range(10):
        at_s += data.draw(st.floats(0.1, 1e3), label="later")
        failure = msgspec.structs.replace(
            data.draw(failures(st.floats(0, 100))),
            at_s=at_s, node_id=data.draw(st.sampled_from(sorted(there))), node_count=len(there),
        )  # fmt: skip
        decision = engine.judge(failure, tuple(history)).decision
        history.append(msgspec.structs.replace(failure, decision=decision))
        if isinstance(decision, Stop):
            return
        if isinstance(decision, Restart):
            if failure.failure_class in (FailureClass.NODE_LOST, FailureClass.PREEMPTED):
                everybody -= {failure.node_id}
            next_round = everybody - set(decision.exclude_nodes)
            assert len(next_round) >= min(given_settings.min_nodes, len(everybody))
            if len(next_round) < given_settings.min_nodes:
                return  # too few are left of all there were
            there = next_round
