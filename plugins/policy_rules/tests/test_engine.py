"""What follows which failure: tables of rules, failures and decisions."""

import time

import msgspec
import pytest

from elastic_core.api import DeviceFault, Failure, FailureClass, Ignore, PolicySettings, Restart, Stop
from elastic_core.history import remembered
from elastic_policy_rules.engine import Engine
from elastic_policy_rules.reader import read
from patience import kept


def engine(text, **settings):
    return Engine(read(text.encode(), "r.yaml"), PolicySettings(name="rules", **settings))


def failure(**given):
    base = {
        "failure_class": FailureClass.USER_EXCEPTION,
        "summary": "ValueError: boom",
        "node_id": "n0",
        "round_index": 0,
        "at_s": 100.0,
        "uptime_s": 10.0,
        "global_rank": 1,
        "local_rank": 1,
        "exception_type": "ValueError",
        "message": "boom",
        "node_count": 1,
    }
    return Failure(**(base | given))


LOST = {
    "failure_class": FailureClass.NODE_LOST,
    "summary": "node n0 is lost",
    "global_rank": None,
    "local_rank": None,
    "exception_type": "",
    "message": "",
}
KILLED = {
    "failure_class": FailureClass.SIGNAL,
    "summary": "killed by SIGKILL (9)",
    "exit_code": 137,
    "signal": 9,
    "exception_type": "",
    "message": "",
}


def play(policy, *failures):
    """Return the decisions about failures that follow one another."""
    history, decisions = [], []
    for one in failures:
        decision = policy.judge(one, tuple(history)).decision
        decisions.append(decision)
        history.append(msgspec.structs.replace(one, decision=decision))
    return decisions


def row(policy, count, *, every_s=10.0, **given):
    """Return what is decided about the same failure again and again."""
    given.setdefault("uptime_s", every_s)
    return play(policy, *(failure(at_s=every_s * n, round_index=n, **given) for n in range(1, count + 1)))


# --- matching


@pytest.mark.parametrize(
    ("match", "given", "matches"),
    [
        ("{}", {}, True),
        ("{class: user exception}", {}, True),
        ("{class: [hang, user-exception]}", {}, True),
        ("{class: hang}", {}, False),
        ("{exception: ValueError}", {}, True),
        ("{exception: Value*}", {}, True),
        ("{exception: valueerror}", {}, False),
        ("{exception: OutOfMemoryError}", {"exception_type": "torch.cuda.OutOfMemoryError"}, True),
        ("{exception: torch.*}", {"exception_type": "torch.cuda.OutOfMemoryError"}, True),
        ("{exception: torch.OutOfMemoryError}", {"exception_type": "torch.cuda.OutOfMemoryError"}, False),
        ("{exception: '*'}", {"exception_type": ""}, False),
        ("{message: bo+m}", {}, True),
        ("{message: '^boom$'}", {}, True),
        ("{message: '^ValueError: '}", {}, True),  # the summary
        ("{message: BOOM}", {}, False),
        ("{message: '(?i)BOOM'}", {}, True),
        ("{message: [x, boom]}", {}, True),
        ("{message: 'a.b'}", {"message": "a\nb"}, False),
        ("{message: '(?s)a.b'}", {"message": "a\nb"}, True),
        ("{message: '(?m)^b$'}", {"message": "a\nb\nc"}, True),
        ("{message: 'é+'}", {"message": "caf\u00e9 \udcff"}, True),
        ("{log: NCCL WARN}", {"log_tail": "x\nNCCL WARN y"}, True),
        ("{log: NCCL WARN}", {}, False),
        ("{exit_code: 1}", {}, True),
        ("{exit_code: [2, 64-78]}", {"exit_code": 70}, True),
        ("{exit_code: [2, 64-78]}", {"exit_code": 79}, False),
        ("{exit_code: 1}", LOST, False),
        ("{signal: KILL}", KILLED, True),
        ("{signal: [TERM, 9]}", KILLED, True),
        ("{signal: TERM}", KILLED, False),
        ("{signal: KILL}", {}, False),
        ("{exit_code: 137}", KILLED, True),
        ("{class: device}", {"failure_class": FailureClass.DEVICE}, True),
        ("{class: device}", {"failure_class": FailureClass.OOM_DEVICE}, True),
        ("{class: out of memory on device}", {"failure_class": FailureClass.DEVICE}, False),
        ("{class: device}", {}, False),
        ("{device: ecc}", {"device_fault": DeviceFault.ECC}, True),
        ("{device: [lost, out-of-memory]}", {"device_fault": DeviceFault.OUT_OF_MEMORY}, True),
        ("{device: ecc}", {"device_fault": DeviceFault.ASSERT}, False),
        ("{device: ecc}", {}, False),
        ("{message: 'from KeyError'}", {"message": "incomplete\na note\nfrom KeyError: 'lr'"}, True),
        ("{rank: 0-3}", {}, True),
        ("{rank: [0, 2-3]}", {}, False),
        ("{rank: 0-3}", LOST, False),
        ("{node: n*}", {}, True),
        ("{node: '*@10.0.3.*'}", {"node_id": "gpu-1@10.0.3.7"}, True),
        ("{node: 'm?'}", {}, False),
        ("{uptime: {under: 10.1}}", {}, True),
        ("{uptime: {under: 10}}", {}, False),
        ("{uptime: {over: 10}}", {}, True),
        ("{uptime: {over: 5s, under: 8s}}", {}, False),
        ("{class: user exception, exception: ValueError, message: boom, exit_code: 1, rank: 1}", {}, True),
        ("{class: user exception, exception: ValueError, message: boom, exit_code: 1, rank: 2}", {}, False),
    ],
)
def test_what_a_rule_matches(match, given, matches):
    otherwise = "otherwise: fail\n" if match != "{}" else ""
    verdict = engine(f"{otherwise}rules: [{{match: {match}, action: done}}]").judge(failure(**given), ())
    assert verdict.decision.outcome == ("done" if matches else "failed")
    assert verdict.why[0].startswith("rule 'rule 1' (line ")


def test_the_first_match_wins():
    policy = engine("""
rules:
  - {name: a, match: {rank: 0}, action: fail}
  - {name: b, match: {class: user exception}, action: done}
  - {name: c, match: {exception: ValueError}, action: ignore}
""")
    assert policy.judge(failure(), ()).decision == Stop(reason="rule 'b'", outcome="done", rule="b")
    assert policy.judge(failure(global_rank=0), ()).decision == Stop(reason="rule 'a'", rule="a")


def test_repeats_count_the_same_failure_until_the_run_gets_on():
    policy = engine("""
rules:
  - {name: same, match: {repeats: 3}, action: fail, reason: again}
  - {name: go, action: restart, max: unlimited, backoff: off}
""")

    def outcome(*progress, marks="aaaaaa"):
        pairs = enumerate(zip(progress, marks, strict=False))
        failures = [failure(at_s=n, fingerprint=mark, progress=done) for n, (done, mark) in pairs]
        return [decision.rule for decision in play(policy, *failures)]

    go, same = "go", "same"
    assert outcome(None, None, None) == [go, go, same]
    assert outcome(5, 5, 5) == [go, go, same]
    assert outcome(5, 5, 6) == [go, go, go]
    assert outcome(5, 6, 6, 6) == [go, go, go, same]
    assert outcome(5, None, 5) == [go, go, same]  # between equal ones, nothing was lost
    assert outcome(5, 6, None, None) == [go, go, go, same]
    assert outcome(6, 3, 3) == [go, go, same]  # back to an older checkpoint is no progress
    assert outcome(*[None] * 5, marks="ababa") == [go, go, go, go, same]
    assert outcome(*[None] * 3, marks=["", "", ""]) == [go, go, same]  # written by an older release


# --- counting


def kinds(decisions):
    return "".join(d.outcome[0] if isinstance(d, Stop) else type(d).__name__[0] for d in decisions)


@pytest.mark.parametrize(
    ("terms", "count", "expected"),
    [
        ("action: restart, max: 2", 4, "RRff"),
        ("action: restart, max: 0", 1, "f"),
        ("action: restart, max: unlimited", 60, "R" * 60),
        ("action: restart, max: 2, per: 25s", 6, "RRfRRf"),
        ("action: restart, max: 2, per: 20s", 6, "RRRRRR"),
        ("action: restart, max: 1, reset_after: 10s", 3, "RRR"),
        ("action: restart, max: 1, reset_after: 11s", 3, "Rff"),
        ("action: restart, max: 1, exhausted: done", 2, "Rd"),
        ("action: restart, max: 1, exhausted: ignore", 3, "RII"),
        ("action: wait, delay: 5s, max: 2", 3, "RRf"),
        ("action: ignore, max: 1", 2, "If"),
        ("action: ignore", 3, "III"),
        ("action: fail", 1, "f"),
        ("action: done", 1, "d"),
    ],
)
def test_how_often_a_rule_may_decide(terms, count, expected):
    policy = engine(f"rules: [{{match: {{class: user exception}}, {terms}}}]")
    assert kinds(row(policy, count)) == expected


# --- a run with more failures than its history keeps


def long_run(policy, *failures):
    """Return the kinds of the decisions, each with the history that a run keeps."""
    history, decisions = (), []
    for one in failures:
        decisions.append(policy.judge(one, history).decision)
        history = remembered(history, msgspec.structs.replace(one, decision=decisions[-1]))
    assert len(history) <= 500
    return kinds(decisions)


PREEMPTED = failure(failure_class=FailureClass.PREEMPTED, summary="preempted", exception_type="", message="")


@pytest.mark.parametrize(
    "terms", ["action: restart, max: 3", "action: ignore, max: 3", "action: wait, delay: 1s, max: 3"]
)
def test_a_rule_s_count_outlives_the_history(terms):
    policy = engine(f"""
rules:
  - {{name: spot, match: {{class: preempted}}, action: restart, max: unlimited}}
  - {{name: few, match: {{class: user exception}}, {terms}}}
""")
    decided = long_run(policy, *[failure()] * 2, *[PREEMPTED] * 520, failure(), failure())
    assert (decided[:2], decided[-2], decided[-1]) == (decided[-2] * 2, "I" if "ignore" in terms else "R", "f")


def test_the_built_in_budget_is_spent_by_its_own_restarts_only():
    policy = engine(
        "rules: [{name: any, match: {class: hang}, action: restart, max: unlimited}]",
        max_restarts=2, restart_backoff_s=0.0,
    )  # fmt: skip
    hang = failure(failure_class=FailureClass.HANG, exception_type="")
    assert long_run(policy, *[hang] * 9, *[failure()] * 3) == "R" * 11 + "f"
    assert long_run(policy, failure(), *[hang] * 520, *[failure()] * 2) == "R" * 522 + "f"


def test_rules_have_counters_of_their_own_and_hand_over():
    policy = engine("""
rules:
  - {name: a, match: {rank: 1}, action: restart, max: 1, exhausted: next}
  - {name: b, match: {class: user exception}, action: restart, max: 2, exhausted: next}
""", max_restarts=1)  # fmt: skip
    assert [d.rule for d in row(policy, 5)] == ["a", "b", "b", "max-restarts", "max-restarts"]
    other = failure(global_rank=3, local_rank=3)
    assert [d.rule for d in play(policy, failure(), other, failure(), other)] == ["a", "b", "b", "max-restarts"]


def test_exhausted_ignore_ends_the_run_where_no_worker_failed():
    policy = engine("otherwise: fail\nrules: [{match: {class: node lost}, action: restart, max: 0, exhausted: ignore}]")
    assert policy.judge(failure(**LOST), ()).decision == Stop(reason="no rule matches", rule="otherwise")


def test_stragglers_are_ignored_or_replaced_by_rules_and_ignored_without_one():
    slow = failure(failure_class=FailureClass.STRAGGLER, node_id="b", node_count=3, exception_type="", message="")
    node = msgspec.structs.replace(slow, local_rank=None, global_rank=None)
    policy = engine("""
rules:
  - {name: slow, match: {class: straggler}, action: restart, exclude: node, max: 1, exhausted: ignore}
""", min_nodes=2)  # fmt: skip
    for one in (slow, node):
        restart, ignored = play(policy, one, one)
        assert (restart.exclude_nodes, ignored) == (("b",), Ignore(rule="slow"))
        assert engine("rules: [{match: {class: hang}, action: fail}]").judge(one, ()).decision == Ignore(
            rule="straggler"
        )
        note = engine("rules: [{name: note, match: {class: straggler}, action: ignore}]")
        assert note.judge(one, ()).decision == Ignore(rule="note")


def test_without_a_match_the_built_in_policy_decides_and_counts_its_own():
    policy = engine("rules: [{match: {rank: 0}, action: restart, max: 9}]", max_restarts=2, fatal_exit_codes=(3,))
    first = failure(global_rank=0, local_rank=0)
    decisions = play(policy, first, first, first, failure(), failure(), failure())
    assert [d.rule for d in decisions] == ["rule 1"] * 3 + ["max-restarts"] * 3
    assert kinds(decisions) == "RRRRRf"
    assert policy.judge(failure(exit_code=3), ()).decision.rule == "fatal-exit-codes"
    assert policy.judge(failure(failure_class=FailureClass.PREEMPTED), ()).decision == Restart(rule="preempted")


@pytest.mark.parametrize(
    ("terms", "delays"),
    [
        ("", [0, 0.5, 1, 2, 4, 8, 16, 30, 30]),
        ("backoff: off", [0, 0, 0]),
        ("backoff: 3s", [3, 3, 3]),
        ("backoff: {base: 1s}", [1, 2, 4, 8]),
        ("backoff: {base: 1s, factor: 10, cap: 30s}", [1, 10, 30, 30]),
        ("backoff: {base: 10m}", [600, 600]),
        ("backoff: {base: 0, factor: 100}", [0] * 5),
    ],
)
def test_pauses_grow(terms, delays):
    policy = engine(f"rules: [{{action: restart, max: 50, {terms}}}]")
    assert [d.delay_s for d in row(policy, len(delays))] == delays


def test_pauses_begin_anew_after_healthy_time():
    policy = engine("rules: [{action: restart, max: 3, reset_after: 1h, backoff: {base: 1s}}]")
    ups = [10, 10, 3600, 10, 10, 10]
    decisions = play(policy, *(failure(at_s=1e4 * n, uptime_s=up) for n, up in enumerate(ups)))
    assert [getattr(d, "delay_s", None) for d in decisions] == [1, 2, 1, 2, 4, None]


def test_waiting_is_no_backoff():
    policy = engine("""
rules:
  - {name: full, match: {message: No space left}, action: wait, delay: 5m, max: 9}
  - {name: rest, action: restart, max: 9, backoff: {base: 1s}}
""")
    full = failure(message="OSError: No space left on device")
    assert [d.delay_s for d in play(policy, full, failure(), full, full, failure())] == [300, 1, 300, 300, 2]


def test_jitter_is_another_one_for_each_run_and_failure_and_else_the_same():
    text = "rules: [{action: restart, max: 9, backoff: {base: 100s, factor: 1, jitter: 0.5}}]"
    one, two = engine(text, run_id="a"), engine(text, run_id="b")
    delays = [policy.judge(failure(at_s=at_s), ()).decision.delay_s for policy in (one, two) for at_s in range(100)]
    assert delays == [p.judge(failure(at_s=s), ()).decision.delay_s for p in (one, two) for s in range(100)]
    assert len(set(delays)) > 190
    assert 50 <= min(delays) < 60
    assert 140 < max(delays) <= 150


# --- what a restart can't mend


def test_restarts_are_passed_over_where_another_try_cant_help():
    policy = engine("""
rules:
  - {name: again, action: restart, max: 9}
  - {name: named, match: {exit_code: 2}, action: fail, reason: see the manual}
""")  # fmt: skip
    missing = {"failure_class": FailureClass.USAGE, "retryable": False, "summary": "no such script"}
    assert policy.judge(failure(**missing), ()).decision.rule == "not-retryable"
    assert policy.judge(failure(**missing, exit_code=2), ()).decision.reason == "see the manual"
    late = engine("rules: [{match: {class: import or usage error}, action: restart, max: 1, backoff: off}]")
    assert late.judge(failure(**missing), ()).decision == Restart(rule="rule 1")


def test_fatal_exit_codes_come_before_restarts_only():
    policy = engine(
        "rules: [{action: restart, max: 9}, {match: {exit_code: 9}, action: done}]", fatal_exit_codes=(7, 9)
    )
    assert policy.judge(failure(exit_code=7), ()).decision.rule == "fatal-exit-codes"
    assert policy.judge(failure(exit_code=9), ()).decision.outcome == "done"


def test_only_a_worker_can_be_ignored():
    policy = engine("otherwise: fail\nrules: [{match: {node: n0}, action: ignore}]")
    assert policy.judge(failure(), ()).decision == Ignore(rule="rule 1")
    assert isinstance(policy.judge(failure(**LOST), ()).decision, Stop)


# --- nodes


BLAME = "blame: {times: 2, within: 100s, exclude_for: 50s, factor: 3, cap: 200s}\n"
ALWAYS = "rules: [{name: go, action: restart, max: unlimited, backoff: off}]"


def excluded(policy, *failures):
    return [d.exclude_nodes for d in play(policy, *failures)]


def killed(at_s, node="a", nodes=4, **given):
    return failure(**(KILLED | {"at_s": at_s, "node_id": node, "node_count": nodes} | given))


def test_a_node_that_is_blamed_twice_in_a_window_is_left_out_for_longer_each_time():
    policy = engine(BLAME + ALWAYS, min_nodes=2, max_nodes=4)
    assert excluded(
        policy,
        killed(0),
        killed(60),                 # the second within 100 s: out until 110
        killed(100, "b", 3),        # still out
        killed(120, "c"),           # in again
        killed(130),                # blamed once since
        killed(140),                # twice: out for 150 s, until 290
        killed(280, "d", 3),
        killed(300, "d"),           # a is back; d was blamed twice within 100 s: out until 350
    ) == [(), ("a",), ("a",), (), (), ("a",), ("a",), ("d",)]  # fmt: skip


def test_the_decision_says_for_how_long():
    policy = engine(BLAME + ALWAYS, min_nodes=2, max_nodes=4)
    decisions = play(policy, killed(0), killed(60), killed(100, "b", 3), killed(120), killed(130))
    assert [d.exclude_s for d in decisions] == [(), (50.0,), (10.0,), (), (150.0,)]


def test_blames_that_lie_apart_or_say_nothing_of_the_node_leave_it_in():
    policy = engine(BLAME + ALWAYS, min_nodes=1, max_nodes=4)
    assert excluded(policy, killed(0), killed(100)) == [(), ()]
    boom = {"failure_class": FailureClass.USER_EXCEPTION, "node_count": 4}
    assert excluded(policy, *(failure(at_s=n, **boom) for n in range(5))) == [()] * 5
    assert excluded(policy, killed(0), killed(1, "b"), killed(2, "c")) == [()] * 3


def test_rules_may_say_whether_the_node_is_to_blame():
    text = """
blame: {within: 1h}
rules:
  - {name: ecc, match: {message: ECC}, action: restart, max: 9, blame: yes}
  - {name: kill, match: {signal: KILL}, action: restart, max: 9, blame: no}
"""
    policy = engine(text, max_nodes=4)
    ecc = {"message": "ECC", "node_count": 4}
    assert excluded(policy, failure(at_s=1, **ecc), failure(at_s=2, **ecc)) == [(), ("n0",)]
    assert excluded(policy, killed(1), killed(2), killed(3)) == [(), (), ()]


def test_a_rule_may_leave_the_node_out_at_once():
    policy = engine("blame: off\nrules: [{action: restart, max: 9, exclude: node}]", min_nodes=2, max_nodes=4)
    assert excluded(policy, killed(1), killed(2, "b", 3), killed(3, "c", 2)) == [("a",), ("b", "a"), ("a", "b")]


def test_nodes_are_let_back_in_where_else_too_few_would_be_left():
    policy = engine("blame: {exclude_for: 1h}\nrules: [{action: restart, max: 9, exclude: node, match: {signal: KILL}},"
                    " {action: restart, max: 9}]", min_nodes=2, max_nodes=4)  # fmt: skip
    lost = LOST | {"node_id": "c", "at_s": 3, "node_count": 2}
    assert excluded(policy, killed(1), killed(2, "b", 3), failure(**lost)) == [("a",), ("b", "a"), ("b",)]


def test_a_node_that_was_let_back_in_is_one_of_those_that_are_there():
    policy = engine("blame: {exclude_for: 1h}\nrules: [{action: restart, max: 9, exclude: node, match: {signal: KILL}},"
                    " {action: restart, max: 9}]", min_nodes=2, max_nodes=3)  # fmt: skip
    lost = LOST | {"node_id": "b", "at_s": 2, "node_count": 2}
    later = failure(at_s=3, node_id="c", node_count=2)  # a and c
    assert excluded(policy, killed(1, nodes=3), failure(**lost), later) == [("a",), (), ()]


def test_a_node_that_was_lost_is_the_last_to_be_let_back_in():
    policy = engine("blame: {exclude_for: 1h}\nrules: [{action: restart, max: 9, exclude: node}]", max_nodes=3)
    lost = [failure(**(LOST | {"node_id": name, "at_s": at_s, "node_count": nodes}))
            for name, at_s, nodes in (("a", 1, 3), ("c", 3, 1))]  # fmt: skip
    assert excluded(policy, lost[0], killed(2, "b", 2), lost[1]) == [("a",), ("b", "a"), ("a",)]


@pytest.mark.parametrize(("nodes", "expected"), [(1, ()), (2, ()), (3, ("a",)), (None, ())])
def test_never_below_the_fewest_nodes_that_the_run_needs(nodes, expected):
    policy = engine("rules: [{action: restart, max: 9, exclude: node}]", min_nodes=2, max_nodes=8)
    verdict = policy.judge(killed(1, nodes=nodes), ())
    assert verdict.decision.exclude_nodes == expected
    if nodes == 2:
        assert verdict.why[-1] == "'a' stays, although rule 'rule 1' says so: 1 of at least 2 nodes would be left"


# --- why


def test_why_tells_of_every_rule_up_to_the_decision():
    policy = engine("""
rules:
  - {name: a, match: {exception: KeyError}, action: fail}
  - {name: b, match: {rank: 1}, action: restart, max: 1, per: 1h, exhausted: next}
  - {name: c, match: {rank: 1}, action: restart, max: 1}
  - {name: d, action: ignore}
""")
    first = failure()
    past = msgspec.structs.replace(first, decision=Restart(rule="b"))
    assert policy.judge(first, ()).why == (
        "rule 'a' (line 3) is passed over: the exception is 'ValueError'",
        "rule 'b' (line 4) matches: 1 of 1 within 3600 s",
    )
    assert policy.judge(first, (past,)).why[1:] == (
        "rule 'b' (line 4) matches, but 1 time within 3600 s is used up: the next ones are tried",
        "rule 'c' (line 5) matches: 1 of 1",
    )
    spent = msgspec.structs.replace(first, decision=Restart(rule="c"))
    verdict = policy.judge(first, (past, spent))
    assert verdict.decision == Stop(reason="rule 'c': 1 time is used up", rule="c")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)(.*)(.*)(.*)x$", "(?:a?){50}a{50}$", "([a-z]+)*=" * 5])
def test_no_pattern_holds_the_agent_up(pattern):
    policy = engine(f"rules: [{{match: {{message: '{pattern}', log: '{pattern}'}}, action: done}}]")
    evil = failure(message="a" * 1_000_000 + "!", log_tail="a" * 4096 + "!")
    began_s = time.monotonic()
    policy.judge(evil, ())
    kept(time.monotonic() - began_s, 1.0)
