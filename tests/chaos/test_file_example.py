"""The tutorial's backend carries the core's whole rendezvous: agents meet in a directory, come, fail, leave and die."""

import fcntl
import io
import os
import signal
import time
import tokenize

import pytest

from chaos.multi_node import LEASE_S, SLACK_S, Run
from patience import kept
from support import wait_for
from wheel_kit import ROOT

SOURCE = ROOT / "examples/plugins/rendezvous_file/src"
METADATA = "Metadata-Version: 2.1\nName: elastic-example-rendezvous-file\nVersion: 1.0.0\n"
ENTRY_POINTS = "[elastic_core.rendezvous]\nfile = elastic_example_rendezvous_file:FileStore\n"


@pytest.fixture
def run(elastic, tmp_path, monkeypatch):
    """Return a run whose agents find the example as if it was installed."""
    info = tmp_path / "site/elastic_example_rendezvous_file-1.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}{os.pathsep}{SOURCE}")
    (tmp_path / "directory").mkdir()
    run = Run(elastic, tmp_path, endpoint=str(tmp_path / "directory"))
    run.backend = "file"
    return run


def lines_of_code(source):
    """Count lines that are neither blank nor comment nor part of a docstring."""
    noise = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines, begins = set(), True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in noise and not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = token.type in noise
    return len(lines)


def test_it_is_as_short_as_the_tutorial_says():
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert lines_of_code(source) <= 150


def pair(run):
    a = run.node("a", "1:2", "--max-restarts", "1")
    a.said(world=1)
    b = run.node("b", "1:2", "--max-restarts", "1")
    a.said(world=2)
    b.said(world=2)
    return a, b


def test_a_join_a_crash_and_a_lost_node(run):
    a, b = pair(run)
    run.exit_rank(1, 1, 3)
    assert b.said(world=2, gen=2)["restarts"] == 1
    assert a.said(world=2, gen=2)["restarts"] == 1
    began_s = time.monotonic()
    b.power_off()
    alone = a.said(world=1, gen=3)
    kept(time.monotonic() - began_s, LEASE_S + SLACK_S)
    assert (alone["restarts"], alone["changes"]) == (1, 2)
    run.all_end(a)


def test_the_guard_of_a_killed_agent_gives_its_seat_back(run):
    a, b = pair(run)
    began_s = time.monotonic()
    b.kill_agent()
    a.said(world=1, gen=2, within_s=LEASE_S)
    kept(time.monotonic() - began_s, LEASE_S)
    run.all_end(a)


def test_one_who_is_stopped_with_the_lock_keeps_the_others_waiting_and_nothing_else(run):
    """The tutorial's limit: workers go on, and when it is back, so does the run."""
    a, b = pair(run)
    pids = [node.said(world=2)["pid"] for node in (a, b)]
    (lock,) = (run.shared.parent / "directory").glob("*/lock")
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        a.told("does not answer")
        later_s = time.monotonic() + 1.2 * LEASE_S
        for node, pid in zip((a, b), pids, strict=True):
            wait_for(lambda node=node, pid=pid: node.last_alive_s(pid) > later_s)
    a.told("store back", within_s=2 * LEASE_S)
    assert [node.says()[-1]["pid"] for node in (a, b)] == pids
    run.all_end(a, b)


def test_a_stop_signal_leaves_the_run_in_order(run):
    a, b = pair(run)
    b.agent.signal(signal.SIGTERM)
    a.said(world=1, gen=2, within_s=LEASE_S + SLACK_S)
    b.ends(128 + signal.SIGTERM)
    run.all_end(a)
