import re

import pytest

from elastic_core.encoding import clean
from elastic_core.failure.classify import judge
from elastic_core.failure.incident import build_incident
from elastic_core.failure.report import render_attempt, render_elsewhere, render_incident
from elastic_core.logger import shows_colours
from elastic_core.system.colours import line_painter, paint_failure, paint_notice, paint_restart, report_painter
from elastic_core.types import ErrorRecord, FailureClass, Restart, Stop, WorkerExit

CODE = re.compile(r"\x1b\[[\d;]*m")
RED, YELLOW, BOLD, DIM, OFF = (f"\x1b[{code}m" for code in ("1;31", "33", "1", "2", "0"))


def an_incident(decision, *, message):
    ended = WorkerExit(local_rank=2, global_rank=2, pid=1002, code=1, at_ns=10**18, at_s=1.0, runtime_s=9.0)
    frames = (("/home/u/train.py", 10, "f0", "f1()"),)
    error = ErrorRecord(source="hook", type="ValueError", message=message, timestamp_ns=10**18, frames=frames)
    worker = judge(ended, error, log_paths=("/run/attempt_0/2/stdout.log", "/run/attempt_0/2/stderr.log"))
    fields = {"run_id": "bert-7", "node_id": "n0", "host": "gpu-12", "round_index": 3, "restart_count": 2}
    return build_incident(None, workers=[worker], decision=decision, **fields)


@pytest.mark.parametrize(
    ("terminal", "environ", "colours"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"TERM": "xterm-256color"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": "0"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "true"}, True),
        (False, {"FORCE_COLOR": ""}, False),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": "0"}, True),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "0"}, False),
        (False, {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (False, {"CI": "true", "GITHUB_ACTIONS": "true"}, False),
    ],
)
def test_stream_and_variables_decide(terminal, environ, colours):
    assert shows_colours(environ, terminal=terminal) is colours


def test_names_of_groups_are_the_styles_and_other_lines_stay():
    paint = line_painter(r"(?P<red>a+)b(?P<red_2>c)?(?P<dim>d)?")
    assert paint("aabcd!") == f"{RED}aa{OFF}b{RED}c{OFF}{DIM}d{OFF}!"
    assert paint("ab") == f"{RED}a{OFF}b"
    assert paint("xab") == "xab"
    assert paint("") == ""


@pytest.mark.parametrize("time_text", ["", "14:03:07 ", "2026-11-26T14:03:07+01:00 "])
def test_the_beginning_of_a_notice_has_a_colour(time_text):
    assert paint_notice(f"{time_text}elastic: a disk is full") == f"{time_text}{YELLOW}elastic:{OFF} a disk is full"
    assert paint_notice(f"{time_text}elastic: error: x") == f"{time_text}{RED}elastic: error:{OFF} x"
    assert paint_notice("a hook's traceback, elastic: x") == "a hook's traceback, elastic: x"


@pytest.mark.parametrize("node", ["", "n1", "n1 (fe80::1)"])
def test_parts_of_a_restart_line(node):
    where = f" on {node}" if node else ""
    line = f"elastic: rank 1 failed{where}: ValueError: it failed: 3; restart 9 (t.py:3); 2 others; restart 1 of 3 now"
    shown = paint_restart(line)
    assert CODE.sub("", shown) == line
    assert shown.startswith(f"{YELLOW}elastic: rank 1 failed{where}:{OFF}{BOLD} ValueError: it failed: 3;")
    assert shown.endswith(f"{OFF}{YELLOW}; restart 1 of 3 now{OFF}")


@pytest.mark.parametrize("decision", [Stop(reason="budget used up"), Restart(delay_s=3.0)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_rendered_texts_have_their_colours_and_are_otherwise_the_same(decision, encoding):
    incident = an_incident(decision, message="bad \x1b[31mvalue\x1b[0m")
    block = render_incident(incident, encoding=encoding, incident_path="/run/incident.json").split("\n")
    shown = [report_painter(incident.failure_class, incident.summary, decision)(line) for line in block]
    head = YELLOW if isinstance(decision, Restart) else RED
    assert [CODE.sub("", line) for line in shown] == block
    assert (shown[0], shown[-1]) == (f"{head}{block[0]}{OFF}", f"{head}{block[-1]}{OFF}")
    assert f"{BOLD}{incident.failure_class.value}: ValueError: bad ?[31mvalue?[0m{OFF}" in shown
    assert f"Incident: {DIM}/run/incident.json{OFF}" in shown
    assert any(re.fullmatch(rf"Logs: {re.escape(DIM)}/.*", line) for line in shown)
    assert any(re.fullmatch(rf"  {re.escape(DIM)}/.*:\d+ in .*", line) for line in shown)
    restart = "elastic: " + render_attempt(incident, restart=1, max_restarts=3)
    assert paint_restart(restart) != restart == CODE.sub("", paint_restart(restart))
    elsewhere = "elastic: " + render_elsewhere(incident)
    assert paint_failure(elsewhere).startswith(f"{RED}elastic: run 'bert-7' failed:{OFF} ")


def test_each_class_has_its_bold_line():
    for kind in FailureClass:
        assert report_painter(kind, "text", None)(f"{kind.value}: text") == f"{BOLD}{kind.value}: text{OFF}"


def test_each_line_of_a_long_message_is_bold_and_code_is_not():
    incident = an_incident(Stop(reason=""), message="f1() " + "of layer 12 " * 12)
    shown = render_incident(incident).split("\n")
    paint = report_painter(incident.failure_class, incident.summary, None)
    bold = [line for line in shown if BOLD in paint(line)]
    assert bold == shown[shown.index(bold[0]) : shown.index("Traceback, innermost last:")]
    assert len(bold) == 2
    assert "    f1()" in shown


def test_codes_in_foreign_text_are_gone_before_a_line_is_painted():
    assert paint_notice(clean(f"elastic: {RED}x\n{OFF}")) == f"{YELLOW}elastic:{OFF} ?[1;31mx ?[0m"
