"""Any worker's failure anywhere stops all workers everywhere at once; one decision, one report, one exit code."""

import os
import re
import signal
import socket
import time

import pytest

from chaos.multi_node import LEASE_S, SLACK_S, Run
from patience import kept
from proc_kit import is_alive, state_of
from support import wait_for
from time_limits import SPREAD_S

WORKER = """
import atexit, json, os, pathlib, sys, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
rank = int(env["RANK"])
says = dict(node=env["ELASTIC_NODE_ID"], rank=rank, world=int(env["WORLD_SIZE"]), gen=int(env["ELASTIC_ROUND"]),
            restarts=int(env["TORCHELASTIC_RESTART_COUNT"]), pid=os.getpid())
mark = os.open(shared / f"alive-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600)
os.pwrite(mark, b"%020.6f" % time.monotonic(), 0)
os.write(1, (json.dumps(says) + os.linesep).encode())
def reset():
    (shared / "waits").touch()
    while not (shared / "raised").exists():
        time.sleep(0.001)
    atexit.register((shared / "broken").touch)
    raise ConnectionResetError("Connection reset by peer")
def end():
    (shared / "raised").touch()  # as connections do, they break when the exception ends the process
    while (shared / "waits").exists() and not (shared / "broken").exists():
        time.sleep(0.001)  # on a busy machine the other one would be stopped before it saw its connection break
def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
def boom():
    atexit.register(end)
    raise ValueError(f"label {rank} is not a digit")
while not (shared / "finish").exists():
    order = shared / f"order-{rank}-{says['gen']}"
    if order.exists():
        what, _, at = order.read_text().partition(" ")
        if at.startswith("after "):
            while not has_ended(at.removeprefix("after ")):
                time.sleep(0.001)
            os._exit(int(what))  # an interpreter that ends in its own way could be stopped meanwhile
        time.sleep(max(0.0, float(at or 0) - time.monotonic()))
        os.write(1, f"failed {time.monotonic()}\\n".encode())
        if what == "done": sys.exit(0)
        if what == "kill": os.kill(os.getpid(), 9)
        {"boom": boom, "reset": reset}.get(what, lambda: sys.exit(int(what)))()
    os.pwrite(mark, b"%020.6f" % time.monotonic(), 0)
    time.sleep(0.002)
"""


@pytest.fixture
def job(served_run):
    """Return a run whose workers do as they are told."""
    served_run.script.write_text(WORKER)
    return served_run


@pytest.fixture
def any_job(run):
    """Return the same, also where the first node brings the store."""
    run.script.write_text(WORKER)
    return run


@pytest.fixture
def troubled_job(troubled_run):
    """Return the same in a store that may be paused and stopped."""
    troubled_run.script.write_text(WORKER)
    return troubled_run


def start(job, names, *options):
    nodes = [job.node(name, str(len(names)), *options) for name in names]
    return nodes, [node.said(world=len(names), gen=0) for node in nodes]


def order(job, rank, what, gen=0):
    file = job.shared / "new-order"
    file.write_text(what)
    file.rename(job.shared / f"order-{rank}-{gen}")


def failed_s(node):
    return float(node.agent.out.partition("failed ")[2].split()[0])


def rank_of(said, nodes, name):
    return next(line["rank"] for line, node in zip(said, nodes, strict=True) if node.name == name)


def all_end_with(nodes, code, within_s=10):
    """Wait until all have ended with this code, and return the one report; the other nodes name its node."""
    assert [node.agent.wait(within_s) for node in nodes] == [code] * len(nodes), [node.agent.err for node in nodes]
    (teller,) = (node for node in nodes if "── run" in node.agent.err)
    told = teller.agent.err[teller.agent.err.index("── run") :]
    assert len(told.splitlines()) <= 25
    rank = re.search(r"failed: rank (\d+)", told)[1]
    assert f"Incident on {socket.gethostname()}: {teller.agent.incident_path()}" in told
    for node in nodes:
        if node is not teller:
            (line,) = (line for line in node.agent.err.splitlines() if "the report is that node's" in line)
            assert line.startswith(f"elastic: run '{teller.agent.run_id}' failed: rank {rank} on {teller.name} (")
            assert line.endswith(f"; incident on {socket.gethostname()}: {node.agent.incident_path()}")
    return told


@pytest.mark.parametrize("failing", ["a", "c"])
def test_any_failure_stops_four_nodes_within_a_second_and_all_tell_the_same(job, failing):
    nodes, said = start(job, "abcd")
    order(job, rank_of(said, nodes, failing), "boom")
    text = all_end_with(nodes, 1)
    at_s = failed_s(next(node for node in nodes if node.name == failing))
    late = {node.name: node.last_alive_s(line["pid"]) - at_s for node, line in zip(nodes, said, strict=True)}
    kept(max(late.values()), SPREAD_S)
    assert "is not a digit" in text
    assert "in boom" in text
    assert f"on {failing}" in text
    assert "3 others stopped because of it, on 4 nodes" in text
    incidents = [node.agent.incident() for node in nodes]
    for incident in incidents:
        kept(incident.pop("phases")["stop_s"], SPREAD_S)
        assert (incident["node_count"], incident["report_count"]) == (4, 4)
        assert incident["decision"]["type"] == "stop"
    assert all(incident == incidents[0] for incident in incidents)


def test_of_two_nodes_that_fail_within_milliseconds_all_name_the_same(job):
    nodes, said = start(job, "abcd")
    pids = {node.name: line["pid"] for line, node in zip(said, nodes, strict=True)}
    agent = next(node.agent.pid for node in nodes if node.name == "d")
    os.kill(agent, signal.SIGSTOP)  # so that it does not have the other one stopped before that one has failed
    order(job, rank_of(said, nodes, "b"), f"7 after {pids['d']}")
    order(job, rank_of(said, nodes, "d"), "9")
    wait_for(lambda: not any(is_alive(pids[name]) for name in "bd"), what="the ends of both workers")
    os.kill(agent, signal.SIGCONT)
    codes = {node.agent.wait(10) for node in nodes}
    assert codes in ({7}, {9}), codes
    (code,) = codes
    text = all_end_with(nodes, code)
    first = "d" if code == 9 else "b"
    assert f"rank {rank_of(said, nodes, first)} (local rank 0) on {first}" in text
    assert "2 others stopped because of it, 1 other failed after it, on 4 nodes" in text


def test_the_exception_comes_before_the_connections_that_it_broke(job):
    nodes, said = start(job, "ab")
    order(job, rank_of(said, nodes, "a"), "reset")
    wait_for((job.shared / "waits").exists, what="a's worker to wait for the exception")
    order(job, rank_of(said, nodes, "b"), "boom")
    text = all_end_with(nodes, 1)
    assert "is not a digit" in text.partition("1 other failed after it")[0], nodes[0].agent.incident()["nodes"]
    assert "ConnectionResetError" in text.partition("1 other failed after it")[2]


def test_a_restart_is_told_and_counted_the_same_on_all_nodes(job):
    nodes, said = start(job, "ab", "--max-restarts", "1")
    order(job, rank_of(said, nodes, "b"), "kill")
    assert {node.said(gen=1)["restarts"] for node in nodes} == {1}
    lines = [next(line for line in node.agent.err.splitlines() if "restart 1 of 1" in line) for node in nodes]
    rank = rank_of(said, nodes, "b")
    host = socket.gethostname()
    assert lines[0] == f"elastic: rank {rank} failed on b ({host}): killed by SIGKILL (9); restart 1 of 1 now"
    assert lines[1] == f"elastic: rank {rank} failed: killed by SIGKILL (9) (on b); restart 1 of 1 now"
    order(job, rank_of(said, nodes, "a"), "9", gen=1)
    assert "restart budget of 1 used up" in all_end_with(nodes, 9)


@pytest.mark.parametrize("failing", ["a", "b"])
def test_the_other_node_is_stopped_and_names_where_it_failed(any_job, failing):
    nodes, said = start(any_job, "ab")
    rank = rank_of(said, nodes, failing)
    order(any_job, rank, "7")
    text = all_end_with(nodes, 7, within_s=5)
    assert f"failed: rank {rank} " in text
    assert f"on {failing} ({socket.gethostname()})" in text
    assert "exit code 7" in text


@pytest.mark.parametrize("pause_s", [0.0, pytest.param(2.5 * LEASE_S, marks=pytest.mark.chaos_full)])
def test_a_node_that_has_finished_does_not_end_well_when_another_fails(any_job, pause_s):
    job = any_job
    nodes, said = start(job, "ab")
    order(job, rank_of(said, nodes, "a"), "done")
    wait_for(lambda: state_of(said[0]["pid"]) is None, what="a to know that its worker has finished")
    order(job, rank_of(said, nodes, "b"), f"7 {time.monotonic() + pause_s}")
    assert "1 worker had finished before" in all_end_with(nodes, 7)


def test_a_leader_that_is_killed_between_stop_and_decision_changes_nothing(job):
    job.script.write_text(WORKER.replace("says = ", "SLOW\nsays = ").replace("SLOW", SLOW))
    nodes, said = start(job, "abcd", "--shutdown-timeout", "3")
    order(job, rank_of(said, nodes, "c"), "7")
    wait_for(lambda: not is_alive(said[0]["pid"]), within_s=3, what="the leader's worker to be stopped")
    nodes[0].kill_agent()
    text = all_end_with(nodes[1:], 7, within_s=LEASE_S + SLACK_S + 5)
    assert "on c" in text


SLOW = """if env["ELASTIC_NODE_ID"] == "b":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def test_a_store_that_comes_back_while_a_decision_is_awaited(troubled_job):
    job = troubled_job
    nodes, said = start(job, "ab")
    job.server.pause()
    order(job, rank_of(said, nodes, "b"), "7")
    wait_for(lambda: not is_alive(said[1]["pid"]), what="b's worker to fail")
    job.server.resume()
    all_end_with(nodes, 7)


def test_a_store_that_stays_away_leaves_each_node_to_itself(troubled_job):
    job = troubled_job
    nodes, said = start(job, "ab", "--store-outage-grace", "2")
    job.server.stop()
    order(job, rank_of(said, nodes, "b"), "7")
    assert nodes[1].agent.wait(10) == 7
    assert "exit code 7" in nodes[1].agent.err


def test_a_store_that_dies_with_its_host_before_the_decision_masks_no_failure(elastic, tmp_path):
    job = Run(elastic, tmp_path)
    job.script.write_text(WORKER.replace("says = ", "SLOW\nsays = ").replace("SLOW", SLOW.replace('"b"', '"a"')))
    (a, b), said = start(job, "ab")
    order(job, rank_of(said, (a, b), "b"), "7")
    wait_for(lambda: not is_alive(said[1]["pid"]), what="b's worker to fail")
    a.power_off()
    assert b.agent.wait(LEASE_S + SLACK_S) == 7
    assert "exit code 7" in b.agent.err
    assert "hosts the rendezvous store" in b.agent.err


AGAIN = """
import os
raise RuntimeError(f"state of 2 ranks, {os.environ['WORLD_SIZE']} are here (pid {os.getpid()})")
"""


def test_a_failure_that_repeats_ends_the_run_on_all_nodes(redis_run):
    redis_run.script.write_text(AGAIN)
    options = ("--max-restarts", "9", "--same-failure-limit", "3")
    nodes = [redis_run.node(name, "2", *options) for name in "ab"]
    assert [node.agent.wait() for node in nodes] == [1, 1]
    for node in nodes:
        assert "the same failure 2 times in a row, and no step between; restart 2 of 9 now" in node.agent.err
        told = node.agent.incident()["decision"]
        assert told["rule"] == "same-failure-limit"
        assert told["reason"].startswith(
            "the same failure 3 times in a row, and no step between (--same-failure-limit 3"
        )
