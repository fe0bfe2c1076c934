"""Colours and times in lines of the agent and of commands, on a terminal and elsewhere."""

import datetime
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from patience import patience
from support import ELASTIC, places_of_runs, wait_for
from terminal_kit import BOLD, CODE, DIM, OFF, RED, YELLOW, on_a_terminal

COMMAND = [sys.executable, "-m", "elastic_core"]
CRASH = """
import os, time
print("\\x1b[35mthe worker's own colour\\x1b[0m", flush=True)
def inner():
    raise ValueError("bad \\x1b[31mvalue\\x1b[0m")
said = f"said-{os.environ['ELASTIC_INCARNATION']}-{os.environ['ELASTIC_ROUND']}"
if os.environ["RANK"] == "1":
    while not os.path.exists(said):  # what the other worker prints is there in each run, or in none
        time.sleep(0.01)
    inner()
open(said, "w").close()
time.sleep(60)
"""
VARYING = re.compile(r"pid \d+|\d{4}-\d\d-\d\dT[\d:.]+Z|place\d")


@pytest.fixture
def shown(tmp_path):
    """Return a function that runs a command on a terminal of 100 columns, or with pipes, and returns its lines."""

    def run(words, *, terminal=True, **environ):
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **places_of_runs(tmp_path), **environ}
        if not terminal:
            ended = subprocess.run(
                words, env=env, cwd=tmp_path, timeout=patience(60), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            return ended.stdout.decode().splitlines()
        return on_a_terminal(words, env=env, cwd=tmp_path)

    return run


@pytest.fixture
def crash(tmp_path, script):
    """Return a function that returns the words of a run that restarts once, then fails; each has its own directory."""
    path, places = script(CRASH), []

    def words(*options):
        places.append(tmp_path / f"place{len(places)}")
        own = ("--run-dir", str(places[-1]), "--rdzv-id", "bert", "--nproc-per-node", "2", "--max-restarts", "1")
        return [*ELASTIC, *own, "--tee", "3", *options, str(path)]

    return words


def comparable(lines):
    """Return lines without what differs between two runs, sorted: workers write at any time."""
    return sorted(VARYING.sub("#", line) for line in lines)


def test_a_failed_run_has_colours_on_a_terminal_only(shown, crash, tmp_path):
    coloured = shown(crash())
    plain = shown(crash(), terminal=False)
    ours = [line for line in coloured if not line.startswith("[default")]
    assert comparable(CODE.sub("", line) for line in coloured) == comparable(CODE.sub("", line) for line in plain)
    assert [line for line in plain if "\x1b" in line and not line.startswith("[default")] == []
    (restart,) = [line for line in ours if "; restart 1 of 1 now" in line]
    assert restart.startswith(f"{YELLOW}elastic: rank 1 failed:{OFF}{BOLD} ValueError: bad ?[31mvalue?[0m ")
    assert restart.endswith(f"{YELLOW}; restart 1 of 1 now{OFF}")
    (head,) = [line for line in ours if "run 'bert' failed: rank 1" in line]
    block = ours[ours.index(head) :]
    assert head.startswith(f"{RED}── ")
    assert f"{BOLD}user exception: ValueError: bad ?[31mvalue?[0m{OFF}" in block
    assert f"Incident: {DIM}{tmp_path}/place0/incident.json{OFF}" in block
    assert f"{RED}{'─' * 100}{OFF}" in block
    # The script's own codes pass as they are.
    assert "[default0]:\x1b[35mthe worker's own colour\x1b[0m" in coloured
    assert "[default0]:\x1b[35mthe worker's own colour\x1b[0m" in plain
    for path in tmp_path.glob("place?/incident*.json"):
        assert "\x1b" not in path.read_text()
        assert "1;31m" not in path.read_text()


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours(shown, crash, environ):
    assert [line for line in shown(crash(), **environ) if "\x1b" in line and not line.startswith("[default")] == []


def test_colours_in_a_pipe_on_request(shown, crash):
    lines = shown(crash(), terminal=False, FORCE_COLOR="1")
    assert any(line.startswith(f"{RED}── run 'bert' failed") for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_times_of_the_agents_lines(shown, crash, terminal):
    lines = shown(crash(), terminal=terminal, PET_LOG_TIMES="iso", TZ="CET-1")
    plain = [CODE.sub("", line) for line in lines]
    head = next(index for index, line in enumerate(plain) if " ── run 'bert' failed" in line)
    assert len(plain[head]) == 100
    end = plain.index("─" * 100)
    before = [line for line in plain[:head] if not line.startswith("[default")]
    stamped = [*before, plain[head], *plain[end + 1 :]]
    assert [line for line in stamped if "elastic: " not in line and "── run" not in line] == []
    times = [datetime.datetime.fromisoformat(line.partition(" ")[0]) for line in stamped]
    assert len(times) >= 3  # the notice about threads, the restart, the block; more with hooks
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert {time.utcoffset() for time in times} == {datetime.timedelta(hours=1)}
    assert not any(re.match(r"\d{4}-", line) for line in plain[head + 1 : end])
    workers = [line for line in plain if "[default" in line]
    assert len(workers) > 4
    assert all(line.startswith("[default") for line in workers)


def test_time_of_the_line_about_an_agent_that_was_killed(elastic, script):
    agent = elastic("--log-times", "time", script("print('up', flush=True)\nimport time; time.sleep(60)"))
    wait_for(lambda: "up" in agent.out)
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: "ended without a verdict" in agent.err)
    assert re.fullmatch(r"\d\d:\d\d:\d\d elastic: agent \d+ ended without a verdict.*", agent.err.splitlines()[-1])


def test_other_values_are_rejected(elastic, script):
    agent = elastic("--log-times", "utc", script("pass"))
    assert agent.wait() == 2
    assert "--log-times" in agent.err
    assert "off, time, iso" in agent.err


def test_runs_and_their_last_incident(shown, crash, tmp_path):
    shown(crash())
    table = shown([*COMMAND, "runs"])
    assert table[0].startswith("#")
    assert re.search(rf"  bert  {re.escape(RED)}ValueError: bad \?\[31m.*{re.escape(OFF)}$", table[1])
    one = shown([*COMMAND, "runs", "1"])
    assert one[0] == f"bert  {RED}failed (exit code 1){OFF}  {tmp_path}/place0"
    assert one[1].startswith(f"{RED}── run 'bert' failed: rank 1 ")
    for words in (["runs"], ["runs", "1"]):
        coloured = [CODE.sub("", line) for line in shown([*COMMAND, *words])]
        assert coloured == shown([*COMMAND, *words], terminal=False)


def test_an_error_of_a_command(shown):
    (line,) = shown([*COMMAND, "runs", "none"])
    assert line.startswith(f"{RED}elastic: error:{OFF} no run 'none'")
    assert CODE.sub("", line) == shown([*COMMAND, "runs", "none"], terminal=False)[0]


def test_json_has_no_colours(shown):
    text = "\n".join(shown([*COMMAND, "plugins", "--json"], FORCE_COLOR="1"))
    assert "\x1b" not in text
    assert json.loads(text)
