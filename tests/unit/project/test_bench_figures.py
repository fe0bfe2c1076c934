"""The benchmarks' own arithmetic: what they print decides whether a budget is kept, and whether a figure has lost."""

import json
import sys
from pathlib import Path

import benchmark_page
import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks import compare, names, procfs, results, run, tee
from benchmarks.compare import Comparison, Verdict
from benchmarks.launchers import ALL, clean_environment
from benchmarks.measure import Figure, Measure, MeasureError, MissingError, Turns, in_turns
from benchmarks.registry import MEASURES, select
from benchmarks.results import Document, Machine, ResultsError
from benchmarks.stats import FLOOR, FT_LAUNCHER, LEVEL, OTHER, OURS, TORCHRUN, Budget, Estimate, median, ratio
from benchmarks.table import as_text

MACHINE = Machine(cores=2, processor="a processor", kernel="6.1", load=0.1, load_at_the_end=0.9)


def document(**figures):
    """Return a document: each figure by its name, given as samples by launcher."""
    taken = {
        name.replace("_", "-"): results.result(Figure(f"time of {name}", "ms"), samples)
        for name, samples in figures.items()
    }
    return Document(1, "2026-01-31", "full", MACHINE, {"Python": "3.11.7", "torch": "2.13.0"}, taken, {})


# --- statistics


@pytest.mark.parametrize(
    ("samples", "estimate"),
    [
        ([4.0], Estimate(4.0, 4.0, 4.0, 0.0)),
        ([4.0, 1.0, 2.0], Estimate(2.0, 1.0, 4.0, 0.75)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], Estimate(3.0, 1.0, 5.0, 0.938)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Estimate(3.5, 1.0, 6.0, 0.969)),
        ([float(n) for n in range(15)], Estimate(7.0, 3.0, 11.0, 0.965)),
    ],
    ids=["1", "3", "5", "6", "15"],
)
def test_median_has_the_interval_of_the_sign_test(samples, estimate):
    assert median(samples) == estimate


@pytest.mark.parametrize(
    ("samples", "reference", "estimate"),
    [
        ([1.0], [2.0], Estimate(0.5, 0.5, 0.5, 0.0)),
        ([1.0, 2.0, 3.0], [10.0, 10.0, 10.0], Estimate(0.2, 0.1, 0.3, 0.9)),
        ([1.0, 2.0, 3.0, 4.0], [10.0] * 4, Estimate(0.25, 0.1, 0.4, 0.971)),
        # The critical value for 5 and 5 in tables of the Mann-Whitney test is 2: the third of 25 from each end.
        ([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 1.0, 1.0, 1.0, 1.0], Estimate(4.0, 1.0, 16.0, 0.968)),
        ([0.0, 0.0, 0.0], [10.0, 20.0, 30.0], Estimate(0.0, 0.0, 0.0, 0.9)),
        ([1.0], [0.0], None),
        ([1.0], [], None),
        ([], [1.0], None),
    ],
)
def test_ratio_has_the_interval_of_the_mann_whitney_test(samples, reference, estimate):
    assert ratio(samples, reference) == estimate


@pytest.mark.parametrize("count", [15, 25, 40])
def test_intervals_are_as_narrow_as_the_confidence_allows(count):
    samples = [100.0 + n for n in range(count)]
    for found in (median(samples), ratio(samples, samples)):
        assert LEVEL <= found.level < LEVEL + 0.035
    assert ratio(samples, samples).low < 1 < ratio(samples, samples).high


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
    assert str(budget) == "at most 20"


# --- turns, and which measures take them


@pytest.mark.parametrize(
    ("turns", "taken"),
    [
        (Turns(seconds=0.0, least=2, most=9), 2),
        (Turns(seconds=10.0, least=1, most=9), 5),  # each turn takes two seconds; a sixth would end at twelve
        (Turns(seconds=11.9, least=1, most=9), 5),
        (Turns(seconds=100.0, least=1, most=9), 9),
    ],
)
def test_launchers_take_turns_until_the_time_is_used_up(turns, taken):
    order, now_s = [], 0.0

    def take(name):
        nonlocal now_s
        now_s += 1.0
        order.append(name)
        return now_s

    measure = Measure({"x": Figure("x", "s")}, lambda _: {}, seconds=1.0)
    samples = in_turns(measure, {"a": lambda: take("a"), "b": lambda: take("b")}, turns, now_s=lambda: now_s)
    assert order == ["a", "b"] * taken
    assert samples["x"]["a"] == [1.0 + 2 * turn for turn in range(taken)]


def test_a_warm_up_is_dropped_and_a_launcher_may_leave_the_turns():
    order = []
    measure = Measure({"x": Figure("x", "s")}, lambda _: {}, seconds=1.0, warm_up=True, turns={"b": 1})
    takes = {"a": lambda: order.append("a") or len(order), "b": lambda: order.append("b") or len(order)}
    assert in_turns(measure, takes, Turns(0.0, 3, 3))["x"] == {"a": [3, 5, 6], "b": [4]}
    assert order == ["a", "b", "a", "b", "a", "a"]


def test_several_figures_of_a_run_are_kept_apart():
    measure = Measure({"x": Figure("x", "s"), "y": Figure("y", "s")}, lambda _: {}, seconds=1.0)
    taken = in_turns(measure, {"a": lambda: {"x": 1.0, "y": 2.0}, "b": lambda: {"x": 3.0}}, Turns(0.0, 2, 2))
    assert taken == {"x": {"a": [1.0, 1.0], "b": [3.0, 3.0]}, "y": {"a": [2.0, 2.0]}}


def test_a_figure_that_the_measure_does_not_have_is_an_error():
    measure = Measure({"x": Figure("x", "s")}, lambda _: {}, seconds=1.0)
    with pytest.raises(KeyError, match="a gives 'y', which is none of x"):
        in_turns(measure, {"a": lambda: {"y": 1.0}}, Turns(0.0, 1, 1))


def test_each_figure_has_one_name_and_a_title_of_its_own_and_all_fit_into_the_time():
    figures = [(name, figure.title) for measure in MEASURES for name, figure in measure.figures.items()]
    assert len(dict(figures)) == len({title for _, title in figures}) == len(figures)
    assert sum(measure.seconds for measure in MEASURES if measure.promised) <= 18 * 60


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["start-1"], ["start-1"]),
        (["start-?", "exit"], ["start-1", "start-2", "start-8", "exit"]),
        (["starved-p50"], ["starved-p50"]),
    ],
)
def test_figures_are_chosen_by_name_or_pattern(patterns, names):
    assert list(select(MEASURES, patterns)) == names


def test_without_a_name_all_promised_figures_are_chosen():
    chosen = select(MEASURES, [])
    assert "start-1" in chosen
    assert "starved-p50" not in chosen


@pytest.mark.parametrize(("pattern", "hint"), [("start-3", "--only start-"), ("zzz", "--list")])
def test_an_unknown_name_is_an_error_with_the_nearest_one(pattern, hint):
    with pytest.raises(SystemExit, match=rf"^--only {pattern}: no figure has this name\. Try: {hint}"):
        select(MEASURES, [pattern])


@pytest.mark.parametrize(
    ("errors", "samples", "left_out", "failed"),
    [
        ([MeasureError("no line\nmore")], 1, {}, False),
        ([MeasureError("no line\nmore")] * 2, 0, {"x": "no line"}, True),
        ([MissingError("no etcd")], 0, {"x": "no etcd"}, False),
    ],
    ids=["once", "twice", "missing"],
)
def test_a_measure_that_fails_is_taken_once_more_and_then_left_out(errors, samples, left_out, failed, monkeypatch):
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    coming = iter([*errors, 2.5])

    def take():
        if isinstance(found := next(coming), Exception):
            raise found
        return found

    runner = run.Runner(launchers={}, size="smallest")
    runner.measure({"x": Measure({"x": Figure("x", "s")}, lambda _: {OURS: take}, seconds=1.0)})
    found = runner.document({})
    assert (len(found.figures), found.left_out, runner.failed) == (samples, left_out, failed)


# --- results


def test_a_result_has_samples_estimates_and_verdicts():
    samples = {FLOOR: [10.0] * 3, OURS: [41.0, 39.0, 45.0], TORCHRUN: [1000.0] * 3}
    found = results.result(Figure("a start", "ms", {OURS: Budget(times_floor=4)}), samples)
    ours = found.launchers[OURS]
    assert (ours.samples, ours.median.value, ours.ratio) == (
        [41.0, 39.0, 45.0],
        41.0,
        Estimate(0.041, 0.039, 0.045, 0.9),
    )
    assert (ours.budget, ours.kept) == ("at most 4 times floor", False)
    assert found.launchers[TORCHRUN].ratio is None
    head, floor, ours_text, torchrun = as_text(found).splitlines()
    assert head == "a start, ms"
    assert floor.split()[:2] == ["floor", "10"]
    for words in ("41", "(39 to 45, n=3)", "0.041 of torchrun (0.039 to 0.045)", "[at most 4 times floor: MISSED]"):
        assert words in ours_text
    assert torchrun.split()[:2] == ["torchrun", "1000"]


@pytest.mark.parametrize(
    ("samples", "reference"),
    [
        ({FLOOR: [1.0], OURS: [2.0], TORCHRUN: [3.0]}, TORCHRUN),
        ({FLOOR: [1.0], OURS: [2.0]}, FLOOR),
        ({OURS: [2.0]}, None),
    ],
)
def test_ratios_are_against_torchrun_or_else_the_floor(samples, reference):
    found = results.result(Figure("a start", "ms"), samples)
    assert found.reference == reference
    assert (found.launchers[OURS].ratio is None) == (reference is None)


def test_a_figure_may_be_without_ratios():
    found = results.result(Figure("growth", "exponent", ratios=False), {OURS: [-0.1], TORCHRUN: [0.4]})
    assert (found.reference, found.launchers[OURS].ratio) == (None, None)


def test_a_file_of_results_is_read_as_it_was_written(tmp_path):
    written = document(start={FLOOR: [1.0, 2.0], OURS: [3.0, 4.5]})
    results.save(written, tmp_path / "new" / "results.json")
    assert results.load(tmp_path / "new" / "results.json") == written
    assert '"samples": [3.0, 4.5],' in (tmp_path / "new" / "results.json").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"version": 2}', "Invalid enum value 2"),
        ('{"version": 1, "date": 3}', r"Expected `str`, got `int` - at `\$.date`"),
    ],
)
def test_a_file_that_does_not_fit_the_schema_is_an_error(tmp_path, text, words):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ResultsError, match=f"results.json: .*{words}.*; expected a result file"):
        results.load(path)


def test_the_published_results_fit_the_schema_and_are_those_of_their_samples():
    published = results.load(results.PUBLISHED)
    figures = select(MEASURES, [])
    assert "start-1" in published.figures
    for name, one in published.figures.items():
        samples = {launcher: taken.samples for launcher, taken in one.launchers.items()}
        assert results.result(figures[name].figures[name], samples) == one, f"{name}: run make bench-save"


def test_the_schema_names_every_field():
    definitions = json.loads(results.schema())["$defs"]
    for kind in (Document, Machine, results.Result, results.Launcher, Estimate):
        assert set(definitions[kind.__name__]["properties"]) == {field.name for field in msgspec.structs.fields(kind)}


# --- comparison


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (Estimate(0.08, 0.07, 0.09, 0.95), Estimate(0.12, 0.10, 0.14, 0.95), Verdict.LOST),
        (Estimate(0.08, 0.07, 0.09, 0.95), Estimate(0.12, 0.08, 0.14, 0.95), Verdict.AS_BEFORE),  # not apart
        (
            Estimate(0.080, 0.079, 0.081, 0.95),
            Estimate(0.090, 0.089, 0.091, 0.95),
            Verdict.AS_BEFORE,
        ),  # within the margin
        (Estimate(0.080, 0.079, 0.081, 0.95), Estimate(0.093, 0.092, 0.094, 0.95), Verdict.LOST),
        (Estimate(0.08, 0.07, 0.09, 0.95), Estimate(0.06, 0.05, 0.065, 0.95), Verdict.BETTER),
        (Estimate(0.0, 0.0, 0.0, 0.95), Estimate(0.009, 0.008, 0.0099, 0.95), Verdict.AS_BEFORE),  # next to nothing
        (Estimate(0.0, 0.0, 0.0, 0.95), Estimate(0.05, 0.04, 0.06, 0.95), Verdict.LOST),
        (Estimate(0.08, 0.07, 0.09, 0.67), Estimate(0.8, 0.7, 0.9, 0.95), Verdict.UNKNOWN),  # too few samples
        (Estimate(0.08, 0.07, 0.09, 0.95), Estimate(0.8, 0.7, 0.9, 0.67), Verdict.UNKNOWN),
        (None, Estimate(0.8, 0.7, 0.9, 0.95), Verdict.UNKNOWN),
        (Estimate(0.08, 0.07, 0.09, 0.95), None, Verdict.UNKNOWN),
    ],
)
def test_only_ratios_that_are_apart_by_more_than_the_margin_are_lost(then, now, verdict):
    assert Comparison("start-1", OURS, TORCHRUN, then, now).verdict is verdict


def test_a_machine_that_is_three_times_as_slow_has_lost_nothing():
    slow = {FLOOR: [30.0] * 5, OURS: [300.0] * 5, TORCHRUN: [3000.0] * 5}
    then = document(start={name: [sample / 3 for sample in samples] for name, samples in slow.items()})
    found = compare.compare(then, document(start=slow))
    assert [each.verdict for each in found] == [Verdict.AS_BEFORE]
    assert compare.as_text(found) == (
        "as before    start, elastic run: 0.1 (0.1 to 0.1) of torchrun, published 0.1 (0.1 to 0.1)"
    )


def test_each_way_to_run_ours_is_compared_where_both_have_it():
    then = document(
        same={OURS: [10.0] * 4, f"{OURS} --standby": [1.0] * 4, OTHER: [1.0] * 4, TORCHRUN: [100.0] * 4},
        floor={OURS: [10.0] * 4, FLOOR: [1.0] * 4},
        gone={OURS: [10.0] * 4, TORCHRUN: [1.0] * 4},
    )
    now = document(
        same={OURS: [10.0] * 4, f"{OURS} --standby": [9.0] * 4, OTHER: [9.0] * 4, TORCHRUN: [100.0] * 4},
        floor={OURS: [20.0] * 4, FLOOR: [1.0] * 4, TORCHRUN: [100.0] * 4},
        new={OURS: [10.0] * 4, TORCHRUN: [1.0] * 4},
    )
    found = compare.compare(then, now)
    assert [(each.figure, each.launcher, str(each.verdict)) for each in found] == [
        ("same", OURS, "as before"),
        ("same", f"{OURS} --standby", "LOST"),
        ("floor", OURS, "cannot tell"),  # then there was no torchrun
    ]
    assert compare.lost(found) == ["same"]


@pytest.mark.parametrize(("again_ms", "passes"), [(100.0, True), (200.0, False)], ids=["by chance", "really"])
def test_a_check_fails_only_if_a_loss_is_measured_twice(again_ms, passes, capsys):
    class Again:
        def measure(self, figures, *, size):
            self.asked = list(figures), size

        def document(self, _versions):
            return document(start_1={OURS: [again_ms] * 5, TORCHRUN: [1000.0] * 5})

    published = document(start_1={OURS: [100.0] * 5, TORCHRUN: [1000.0] * 5})
    first = document(start_1={OURS: [200.0] * 5, TORCHRUN: [1000.0] * 5})
    again = Again()
    assert run.passes(published, first, again, {}) is passes
    assert again.asked == (["start-1"], "full")
    assert ("lost: start-1" in capsys.readouterr().out) is not passes
    assert run.passes(published, published, None, {})  # measures nothing again


def test_what_differs_between_two_machines_is_listed():
    then = document()
    other = msgspec.structs.replace(MACHINE, cores=8)
    now = msgspec.structs.replace(then, machine=other, versions={"Python": "3.11.7"})
    assert compare.elsewhere(then, then) == []
    assert compare.elsewhere(then, now) == ["cores 8 (published: 2)", "torch None (published: 2.13.0)"]


# --- the text of the page


def page(**figures):
    return json.loads(msgspec.json.encode(document(**figures)))


def test_the_page_begins_with_starts_and_the_end():
    start = {FLOOR: [20.0], OURS: [50.0], TORCHRUN: [1200.0]}
    text = benchmark_page.summary(page(start_1=start, start_8=start, exit={OURS: [8.0], TORCHRUN: [600.0]}))
    assert "starts one worker 24 times as fast as `torchrun` (50 ms against 1,200 ms)" in text
    assert "`elastic run` ends within 8 ms, `torchrun` within 600 ms" in text


@pytest.mark.parametrize(
    ("figures", "lines"),
    [
        (
            {"a": {OURS: [1.0] * 4, TORCHRUN: [2.0] * 4}},
            ["Of 1 ratios, none has an interval that is not below 1."],
        ),
        (
            {"a": {OURS: [1.0] * 4, TORCHRUN: [2.0] * 4}, "b": {OURS: [1.0], FLOOR: [1.0]}},
            [
                "Of 1 ratios, none has an interval that is not below 1.",
                "",
                "The rows of the table without a ratio (1) prove nothing.",
            ],
        ),
        (
            {
                "a": {OURS: [1.0, 2.0, 3.0, 4.0], f"{OURS} --standby": [1.0] * 4, TORCHRUN: [4.0] * 4},
                "b": {f"{OURS}, etcd": [3.0] * 4, TORCHRUN: [2.0] * 4},
            },
            [
                "Of 3 ratios, these have an interval that is not below 1:",
                "",
                "- time of a: 2.5 ms, with `torchrun` 4 ms; ratio to `torchrun` 0.625 (0.25 to 1)",
                "- time of b, etcd: 3 ms, with `torchrun` 2 ms; ratio to `torchrun` 1.5 (1.5 to 1.5)",
            ],
        ),
        (
            {
                "a": {OURS: [2.0] * 4, TORCHRUN: [4.0] * 4, FT_LAUNCHER: [1.0, 1.0, 3.0, 3.0]},
                "b": {OURS: [2.0] * 4, TORCHRUN: [4.0] * 4, FT_LAUNCHER: [3.0] * 4},
                "c": {OURS: [0.0] * 4, TORCHRUN: [4.0] * 4, FT_LAUNCHER: [0.0] * 4},  # nothing is less
            },
            [
                "Of 3 ratios, none has an interval that is not below 1.",
                "",
                "Of 3 ratios, these have an interval that is not below that of `ft_launcher`:",
                "",
                "- time of a: 2 ms, with `ft_launcher` 2 ms; ratio to `torchrun` 0.5 (0.5 to 0.5)",
            ],
        ),
    ],
    ids=["none", "one without a ratio", "two", "a peer"],
)
def test_the_page_lists_what_is_not_faster(figures, lines):
    assert benchmark_page.not_faster(page(**figures)).splitlines() == lines


def test_the_table_has_a_row_for_each_way_to_run_ours_and_a_column_for_a_peer_that_took_part():
    taken = {FLOOR: [1.0], OURS: [2.0], f"{OURS} --standby": [1.5], TORCHRUN: [4.0], FT_LAUNCHER: [8.0]}
    found = page(a=taken)
    found["left_out"] = {"b": "no etcd"}
    found["figures"]["start-1"] = found["figures"]["a"]
    first, _, *lines = benchmark_page.figures(found).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["### Start and end", "### Other figures"]
    assert lines[2].count("|") == 8
    assert (
        lines[4:6]
        == lines[-2:]
        == [
            "| time of a, ms | 1 | 2 | 4 | 8 | 0.5 (0.5 to 0.5) |  |",
            "| time of a, ms, `--standby` | 1 | 1.5 | 4 | 8 | 0.375 (0.375 to 0.375) |  |",
        ]
    )
    assert first.endswith(
        "on 2 cores of a processor, Linux 6.1, Python 3.11.7, torch 2.13.0. `b` is left out: no etcd."
    )


# --- what measures need


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


# --- the machine


@pytest.mark.parametrize(
    ("took_s", "count", "shown"),
    [([0.001] * names.LOOKUPS, names.LOOKUPS, ""), ([0.001, 5.0], 2, "the name server took 5.0 s for an address: ")],
    ids=["found at once", "a lost query"],
)
def test_a_name_server_that_loses_queries_is_reported(monkeypatch, took_s, count, shown):
    now, asked = [0.0], []

    def look_up(address, flags):
        asked.append(address[0])
        now[0] += took_s[len(asked) - 1]

    monkeypatch.setattr(names.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(names.socket, "getnameinfo", look_up)
    assert names.warning(names.longest_lookup_s()).startswith(shown)
    assert bool(names.warning(max(took_s))) == bool(shown)
    assert asked == ["::ffff:127.0.0.1"] * count
