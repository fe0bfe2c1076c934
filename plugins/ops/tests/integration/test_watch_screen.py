"""`elastic status --watch` in a real pseudo-terminal, beside real agents: sizes, keys, signals, ends, outages."""

import os
import re
import signal
import subprocess
import sys

import pytest

from patience import patience
from redis_servers import redis_server
from screen_kit import TerminalWindow
from support import wait_for

__all__ = ["redis_server"]

WAITS = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / f"up-{os.environ['ELASTIC_ROUND']}-{os.environ['RANK']}").touch()
while not (here / "finish").exists():
    order = here / f"fail-{os.environ['ELASTIC_ROUND']}-{os.environ['RANK']}"
    if order.exists():
        raise ValueError("boom [bold red]x[/bold red] \\x1b[2J\\x1b]0;title\\x07 \\u202e")
    time.sleep(0.02)
"""
STATUS = (sys.executable, "-m", "elastic_core", "status")
CLOCK = re.compile(r"\d\d:\d\d:\d\d")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The environment in which commands and agents of this test find each other."""
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)}


@pytest.fixture
def start(elastic, script, places, tmp_path):
    """Start an agent whose workers wait for files in the test's folder."""
    begun = []

    def begin(*options):
        words = ("--nproc-per-node", "2", *options, "--shutdown-timeout", "3", script(WAITS), tmp_path)
        agent = elastic(*words, env=places)
        begun.append(agent)
        wait_for((tmp_path / "up-0-1").exists, what="workers")
        wait_for(lambda: len([*tmp_path.rglob("status.json")]) == len(begun), what="a status, half a second later")
        return agent

    return begin


@pytest.fixture
def window(places):
    """Open a terminal with `elastic status` in it; each is closed at the end, and no line was too long in any."""
    opened = []

    def begin(*words, command=STATUS, **more):
        opened.append(TerminalWindow((*command, *words), **places | more))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()
    assert [each.seen().overflows for each in opened] == [[] for _ in opened]


@pytest.mark.parametrize(("columns", "lines"), [(100, 30), (60, 15), (200, 60), (20, 5)])
def test_the_screen_fits_a_terminal_of_any_size(start, window, columns, lines):
    agent = start()
    shown = window("--watch", "0.2", agent.run_id, columns=columns, lines=lines)
    shown.shows(agent.run_id if columns > 20 else agent.run_id[:4])
    text = shown.another_frame()
    rows = text.split("\n")
    assert len(rows) == lines
    assert CLOCK.search(rows[0])
    assert rows[-1].startswith("q quit")
    if columns >= 60:
        shown.shows("running", "2 workers: 2 alive", "round 0 formed: 1 node, 2 workers")
    if lines >= 24:
        shown.shows("0 restarts of 0", f"agent {agent.pid} on ")
    shown.types("q")
    assert shown.ends() == 0
    wait_for(shown.is_restored, what="the last output, and the modes")


def test_a_new_size_is_used_at_once(start, window):
    agent = start()
    shown = window("-w", "60", agent.run_id, columns=100, lines=30)
    shown.shows("2 workers: 2 alive")
    for columns, lines in ((60, 15), (132, 43), (40, 10)):
        shown.resize(columns, lines)
        wait_for(lambda lines=lines: len(shown.another_frame().split("\n")) == lines, what=f"{lines} lines")
        shown.seen().overflows.clear()  # of a frame that was on its way meanwhile
        shown.another_frame()
        shown.shows(agent.run_id[:16], "running", "q quit")


def test_colours_and_their_absence(start, window):
    agent = start()
    coloured = window("--watch", agent.run_id)
    coloured.shows("2 workers: 2 alive")
    coloured.another_frame()
    assert b"\x1b[32malive" in coloured.raw
    plain = window("--watch", agent.run_id, NO_COLOR="1")
    plain.shows("2 workers: 2 alive")
    plain.another_frame()
    assert not re.search(rb"\x1b\[[\d;]*(3[0-7]|38|9[0-7])[;m]", plain.raw)


@pytest.mark.parametrize(
    ("how", "code"),
    [("q", 0), ("\x03", 0), (signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_the_terminal_is_restored_by_every_end(start, window, how, code):
    agent = start()
    shown = window("--watch", agent.run_id)
    shown.shows("2 workers: 2 alive")
    assert not shown.is_restored()
    if isinstance(how, str):
        shown.types(how)
    else:
        shown.signals(how)
    wait_for(lambda: shown.process.poll() is not None, what="the end")
    wait_for(shown.is_restored, what="the last output, and the modes")
    assert shown.ends() == code
    assert shown.seen().shell.strip() in ("", "^C")


def test_the_terminal_is_restored_after_an_error_of_ours_which_is_readable(start, window):
    agent = start()
    text = (
        "import elastic_ops.status.live as live\n"
        "def broken(*args, **more):\n"
        "    if broken.calls: raise RuntimeError('the screen is broken')\n"
        "    broken.calls = 1\n"
        "    return right(*args, **more)\n"
        "right, live.content_of_run, broken.calls = live.content_of_run, broken, 0\n"
        "from elastic_core.cli.main import elastic_process\n"
        f"elastic_process(['status', '--watch', '0.2', {agent.run_id!r}])\n"
    )
    shown = window(command=(sys.executable, "-c", text))
    assert shown.ends() != 0
    wait_for(shown.is_restored, what="the last output, and the modes")
    assert "the screen is broken" in shown.seen().shell


def test_a_failure_is_shown_and_its_text_can_not_steer_the_terminal(start, window, tmp_path):
    agent = start("--max-restarts", "2", "--restart-backoff", "0")
    shown = window("--watch", "0.2", agent.run_id, columns=160)
    shown.shows("2 workers: 2 alive")
    (tmp_path / "fail-0-1").touch()
    text = shown.shows("round 1 formed: 1 node, 2 workers", "1 restart of 2", "decision: restart (max-restarts)")
    failed = "rank 1 on .* failed: ValueError: boom \\[bold red\\]x\\[/bold red\\] \\?\\[2J\\?\\]0;title\\?"
    assert re.search(failed, text)
    assert re.search(rf"last incident \(of 1, .* ago\): {failed}", text)
    assert "\u202e" not in text


def test_the_last_state_is_printed_when_the_run_is_over(start, window, tmp_path):
    agent = start("--run-dir", tmp_path / "mine")
    shown = window("--watch", "0.2", tmp_path / "mine")
    shown.shows("2 workers: 2 alive")
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert shown.ends() == 0
    wait_for(shown.is_restored, what="the last output, and the modes")
    shell = shown.seen().shell
    assert f"run '{agent.run_id}': done, round 0" in shell
    assert "verdict: done, exit code 0" in shell


def test_a_run_that_leaves_nothing_is_said_to_be_over(start, window, tmp_path):
    agent = start()
    shown = window("--watch", "0.2", agent.run_id)
    shown.shows("2 workers: 2 alive")
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert shown.ends() == 0
    # The last look may find the directory with the end of the run in it, which the agent removes a moment later.
    assert re.search("its run directory is gone|verdict: done, exit code 0", shown.seen().shell)


def test_a_killed_agent_ends_the_screen(start, window):
    agent = start()
    shown = window("--watch", "0.2", agent.run_id)
    shown.shows("2 workers: 2 alive")
    agent.signal(signal.SIGKILL)
    agent.wait()
    assert shown.ends() == 0
    wait_for(shown.is_restored, what="the last output, and the modes")
    assert f"run '{agent.run_id}': agent dead" in shown.seen().shell
    assert "it is dead" in shown.seen().shell


def test_several_runs_are_listed_and_one_that_ends_goes(start, window, tmp_path):
    agents = [start(), start()]
    shown = window("--watch", "0.2", columns=160)
    shown.shows("2 agents: 2 running", *(agent.run_id for agent in agents), "elastic status --watch RUN")
    agents[0].signal(signal.SIGTERM)
    agents[0].wait()
    shown.shows("2 workers: 2 alive", agents[1].run_id)  # one alone is shown in full
    (tmp_path / "finish").touch()
    assert agents[1].wait() == 0
    assert shown.ends() == 0
    assert re.search("no agent of this user runs on this host|verdict: done, exit code 0", shown.seen().shell)


def test_a_store_that_is_down_meanwhile(elastic, script, places, window, redis_server, tmp_path):
    store = ("--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "both")
    agents = [
        elastic("--nnodes", "2", "--node-id", name, *store, script(WAITS), tmp_path, env=places) for name in ("a", "b")
    ]
    wait_for((tmp_path / "up-0-1").exists, within_s=40, what="workers")
    shown = window("--watch", "0.2", "--connect-timeout", f"{patience(2):g}", *store, columns=160, lines=40)
    shown.shows("2 nodes: 2 running", "round 0", "read in")
    redis_server.pause()
    try:
        shown.shows("unreachable for", "store unreachable")
        shown.another_frame()  # the clock goes on
        assert "2 nodes: 2 running" in shown.seen().text
        shown.types("\x1b[B")
    finally:
        redis_server.resume()
    shown.shows("store reachable again", "read in")
    shown.types("q")
    assert shown.ends() == 0
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_without_a_screen_gets_lines(start, window, env):
    agent = start()
    shown = window("--watch", "0.2", agent.run_id, **env)
    shown.shows(f"run '{agent.run_id}': running, round 0", "LOCAL RANK  RANK  PID")
    assert b"\x1b" not in shown.raw
    shown.types("\x03")
    assert shown.ends() == 0


def test_json_has_no_screen(start, window):
    agent = start()
    shown = window("--watch", "0.2", "--json", agent.run_id, columns=4000)
    shown.shows('{"schema_version":1,"runs":[{"run_id":')
    assert b"\x1b" not in shown.raw


@pytest.mark.parametrize("words", [("--watch",), ("-w",), ("--watch", "0.1"), ("-w2",), ("--watch=1m",), ()])
def test_rich_is_imported_only_for_a_screen(start, places, words):
    agent = start()
    agent.signal(signal.SIGKILL)
    agent.wait()
    for each in ((*words, agent.run_id), (agent.run_id, *words)):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *STATUS[1:], *each],
            env=os.environ | places,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(30),
            check=False,
        )
        assert done.returncode == 0
        assert "agent dead" in done.stdout
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "elastic_ops.status.page" in imported
        assert not imported & {"rich", "elastic_ops.status.live", "elastic_ops.status.drawing"}
