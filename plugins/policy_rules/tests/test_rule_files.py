"""Rule files: what is understood, and that every problem is told with its place and the word that was meant."""

import pytest

from elastic_core.api import FailureClass
from elastic_policy_rules.book import Backoff, Blame, Match, Rule, RuleBook
from elastic_policy_rules.problems import RuleFileError
from elastic_policy_rules.reader import read, read_file


def rules_of(text):
    return read(text.encode(), "r.yaml").rules


def problems_of(text):
    with pytest.raises(RuleFileError) as caught:
        read(text if isinstance(text, bytes) else text.encode(), "r.yaml")
    return caught.value


def test_everything_that_a_rule_can_say():
    (rule,) = rules_of("""
rules:
  - name: all of it
    match:
      class: [node-lost, OOM_HOST, out of memory]
      exception: ValueError
      message: a
      log: [b, c]
      exit_code: [3, 64-78]
      signal: [KILL, sigterm, 6]
      rank: 0-7
      node: gpu-*
      uptime: {under: 1h30m, over: 500ms}
      repeats: 3
    action: restart
    max: 5
    per: 2d
    backoff: {base: 1s, factor: 1.5, cap: 1m, jitter: 0.25}
    reset_after: 90
    exhausted: next
    exclude: node
    blame: no
    reason: "because  it
      must"
""")
    match = rule.match
    assert match.classes == {FailureClass.NODE_LOST, FailureClass.OOM_HOST, FailureClass.OOM_DEVICE}
    assert (match.exit_codes, match.signals, match.ranks) == (((3, 3), (64, 78)), {9, 15, 6}, ((0, 7),))
    assert (match.under_s, match.over_s, match.repeats) == (5400.0, 0.5, 3)
    assert [p.text for p in (*match.exceptions, *match.messages, *match.logs, *match.nodes)] == [
        "ValueError", "a", "b", "c", "gpu-*",
    ]  # fmt: skip
    assert rule == Rule(
        name="all of it",
        line=3,
        action="restart",
        match=match,
        max_count=5,
        per_s=172_800.0,
        backoff=Backoff(base_s=1.0, factor=1.5, cap_s=60.0, jitter=0.25),
        reset_after_s=90.0,
        exhausted="next",
        exclude=True,
        blame=False,
        reason="because it must",
    )


def test_the_file_around_the_rules():
    text = """
version: 1
defaults: {max: 4, per: 1h, backoff: off, reset_after: 10m, exhausted: done}
otherwise: fail
blame: {times: 3, within: 2h, exclude_for: 1m, factor: 3, cap: 1h, classes: [hang]}
rules:
  - action: restart
  - {action: restart, max: unlimited, per: 5s, backoff: 3s, exhausted: fail}
  - {action: ignore, max: 1}
  - {match: {rank: 0}, action: fail}
"""
    book = read(text.encode(), "r.yaml")
    first, second, third, last = book.rules
    assert first == Rule(
        name="rule 1", line=7, action="restart", max_count=4, per_s=3600.0, backoff=Backoff(0.0, 1.0, 0.0),
        reset_after_s=600.0, exhausted="done",
    )  # fmt: skip
    assert (second.max_count, second.per_s, second.backoff) == (None, None, Backoff(3.0, 1.0, 3.0))
    assert (third.max_count, third.per_s, third.backoff) == (1, 3600.0, None)
    assert last == Rule(name="rule 4", line=10, action="fail", match=Match(ranks=((0, 0),)))
    assert book.otherwise == "fail"
    assert book.blame == Blame(3, 7200.0, 60.0, 3.0, 3600.0, frozenset({FailureClass.HANG}))


def test_little_is_needed():
    book = read(b"rules: [{action: done}]", "r.yaml")
    assert book == RuleBook(rules=(Rule(name="rule 1", line=1, action="done", match=Match()),))
    assert read(b'\xef\xbb\xbf{"rules": [{"action": "done"}]}', "r.json") == book


def test_blame_can_be_turned_off():
    assert read(b"blame: off\nrules: [{action: done}]", "r.yaml").blame is None


def test_parts_may_be_named_once_and_used_again():
    first, second = rules_of("""
defaults: {backoff: &slow {base: 10s}, max: 1}
rules:
  - {match: {class: hang}, action: restart}
  - {action: restart, backoff: *slow}
""")
    assert first.backoff == second.backoff == Backoff(base_s=10.0)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("1.5h", 5400), ("1h30m", 5400), ("250ms", 0.25), ("2d", 172_800), ("'10s'", 10), ("5M", 300)],
)
def test_durations(written, seconds):
    (rule,) = rules_of(f"rules: [{{action: wait, delay: {written}, max: 1}}]")
    assert rule.delay_s == seconds


RULE = "rules:\n  - "
ACT = "action: restart\n    max: 3\n    "


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        # YAML itself
        ("rules: [", [(1, 9, "this is not YAML", "")]),
        ("rules:\n\t- a", [(2, 1, "this is not YAML", "blanks in the place of the tab")]),
        ("a: 1\n---\nb: 2", [(2, 1, "expected a single document", "")]),
        (b"rules: \xff", [(1, 8, "not UTF-8", "")]),
        ("rules: \x07", [(1, 1, "special characters are not allowed at character 8", "")]),
        # the file
        ("", [(1, 1, "the file is empty", "one of version")]),
        ("- a", [(1, 1, "the file is no mapping", "rules")]),
        ("version: 1", [(1, 1, "the file has no 'rules'", "rules:")]),
        ("version: 2\nrules: [{action: done}]", [(1, 10, "'2'; expected 1, the version", "version: 1")]),
        ("ruels: []", [(1, 1, "the file has no key 'ruels'", "rules")]),
        ("rules: []", [(1, 8, "no list with rules", "")]),
        ("rules: {action: fail}", [(1, 8, "no list with rules", "")]),
        ("rules: [fail]", [(1, 9, "rule 1 is no mapping", "")]),
        ("rules: [{action: done}]\naction: fail", [(2, 1, "no key 'action'", "'action' in a rule")]),
        ("otherwise: intensty\nrules: [{match: {}, action: ignore}]", [(1, 12, "expected one of", "intensity")]),
        ("defaults: {max: 3, action: fail}\nrules: [{action: done}]", [(1, 20, "'defaults' has no key", "in a rule")]),
        ("defaults: {max: x, backoff: {}}\nrules: [{action: restart}, {action: ignore}]",
         [(1, 17, "'x'; expected a whole number", "3"), (1, 29, "has no 'base'", "")]),
        ("blame: 3\nrules: [{action: done}]", [(1, 8, "'3'; expected one of off", "")]),
        ("blame: {classes: [hnag]}\nrules: [{action: done}]", [(1, 19, "no class", "hang")]),
        ("blame: {classes: []}\nrules: [{action: done}]", [(1, 8 + 1, "empty list", "leave")]),
        # a rule
        (RULE + "match: {}", [(2, 5, "rule 1 has no 'action'", "action: restart")]),
        (RULE + "acton: fail", [(2, 5, "rule 1 has no key 'acton'", "action")]),
        (RULE + "action: stop", [(2, 13, "'stop'; expected one of restart", "fail or done")]),
        (RULE + "action: retsart", [(2, 13, "'retsart'; expected one of", "restart")]),
        (RULE + "action:", [(2, 5, "'action' has nothing", "")]),
        (RULE + "action: [fail]", [(2, 13, "'action' has a list", "")]),
        (RULE + "action: fail\n    action: done", [(3, 5, "'action' is given twice", "one action")]),
        (RULE + "action: restart", [(2, 5, "has no 'max'", "max: 3")]),
        (RULE + "action: restart\n    max: 51", [(3, 10, "expected a whole number from 0 to 50", "unlimited")]),
        (RULE + "action: restart\n    max: -1", [(3, 10, "expected a whole number from 0 to 50", "")]),
        (RULE + "action: restart\n    max: unlimted", [(3, 10, "or 'unlimited'", "unlimited")]),
        (RULE + "action: wait\n    max: 1", [(2, 5, "has no 'delay'", "delay: 5m")]),
        (RULE + ACT + "delay: 5m", [(4, 5, "no effect with action 'restart', only with wait", "leave")]),
        (RULE + "action: fail\n    max: 3", [(3, 5, "'max' has no effect with action 'fail'", "leave")]),
        (RULE + "action: ignore\n    per: 1h", [(3, 5, "'per' has no effect without 'max'", "max: 3")]),
        (RULE + "action: ignore\n    backoff: 1s", [(3, 5, "only with restart", "leave")]),
        (RULE + ACT + "per: 1 hour", [(4, 10, "'1 hour'; expected a duration", "1h30m")]),
        (RULE + ACT + "per: 0", [(4, 10, "expected more than 0", "")]),
        (RULE + ACT + "per: 9999d", [(4, 10, "longer than a year", "")]),
        (RULE + ACT + "exclude: nodes", [(4, 14, "'nodes'; expected one of node", "node")]),
        (RULE + ACT + "blame: maybe", [(4, 12, "expected one of yes, no", "")]),
        (RULE + ACT + "exhausted: stop", [(4, 16, "'stop'; expected one of", "fail or done")]),
        (RULE + ACT + "backoff: {factor: 2}", [(4, 14, "has no 'base'", "base: 1s")]),
        (RULE + ACT + "backoff: {base: 1s, jitter: 3}", [(4, 33, "expected a number from 0 to 1", "")]),
        (RULE + ACT + "backoff: {base: 1s, factor: nan}", [(4, 33, "expected a number from 1 to 100", "")]),
        (RULE + ACT + "backoff: {base: 1m, cap: 1s}", [(4, 25, "'cap' of 1 s is shorter than 'base'", "longer")]),
        (RULE + ACT + "name: max-restarts", [(4, 11, "what the built-in policy calls", "my-max-restarts")]),
        (RULE + ACT + 'name: "a\\nb"', [(4, 11, "; expected a name", "")]),
        (RULE + ACT + "exception: ValueError", [(4, 5, "no key 'exception'", "'exception' below 'match'")]),
        # what it matches
        (RULE + ACT + "match: hang", [(4, 12, "'match' is no mapping", "class")]),
        (RULE + ACT + "match: {clas: hang}", [(4, 13, "'match' has no key 'clas'", "class")]),
        (RULE + ACT + "match: {class: [hang, preemted]}", [(4, 27, "is called 'preemted'", "preempted")]),
        (RULE + ACT + "match: {class: {a: b}}", [(4, 20, "'class' needs a value", "")]),
        (RULE + ACT + "match: {exception: 'a b'}", [(4, 24, "expected the name of an exception", "")]),
        (RULE + ACT + "match: {message: 'a(b'}", [(4, 22, "expected a pattern: missing )", "\\Qa(b\\E")]),
        (RULE + ACT + "match: {log: 'a(?!b)'}", [(4, 18, "invalid perl operator", "without (?=")]),
        (RULE + ACT + "match: {log: '(a)\\1'}", [(4, 18, "invalid escape sequence", "without \\1")]),
        (RULE + ACT + "match: {log: ''}", [(4, 18, "0 characters", "")]),
        (RULE + ACT + "match: {exit_code: 256}", [(4, 24, "'256'; expected exit code", "64-78")]),
        (RULE + ACT + "match: {exit_code: 9-3}", [(4, 24, "'9-3'; expected exit code", "64-78")]),
        (RULE + ACT + "match: {signal: SIGKIL}", [(4, 21, "no signal is called 'SIGKIL'", "SIGKILL")]),
        (RULE + ACT + "match: {signal: 99}", [(4, 21, "no signal is called '99'", "")]),
        (RULE + ACT + "match: {rank: all}", [(4, 19, "; expected rank", "")]),
        (RULE + ACT + "match: {uptime: 5m}", [(4, 21, "'uptime' is no mapping", "under or over")]),
        (RULE + ACT + "match: {uptime: {below: 5m}}", [(4, 22, "no key 'below'", "under or over")]),
        (RULE + ACT + "match: {uptime: {under: 1m, over: 1h}}", [(4, 13, "no uptime is both", "")]),
        (RULE + ACT + "match: {repeats: 1}", [(4, 22, "expected a whole number from 2 to 50", "3")]),
        # several rules
        (
            "rules:\n  - {name: a, action: ignore}\n  - {name: a, action: fail}",
            [(3, 6, "another rule is called 'a', in line 2", "another name")],
        ),
        (
            "rules:\n  - action: fail\n  - action: done\notherwise: intensity",
            [(3, 5, "never reached: rule 'rule 1' in line 2", ""), (4, 1, "'otherwise' is never reached", "")],
        ),
    ],
)  # fmt: skip
def test_every_problem_has_its_place_and_a_hint(text, problems):
    error = problems_of(text)
    seen = [(p.line, p.column) for p in error.problems]
    assert seen == [(line, column) for line, column, _, _ in problems], error.problems
    for found, (_, _, what, hint) in zip(error.problems, problems, strict=True):
        assert what in found.what
        assert hint in found.hint
        assert "\n" not in found.what + found.hint


def test_all_problems_come_at_once_in_order():
    error = problems_of("rules:\n  - action: strat\n    max: x\n  - match: {exit_code: [1, x, y]}\n    action: fail\n")
    assert (error.exit_code, str(error)) == (2, "rule file 'r.yaml' has 4 problems")
    assert [line.split(" ")[0] for line in error.__notes__] == [
        "r.yaml:2:13:", "r.yaml:3:10:", "r.yaml:4:28:", "r.yaml:4:31:",
    ]  # fmt: skip
    assert error.__notes__[0].endswith("Try: restart")


def test_a_single_problem_is_the_message():
    error = problems_of("rules:\n  - action: strat\n")
    assert str(error).startswith(
        "rule file r.yaml:2:13: action: 'strat'; expected one of restart, wait, ignore, fail or done."
    )
    assert str(error).endswith("Try: restart")
    assert not hasattr(error, "__notes__")


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rules: &a [*a]", "nested deeper"),
        (LAUGHS, "more than 20000"),
        ("rules: " + "[" * 30 + "]" * 30, "nested deeper"),
        ("rules: " + "[" * 1500 + "]" * 1500, "nested too deep"),
        ("#" * 300_000, "more than 262144 bytes"),
        ("? [a]\n: b", "a key must be a word"),
        ("rules:\n" + "  - {action: ignore}\n" * 201, "201 rules"),
    ],
)  # fmt: skip
def test_files_that_would_take_for_ever_are_refused(text, what):
    (problem,) = problems_of(text).problems
    assert what in problem.what


def test_files_that_are_not_there_are_told_in_one_line(tmp_path):
    for path, what in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "r.toml", "is TOML; expected YAML. Try: "),
    ):
        with pytest.raises(Exception, match=r"^rule file ") as caught:
            read_file(str(path))
        assert what in str(caught.value)
        assert caught.value.exit_code == 2
