"""The benchmarks' own arithmetic: what they print decides whether a budget is kept."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks import procfs, tee
from benchmarks.launchers import ALL, clean_environment
from benchmarks.measure import Result, in_turns, many_in_turns
from benchmarks.stats import FLOOR, OURS, TORCHRUN, Budget, ratio, summarize
from benchmarks.table import as_records, as_text


def test_a_summary_is_the_middle_and_both_ends():
    summary = summarize([4.0, 1.0, 2.0])
    assert (summary.median, summary.least, summary.most, summary.count) == (2.0, 1.0, 4.0, 3)


def test_a_ratio_to_nothing_says_nothing():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None


@pytest.mark.parametrize(
    ("medians", "kept"),
    [
        ({FLOOR: 20.0, OURS: 80.0, TORCHRUN: 800.0}, True),
        ({FLOOR: 20.0, OURS: 80.1, TORCHRUN: 900.0}, False),
        ({FLOOR: 20.0, OURS: 80.0, TORCHRUN: 799.0}, False),
        ({FLOOR: 20.0, OURS: 80.0}, True),  # without torch there is nobody to be compared with
        ({OURS: 80.0}, None),
        ({FLOOR: 20.0}, None),
    ],
)
def test_a_budget_is_judged_by_whom_it_names(medians, kept):
    assert Budget(times_floor=4, faster_than_torchrun=10).kept(medians) is kept


def test_a_budget_may_be_a_number_alone():
    budget = Budget(at_most=20)
    assert (budget.kept({OURS: 20.0}), budget.kept({OURS: 20.1})) == (True, False)
    assert str(budget) == "<= 20"


def test_launchers_take_turns_after_a_first_round_that_does_not_count():
    order = []

    def take(name):
        order.append(name)
        return float(len(order))

    figures = in_turns({"a": lambda: take("a"), "b": lambda: take("b")}, 2)
    assert order == ["a", "b"] * 3
    assert figures == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_several_figures_of_a_run_are_kept_apart():
    taken = many_in_turns({"a": lambda: {"x": 1.0, "y": 2.0}, "b": lambda: {"x": 3.0}}, 2)
    assert taken == {"x": {"a": [1.0, 1.0], "b": [3.0, 3.0]}, "y": {"a": [2.0, 2.0]}}


def test_the_table_names_ratios_and_verdicts():
    result = Result(
        "a start", "ms", {FLOOR: [10.0], OURS: [41.0, 39.0, 45.0], TORCHRUN: [1000.0]}, Budget(times_floor=4)
    )
    head, floor, ours, torchrun = as_text([result]).splitlines()
    assert head == "a start, ms   [budget <= 4 x floor: MISSED]"
    assert floor.split()[:2] == ["floor", "10"]
    assert "41" in ours
    assert "(39 to 45, n=3)" in ours
    assert "4.1 x floor" in ours
    assert "torchrun takes 24.4 x" in ours
    assert "100.0 x floor" in torchrun


def test_the_records_hold_every_figure_and_are_json():
    result = Result("a start", "ms", {OURS: [1.0, 3.0]}, Budget(at_most=2))
    (record,) = json.loads(json.dumps(as_records([result])))
    assert record["kept"] is True
    assert record["launchers"][OURS] == {"median": 2.0, "least": 1.0, "most": 3.0, "count": 2, "figures": [1.0, 3.0]}


def test_lost_torn_and_doubled_lines_are_told_apart():
    def line(rank, number, by=None):
        return f"[default{rank if by is None else by}]:{rank} {number} {'x' * 48}".encode()

    whole = [line(0, 0), line(1, 0), line(0, 1), line(1, 1)]
    assert tee.check(whole, 2, 2) == tee.Check(lost=0, wrong=0)
    assert tee.check(whole[:3], 2, 2) == tee.Check(lost=1, wrong=0)
    assert tee.check([*whole, line(0, 1)], 2, 2) == tee.Check(lost=0, wrong=1)
    assert tee.check([*whole[:3], line(1, 1)[:20], line(1, 1)[20:]], 2, 2) == tee.Check(lost=1, wrong=2)
    assert tee.check([*whole[:3], line(1, 1, by=0)], 2, 2) == tee.Check(lost=1, wrong=1)


def test_context_switches_of_both_kinds_count():
    assert procfs.context_switches("Name:\tx\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t2\n") == 5


def test_every_launcher_gets_the_same_script_and_nobody_elses_options():
    for launcher in ALL.values():
        assert launcher(3, 1, ["train.py", "--lr", "1"])[-3:] == ["train.py", "--lr", "1"]
    environ = {"PATH": "/bin", "PET_NNODES": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    assert clean_environment(environ) == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
