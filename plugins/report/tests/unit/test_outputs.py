"""The trace, the Markdown and the JSON of a report, by the rules of their formats."""

import json
import re

import jsonschema
import msgspec
import pytest

import outputs_kit as kit
from elastic_core.api import encode_json
from elastic_report.ledger.states import LedgerState
from elastic_report.markdown import MOST_LINES, markdown, percent
from elastic_report.model import Difference, IncidentRow, Ratio, Report, RunFacts
from elastic_report.schema import schema
from elastic_report.trace import trace


def events(found, **wanted):
    return [event for event in trace(found)["traceEvents"] if wanted.items() <= event.items()]


# --- the trace


def test_nodes_are_processes_and_workers_are_threads():
    names = {(event["pid"], event["args"]["name"]) for event in events(kit.report(), ph="M", name="process_name")}
    assert names == {(0, "run bert-7"), (1, "node a on gpu-a"), (2, "node b on gpu-b")}
    assert {(event["tid"], event["args"]["name"]) for event in events(kit.report(), name="thread_name", pid=2)} == {
        (0, "state of the node"),
        (1, "worker 0"),
    }
    assert [event["name"] for event in events(kit.report(), pid=2, tid=1, ph="X")] == ["rank 1", "save"]


def test_spans_of_a_node_follow_each_other_in_microseconds():
    spans = events(kit.report(), pid=2, tid=0, cat="state")
    assert [(span["name"], span["ts"], span["dur"]) for span in spans] == [
        ("starting", 0, 2_000_000),
        ("productive", 2_000_000, 12_000_000),
        ("redone", 14_000_000, 6_000_000),
    ]


def test_rounds_and_incidents_are_on_the_runs_process_with_their_reasons():
    rounds = events(kit.report(), pid=0, cat="round")
    assert [(event["name"], event["dur"]) for event in rounds] == [("round 0", 8_500_000), ("round 1", 10_200_000)]
    (incident,) = events(kit.report(), cat="incident")
    assert incident["args"]["rule"] == "max-restarts"
    assert incident["args"]["recover_s"] == 3.0


def test_an_event_is_on_the_lane_of_its_node_and_one_without_a_node_on_the_runs():
    (failed,) = events(kit.report(), cat="worker_failed")
    (decision,) = events(kit.report(), cat="decision")
    assert (failed["pid"], failed["s"], failed["ts"]) == (2, "p", 9_000_000)
    assert (decision["pid"], decision["s"]) == (0, "g")


def test_a_node_of_two_attempts_has_one_process():
    state = LedgerState.PRODUCTIVE
    found = kit.report(nodes=(kit.lane("a", (state, 2.0)), kit.lane("a", (state, 3.0), attempt=1)))
    assert len(events(found, name="process_name")) == 2
    assert [event["args"]["attempt"] for event in events(found, pid=1, cat="state")] == [0, 1]


def test_a_save_that_outlives_its_worker_is_cut_at_its_end():
    marks = (("save", 8.0, 30.0), ("save", 40.0, 41.0))
    worker = msgspec.structs.replace(kit.report().nodes[1].workers[0], marks=marks)
    found = kit.report(nodes=(kit.lane("b", (LedgerState.PRODUCTIVE, 50.0), workers=(worker,)),))
    assert [(event["ts"], event["dur"]) for event in events(found, cat="checkpoint")] == [(8_000_000, 1_000_000)]


@pytest.mark.parametrize("text", ["</script>", "\x1b[31m", 'a"b', "\udcff"])
def test_any_text_is_json(text):
    found = kit.report(run=msgspec.structs.replace(kit.report().run, run_id=text, sentence=text))
    assert json.loads(json.dumps(trace(found)))["otherData"]["run_id"] == text


# --- Markdown


def test_a_ticket_gets_ten_lines_with_result_cause_time_and_difference():
    assert markdown(kit.report()) == (
        "**run 'bert-7' succeeded after 1 restart: rank 1 on b raised ValueError: boom**\n"
        "- Run: 'bert-7', train.py, 2026-09-21 14:13 UTC, 20 s, 2 nodes, 2 workers, 1 restart, exit code 0\n"
        "- Evidence: ValueError: boom (train.py:11)\n"
        "- Time: 10 s of 40 s lost: 6 s redone, 4 s starting\n"
        "- Goodput: 75.0 % (Google's formula), 80.0 to 85.0 % (NVIDIA's formula)\n"
        "- Largest losses: 6 s redone after the failure at 14:13\n"
        "- Incidents: 1; the last: round 0 failed: rank 1 on b raised ValueError: boom; restarted by max-restarts\n"
        "- Changed since run 'bert-6' of 2026-09-20: version torch: 2.13.0 before, 2.14.0 now\n"
    )


def test_there_are_never_more_than_ten_lines_and_none_is_endless():
    run = msgspec.structs.replace(kit.report().run, evidence=("x" * 5000,) * 9, membership_changes=3, attempt_count=2)
    differences = tuple(Difference(kind="option", name=f"o{n}", before="1", now="2") for n in range(99))
    lines = markdown(kit.report(run=run, differences=differences, missing=("a", "b", "c"), live=True)).splitlines()
    assert len(lines) == MOST_LINES
    assert max(map(len, lines)) < 400
    assert lines[4].startswith("- Time so far: ")
    assert lines[-1] == "- Missing: a; b; and 1 more"


def test_text_of_a_script_stays_one_line_and_is_no_markup():
    evil = "`rm -rf`\n# heading <img src=x onerror=1> [a](javascript:b) @all \x1b[2J **bold**"
    row = IncidentRow(number=1, at_s=0.0, incident=kit.incident(evil), sentence="")
    text = markdown(kit.report(incidents=(row,)))
    (line,) = [line for line in text.splitlines() if line.startswith("- Incidents")]
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)[`#<\[@]", line)


def test_a_run_of_which_little_is_known_has_two_lines():
    run = RunFacts(run_id="x", began_ns=kit.BEGAN_NS, state="unknown")
    empty = type(kit.report().account)(states={}, present_s=0.0)
    found = Report(generated_ns=kit.BEGAN_NS, source="redis at h:1", run=run, account=empty)
    assert markdown(found).splitlines() == [
        "**run 'x': unknown**",
        "- Run: 'x', 2026-09-21 14:13 UTC, 1 node, 1 worker, 0 restarts",
    ]


@pytest.mark.parametrize(
    ("low", "high", "text"), [(1.0, 1.0, "100.0 %"), (0.5, 0.75, "50.0 to 75.0 %"), (0.9301, 0.93011, "93.0 %")]
)
def test_a_ratio_that_is_not_known_exactly_is_a_range(low, high, text):
    assert percent(Ratio(low=low, high=high)) == text


# --- JSON


def test_a_report_is_valid_by_its_schema():
    jsonschema.validate(json.loads(encode_json(kit.report())), schema())


@pytest.mark.parametrize("path", [("run", "run_id"), ("account", "present_s"), ("nodes", 0, "spans", 0, 0)])
def test_the_schema_rejects_what_no_report_has(path):
    document = json.loads(encode_json(kit.report()))
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = {"no": "such value"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


def test_a_report_that_was_written_can_be_read():
    assert msgspec.json.decode(encode_json(kit.report()), type=Report) == kit.report()
