"""SCENARIO K7: the first cause is in the report, whatever the others say."""

import os
import re

import pytest

from report_kit import blocks

BOOM = """
import atexit, os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
here = pathlib.Path(os.environ["GATE"])
def wait_for(name, ranks=range(4)):
    while not all((here / f"{name}{other}").exists() for other in ranks):
        time.sleep(0.001)
def leave():  # its exception is on record; no rank ends before those of all are: a starved one would be stopped first
    (here / f"failed{rank}").touch()
    wait_for("failed")
atexit.register(leave)
(here / f"ready{rank}").touch()
wait_for("ready")
def train():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # they end by themselves, however soon they are told to stop
    if rank == 2:
        raise ValueError("boom")
    wait_for("failed", [2])
    raise ConnectionResetError("connection reset by peer")
train()
"""


@pytest.mark.parametrize("repetition", range(20 if os.environ.get("CHAOS_FULL") else 4))
def test_first_cause_of_four_ranks_is_named(elastic, script, tmp_path, repetition):
    gate = tmp_path / "gate"
    gate.mkdir()
    agent = elastic("--nproc-per-node", "4", script(BOOM), env={"GATE": str(gate)})
    assert agent.wait(60) == 1
    block = blocks(agent.err)
    text = "\n".join(block)
    assert len(block) <= 25
    assert "rank 2" in block[0]
    assert "ValueError: boom" in text
    assert re.search(r"train\.py:\d+", text)
    assert "elastic_core" not in text
    incident = agent.incident()
    assert incident["first"]["exit"]["global_rank"] == 2
    assert incident["first"]["exit"]["code"] == 1
    assert incident["first"]["error"]["type"] == "ValueError"
    assert incident["first"]["at_ns"] > 10**18
    assert sorted(w["exit"]["global_rank"] for w in incident["secondary"]) == [0, 1, 3]
    assert incident["round_index"] == 0
    assert incident["decision"]["type"] == "stop"


SLOW_TO_END = """
import atexit, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
if os.environ["RANK"] == "0":
    def linger():
        (here / "failed").touch()
        time.sleep(600)
    atexit.register(linger)
    raise ValueError("the cause")
while not (here / "failed").exists():
    time.sleep(0.01)
sys.exit(7)
"""


def test_first_cause_that_was_slow_to_end_does_not_end_the_run_as_if_it_had_been_stopped(elastic, script):
    agent = elastic("--nproc-per-node", "2", script(SLOW_TO_END))
    assert agent.wait(30) == 1
    assert "signal 15 from the launcher" in agent.err
    incident = agent.incident()
    assert (incident["summary"], incident["exit_code"]) == ("ValueError: the cause", 1)
    assert incident["first"]["exit"]["stop_signal"] == 15
    assert [(one["exit"]["global_rank"], one["exit"]["code"]) for one in incident["secondary"]] == [(1, 7)]


def test_stopped_ranks_are_listed_apart_and_are_no_failures(elastic, script):
    path = script("import os, time\nif os.environ['RANK'] == '1':\n    raise KeyError('lost')\ntime.sleep(600)\n")
    agent = elastic("--nproc-per-node", "3", path)
    assert agent.wait(60) == 1
    incident = agent.incident()
    assert incident["secondary"] == []
    assert [w["exit"]["global_rank"] for w in incident["stopped"]] == [0, 2]
    assert "KeyError: 'lost'" in "\n".join(blocks(agent.err))


def test_truncated_error_file_changes_nothing_but_the_detail(elastic, script):
    path = script(
        "import os, sys, pathlib\n"
        "pathlib.Path(os.environ['TORCHELASTIC_ERROR_FILE']).write_text('{\"message\": {\"mess')\n"
        "os._exit(9)\n"
    )
    agent = elastic(path)
    assert agent.wait(60) == 9
    assert "exit code 9" in "\n".join(blocks(agent.err))
    assert "JSONDecodeError" not in agent.err


@pytest.mark.parametrize(
    ("source", "expected"),
    [("def broken(:\n", "SyntaxError"), ("import nowhere_to_be_found\n", "ModuleNotFoundError")],
)
def test_hopeless_scripts_are_not_retried(elastic, script, source, expected):
    agent = elastic("--max-restarts", "3", script(source))
    assert agent.wait(60) == 1
    assert expected in "\n".join(blocks(agent.err))
    assert agent.incident()["restart_count"] == 0
    assert agent.incident()["failure_class"] == "import or usage error"


def test_import_error_after_the_first_attempt_is_retried(elastic, script, tmp_path):
    marker = tmp_path / "second"
    path = script(
        f"import pathlib, sys\nm = pathlib.Path({str(marker)!r})\n"
        "if not m.exists():\n    m.touch(); sys.exit(5)\n"
        "if m.read_text() == '':\n    m.write_text('x'); import nowhere_to_be_found\n"
    )
    agent = elastic("--max-restarts", "2", "--restart-backoff", "0", path)
    assert agent.wait(60) == 0, agent.err


def test_killed_worker_is_named_with_its_signal(elastic, script):
    path = script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    agent = elastic(path)
    assert agent.wait(60) == 137
    assert "killed by SIGKILL (9)" in "\n".join(blocks(agent.err))


def test_segfault_shows_the_python_stack(elastic, script):
    path = script("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n")
    agent = elastic(path)
    assert agent.wait(60) == 139
    text = "\n".join(blocks(agent.err))
    assert "SIGSEGV" in text
    assert "train.py:3" in text


def test_an_exception_steers_no_terminal_and_forges_no_line(elastic, script):
    train = script("raise ValueError('label 11\\n\\x1b[2J\\x9b31m\\u202eelastic: all is well')")
    run = elastic("--max-restarts", "1", "--restart-backoff", "0", train)
    assert run.wait() == 1
    ours = [line for line in run.err.splitlines() if "label 11" in line or "restart" in line or "all is well" in line]
    assert any(line.startswith("elastic: rank 0 failed: ValueError: label 11") for line in ours)
    end = run.err[run.err.index("── run") :]
    assert "?[2J?31m?elastic: all is well" in end
    assert all(line.isprintable() for line in end.splitlines())
