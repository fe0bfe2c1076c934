"""Runs with known truth: what their scripts wrote themselves is compared with the report, and with its page."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from elastic_report.ledger.states import LedgerState as S
from patience import patience
from ports import free_port
from redis_servers import PASSWORD, RedisServer
from support import wait_for
from truth_kit import (
    SLACK_S,
    Place,
    Shown,
    at_s,
    check_near,
    check_page,
    check_sums,
    collect,
    seconds_of,
)

CRASHES = """
from truth import *
from elastic_train import restoring, saving, should_stop
time.sleep(0.1 + 0.2 * rank)
if restart:
    note("restore begins")
    with restoring():
        time.sleep(0.4)
    note("restore ended")
time.sleep(0.1)
for step in range(10 if restart else 0, 10_000):
    should_stop(step=step)
    note("step", step=step)
    time.sleep(0.04)
    if step == 14:
        note("save begins")
        with saving():
            time.sleep(0.3 + 0.2 * rank)
        note("save ended")
    if step == (70 if restart else 30) and rank == 1:
        note("crash")
        raise ValueError("boom")
"""

HANGS = """
from truth import *
from elastic_core.worker import heartbeat
time.sleep(0.1 * rank)
for step in range(5 if restart else 0, 45):
    heartbeat(step=step)
    note("step", step=step)
    time.sleep(0.05)
    if step == 14 + 4 * rank and not restart:
        time.sleep(600)
"""
NODES = """
from truth import *
from elastic_train import ready_to_stop, saving, should_stop
step = 0
while not (place / "finish").exists():
    stops = should_stop(step=step)
    note("step", step=step)
    if stops:
        note("save begins")
        with saving():
            time.sleep(0.3)
        note("save ended")
        ready_to_stop()
        time.sleep(600)
    time.sleep(0.05)
    step += 1
note("end")
"""
NO_STEPS = """
from truth import *
time.sleep(1.2)
note("end")
sys.exit(0 if restart else 3)
"""
ATTEMPTS = """
from truth import *
from elastic_train import should_stop
first, last = map(int, sys.argv[1:])
time.sleep(1.5)  # the ledger begins after half a second, and knows the steps of earlier attempts since then
for step in range(first, last):
    should_stop(step=step)
    note("step", step=step)
    time.sleep(0.04)
note("end")
sys.exit(0 if first else 3)
"""

SECRETS = """
import os, time
time.sleep(1.2)
raise ConnectionError("no route to " + os.environ["SECRET_URL"] + " password=" + os.environ["API_TOKEN"])
"""


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def server(tmp_path):
    made = RedisServer(tmp_path / "redis", config=("--requirepass", PASSWORD))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def show(opened):
    """Return a page's figures, as the browser has them."""

    def shown(html):
        found = opened(html)
        assert found.complaints == []
        return Shown(found.page)

    return shown


def test_a_crash_with_redone_steps_and_a_second_that_ends_the_run(place, show):
    place.script("crashes.py", CRASHES)
    agent = place.run(1, "--rdzv-id", "crashes", "--max-restarts", 1, "--nproc-per-node", 2, "crashes.py")
    report, html = place.report("crashes")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)

    states = report["account"]["states"]
    assert report["account"]["present_s"] == pytest.approx(agent.present_s, abs=patience(0.5))
    crashes, stops = truth.of("crash"), truth.of("stop signal")
    exits = truth.of("exit")
    high = truth.highest_step[0]
    earliest, latest = (
        [
            truth.states(0, truth.of("alive", round=0)[0].s, ends[0].s),
            truth.states(1, truth.of("alive", round=1)[0].s, ends[1].s, high=high),
        ]
        for ends in (crashes, stops)
    )
    expected = {}
    for state in (S.PRODUCTIVE, S.SAVING, S.RESTORING, S.REDONE):
        low, high_s = (sum(each.get(state, 0.0) for each in both) for both in (earliest, latest))
        expected[state] = low, high_s
        check_near(states.get(state, 0.0), low, high_s, state)
        check_near(seconds_of(shown.states[state]), low, high_s, f"the page: {state}")
    assert states["redone"] > 0.5
    stopping_s = sum(end.s - stop.s for stop, end in zip(stops, exits, strict=True))
    check_near(states["stopping"], stopping_s, stopping_s, "stopping", 2 * SLACK_S)
    deciding_s = sum(stop.s - crash.s for crash, stop in zip(crashes, stops, strict=True))
    check_near(states["deciding"], 0.0, deciding_s, "deciding")
    before_s = sum(
        max(event.s for event in (truth.of("step", round=number, rank=rank)[0] for rank in range(2))) - begin_s
        for number, begin_s in ((0, agent.before_s), (1, exits[0].s))
    )
    forming_s = before_s - expected[S.RESTORING][0]
    check_near(states["rendezvous"] + states["starting"], forming_s, forming_s, "rendezvous and starting")

    first, second = report["incidents"]
    for row, crash, stop in zip((first, second), crashes, stops, strict=True):
        check_near(row["at_s"], at_s(report, crash), at_s(report, crash), "the incident's time")
        check_near(row["detect_s"], 0.0, stop.s - crash.s, "detect")
        on_page = shown.incident(row["number"])
        assert float(on_page["at"]) == pytest.approx(crash.ns / 1e9, abs=patience(SLACK_S))
        check_near(seconds_of(on_page["Time to detect"]), 0.0, stop.s - crash.s, "the page: detect")
    back_s = max(truth.of("step", round=1, rank=rank)[0].s for rank in range(2))
    check_near(first["recover_s"], back_s - stops[0].s, back_s - crashes[0].s, "recover")
    check_near(seconds_of(shown.incident(1)["Time to recover"]), back_s - stops[0].s, back_s - crashes[0].s, "page")
    assert second["recover_s"] is None
    assert "did not recover" in shown.incident(2)["Time to recover"]
    for row in (first, second):
        saved = max(event.ns for event in truth.of("save ended", restart=row["number"] - 1)) / 1e9
        assert row["last_save_s"] + report["run"]["began_ns"] / 1e9 == pytest.approx(saved, abs=patience(SLACK_S))
    low, high_s = expected[S.REDONE]
    check_near(first["lost_s"], back_s - stops[0].s + low, back_s - crashes[0].s + high_s, "lost by the first")
    check_near(second["lost_s"], exits[1].s - stops[1].s, exits[1].s - crashes[1].s, "lost by the second")

    bars = report["nodes"][0]["workers"]
    for _, rank, number, _, _, code, stopped, marks, first_step, last_step in bars:
        own = truth.of("step", rank=rank, round=number)
        assert first_step == own[0].step
        assert last_step in (own[-1].step, own[-1].step + 1)  # it was reported, and not noted yet
        assert (code, stopped) == ((1, False) if rank == 1 else (0, True))
        assert [mark[0] for mark in marks] == (["restore", "save"] if number else ["save"])
        noted = [
            at_s(report, event)
            for event in truth.events
            if (event.rank, event.round) == (rank, number) and event.what.startswith(("save", "restore"))
        ]
        assert [moment for mark in marks for moment in mark[1:]] == pytest.approx(noted, abs=patience(SLACK_S))

    account = report["account"]
    productive_s, present_s = states["productive"], account["present_s"]
    assert account["goodput"]["low"] == account["goodput"]["high"] == pytest.approx(productive_s / present_s)
    names = [name for _, name, _ in shown.events]
    assert [names.count(name) for name in ("failure", "decision", "worker failed", "incident")] == [2, 2, 2, 2]
    assert names.count("save") == sum(span[0] == "saving" for span in report["nodes"][0]["spans"])
    assert "redone after the failure at" in account["sentence"] + " ".join(lost["text"] for lost in account["lost"])


def test_a_hang_counts_from_the_last_progress_to_its_detection(place, show):
    place.script("hangs.py", HANGS)
    words = ("--rdzv-id", "hangs", "--max-restarts", 1, "--nproc-per-node", 2, "--hang-timeout", 2)
    agent = place.run(0, *words, "hangs.py")
    report, html = place.report("hangs")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)
    states = report["account"]["states"]
    assert report["account"]["present_s"] == pytest.approx(agent.present_s, abs=patience(0.5))
    steps = truth.of("step", round=0)
    last = [max(event.s for event in steps if event.rank == rank) for rank in range(2)]
    stopped_s = truth.of("stop signal")[0].s
    # An agent that was not scheduled for a while does not count that time as its workers' hang.
    latest_s = max(max(last), stopped_s - 2.0)
    for found in (states["hung"], seconds_of(shown.states["hung"])):
        check_near(found, 2.0, stopped_s - min(last), "hung")
    first_s = max(truth.of("step", round=0, rank=rank)[0].s for rank in range(2))
    again = [truth.of("step", round=1, rank=rank) for rank in range(2)]
    high = truth.highest_step[0]
    ended_s = [each[-1].s + 0.05 for each in again]
    second = truth.states(1, min(each[0].s for each in again), min(ended_s), high=high)
    redone_s = second[S.REDONE]
    check_near(states["redone"], redone_s, redone_s, "redone")
    low, high_s = (
        min(last) - first_s + second.get(S.PRODUCTIVE, 0.0),
        latest_s - first_s + second.get(S.PRODUCTIVE, 0.0) + 0.1,
    )
    # Workers end one after the other, and the last one's end is noticed before the agent's.
    check_near(states["productive"], low, high_s + agent.ended_s - min(ended_s), "productive")
    (incident,) = report["incidents"]
    assert incident["incident"]["hang"]
    check_near(incident["recover_s"], 0.0, max(each[0].s for each in again) - min(last) - 2.0, "recover")
    lost_s = max(each[0].s for each in again) - min(last) + redone_s
    check_near(incident["lost_s"], lost_s - (latest_s - min(last)), lost_s, "lost", 2 * SLACK_S)
    hung = [span for span in report["nodes"][0]["spans"] if span[0] == "hung"]
    assert len(hung) == 1
    began_s = min(max(event.ns for event in steps if event.rank == rank) for rank in range(2)) / 1e9
    began_s -= report["run"]["began_ns"] / 1e9
    check_near(hung[0][1], began_s, began_s + latest_s - min(last), "begin of the hang")
    assert [name for _, name, _ in shown.events].count("hang") == 1


def endpoint_of(server):
    """Return the address with the password."""
    return f"redis://:{PASSWORD}@{server.endpoint}"


def play_nodes(place, server):
    """Drain one of two nodes; another one joins and dies. Return the agents, the round of the death, and its time."""
    place.script("nodes.py", NODES)
    store = ("--rdzv-backend", "redis", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id", "nodes")
    conf = ("--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1")
    words = (*store, *conf, "--nnodes", "1:2", "--max-restarts", 0, "nodes.py")

    def start(name):
        return place.start("--run-dir", f"dir-{name}", *words, node=name)

    agents = {"n0": start("n0")}
    place.until("step")
    agents["n1"] = start("n1")
    both = place.until("step", node="n1", step=20).round
    place.until("step", node="n0", round=both, step=20)
    agents["n1"].process.send_signal(signal.SIGTERM)
    agents["n1"].end(143)
    place.until("step", node="n0", round=both + 1, step=5)
    agents["n2"] = start("n2")
    last = place.until("step", node="n2").round
    beyond = 20 + max(step for number, step in place.truth().highest_step.items() if number < last)
    for name in ("n2", "n0"):
        place.until("step", node=name, round=last, step=beyond)
    killed_s = time.monotonic()
    agents["n2"].process.kill()
    agents["n2"].end(-9)
    place.until("step", node="n0", round=last + 1, step=5)
    (place.folder / "finish").touch()
    agents["n0"].end(0)
    return agents, last, killed_s


def test_nodes_that_leave_join_and_die(place, show, server):
    agents, last, killed_s = play_nodes(place, server)
    report, html = place.report("nodes")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)
    lanes = {lane["node_id"]: lane for lane in report["nodes"]}
    assert {name: lane["outcome"] for name, lane in lanes.items()} == {"n0": "succeeded", "n1": "stopped", "n2": "lost"}
    stops = {(event.node, event.round): event for event in truth.of("stop signal")}

    # What workers did, in each round, until they were stopped.
    for name in ("n0", "n1"):
        noted, reported = Counter(), Counter()
        high = -1
        for number in range(last + 2):
            alive = truth.of("alive", node=name, round=number)
            if alive:
                end = stops.get((name, number)) or truth.one("end")
                noted.update(truth.states(number, alive[0].s, end.s, high=high, node=name))
                # A worker that was stopped may have reported one step more than it noted.
                reported.update(truth.states(number, alive[0].s, end.s, high=high + (number > 0), node=name))
            high = max(high, truth.highest_step.get(number, -1))
        for state in (S.PRODUCTIVE, S.REDONE, S.SAVING):
            low_s, high_s = sorted((noted[state], reported[state]))
            check_near(lanes[name]["states"].get(state, 0.0), low_s, high_s, (name, state))
        presence_s = sum(lanes[name]["states"].values())
        assert presence_s == pytest.approx(agents[name].present_s, abs=patience(0.5))

    # The drain.
    drained = truth.one("stop signal", node="n1")
    check_near(lanes["n1"]["states"]["drained"], 0.3, agents["n1"].ended_s - drained.s, "drained")
    (left,) = [row for row in report["rounds"] if row["left"]]
    assert (left["left"], left["joined"], left["index"]) == (["n1"], ["n1"], drained.round)

    # The node that died: it hung until it was declared lost.
    declared = stops["n0", last]
    last_line_s = truth.of("alive", node="n2")[0].s - SLACK_S
    for found in (lanes["n2"]["states"]["hung"], seconds_of(shown.states["hung"])):
        check_near(found, declared.s - killed_s, declared.s - last_line_s, "hung", 2 * SLACK_S)
    check_near(lanes["n2"]["end_s"], at_s(report, declared), at_s(report, declared), "the end of n2")
    (lost,) = [row for row in report["rounds"] if row["lost"]]
    assert (lost["lost"], lost["index"], lost["ended_by"]) == (["n2"], last, "membership")
    assert report["rounds"][-1]["ended_by"] == "end"
    (incident,) = report["incidents"]
    assert incident["sentence"] == f"round {last} failed: n2 was lost (rank 1); restarted by membership change"
    back = truth.of("step", round=last + 1)[0]
    check_near(incident["recover_s"], back.s - declared.s, back.s - declared.s, "recover")
    names = [name for _, name, _ in shown.events]
    assert [names.count(name) for name in ("joined", "left", "lost", "drain")] == [2, 1, 1, 1]

    check_other_clocks(place, report)
    check_the_store(place, report, server)
    check_inferred(place, report)


NODE_IDS = ("n0", "n1", "n2")


def check_other_clocks(place, report):
    """The same figures from directories that were collected from nodes with clocks an hour apart."""
    check_collected(place, {name: place.folder / f"dir-{name}" for name in NODE_IDS}, report)
    late = {name: place.folder / f"late-{name}" for name in NODE_IDS}
    for name, late_s in zip(NODE_IDS, (0.0, 0.2, 0.3), strict=True):
        shutil.copytree(place.folder / f"dir-{name}", late[name], ignore=shutil.ignore_patterns("*.sock", "*.pipe"))
        delay_rounds(late[name] / "ledger.jsonl", late_s)
    offsets = check_collected(place, late, place.report(*late.values())[0])
    assert offsets["n2"] + 3600.0 > 0.2  # that node's clock is misjudged


def delay_rounds(ledger, late_s):
    """Write into a ledger that its node, which was busy, has learned of each round later."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    late = [line | {"at_s": line["at_s"] + late_s} if line["kind"] == "round" else line for line in lines]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in late))


def check_collected(place, run_dirs, report):
    """Compare the report of run directories with the one if clocks are an hour apart. Return the offsets found."""
    folder = place.folder / f"collected-{run_dirs['n0'].name}"
    for name, wall_s, uptime_s in zip(NODE_IDS, (0.0, 3600.0, -3600.0), (0.0, 7.0, -40_000.0), strict=True):
        collect(run_dirs[name], folder / name, wall_s=wall_s, uptime_s=uptime_s)
    collected, _ = place.report(*(folder / name for name in NODE_IDS))
    check_sums(collected)
    apart = {"n0": 0.0, "n1": 3600.0, "n2": -3600.0}
    offsets = {lane["node_id"]: lane["clock_offset_s"] for lane in collected["nodes"]}
    assert offsets == pytest.approx(apart, abs=patience(0.5))  # busy nodes learn of a round at different times
    for mine, other in zip(report["nodes"], collected["nodes"], strict=True):
        moved_s = apart[mine["node_id"]] - offsets[mine["node_id"]]
        # Another node has declared when n2 was lost: that time does not move, so that what n2 did last is longer.
        moved_end_s = 0.0 if mine["outcome"] == "lost" else moved_s
        last = mine["spans"][-1][0]
        states = mine["states"] | {last: mine["states"][last] + moved_end_s - moved_s}
        assert other["states"] == pytest.approx(states, abs=0.05)
        expected = (mine["begin_s"] + moved_s, mine["end_s"] + moved_end_s)
        assert (other["begin_s"], other["end_s"]) == pytest.approx(expected, abs=0.05)
    # A round begins when its last node has learned of it, whose clock may be the one that is misjudged.
    misjudged_s = max(abs(apart[name] - offset_s) for name, offset_s in offsets.items())
    for name in ("begin_s", "end_s"):
        moments = [row[name] for row in collected["rounds"]]
        assert moments == pytest.approx([row[name] for row in report["rounds"]], abs=0.05 + misjudged_s)
    assert [row["at_s"] for row in collected["incidents"]] == pytest.approx(
        [row["at_s"] for row in report["incidents"]], abs=0.05
    )
    assert "n1" in collected["clocks"]
    return offsets


def check_the_store(place, report, server):
    """The same figures if the run is read from its store."""
    store = ("--rdzv-backend", "redis", "--rdzv-endpoint", endpoint_of(server))
    from_store, _ = place.report(*store, "nodes")
    assert from_store["run"]["state"] == "succeeded"
    assert from_store["account"]["states"] == pytest.approx(report["account"]["states"], abs=0.05)


def check_inferred(place, report):
    """Without the directory of the node that died, the others infer its time."""
    shutil.rmtree(place.folder / "dir-n2")
    without, _ = place.report("nodes")
    check_sums(without)
    lanes = {lane["node_id"]: lane for lane in without["nodes"]}
    known = next(lane for lane in report["nodes"] if lane["node_id"] == "n2")
    assert (lanes["n2"]["inferred"], lanes["n2"]["outcome"]) == (True, "lost")
    assert lanes["n2"]["end_s"] == pytest.approx(known["end_s"], abs=0.05)
    assert [line.split(":")[0] for line in without["missing"]] == ["1 run directory is gone", "n2"]
    assert {"redone", "productive"} <= set(lanes["n2"]["states"])  # as the other node of that round


def test_without_step_numbers_the_figures_are_ranges(place, show):
    place.script("no_steps.py", NO_STEPS)
    agent = place.run(0, "--rdzv-id", "no steps", "--max-restarts", 1, "no_steps.py")
    report, html = place.report("no steps")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)
    account = report["account"]
    lasted = [truth.one("end", round=number).s - truth.one("alive", round=number).s for number in range(2)]
    born = [truth.one("born", round=number).s for number in range(2)]
    most = [born[1] - born[0], agent.ended_s - born[1]]  # with the start and the end of the interpreter
    assert account["present_s"] == pytest.approx(agent.present_s, abs=patience(0.5))
    check_near(account["redone_bound_s"], lasted[0], most[0], "bound")
    check_near(account["states"]["productive"], sum(lasted), sum(most), "productive")
    low, high = account["goodput"]["low"], account["goodput"]["high"]
    productive_s = account["states"]["productive"]
    assert high == pytest.approx(productive_s / account["present_s"])
    assert low == pytest.approx((productive_s - account["redone_bound_s"]) / account["present_s"])
    assert f"{100 * low:.1f} % to {100 * high:.1f} %" in shown.text
    assert "redone" not in account["states"]
    low_s, high_s = map(seconds_of, shown.states["productive"].split(" to "))
    assert (low_s, high_s) == pytest.approx((productive_s - account["redone_bound_s"], productive_s), abs=0.02)


def test_attempts_of_one_run_and_a_good_run_after_them(place, show):
    place.script("attempts.py", ATTEMPTS)
    agents = [
        place.run(3, "--rdzv-id", "twice", "attempts.py", 0, 25),
        place.run(0, "--rdzv-id", "twice", "attempts.py", 15, 50),
    ]
    report, html = place.report("twice")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)
    assert report["run"]["attempt_count"] == 2
    assert report["run"]["state"] == "succeeded"
    assert [lane["attempt"] for lane in report["nodes"]] == [0, 1]
    for lane, agent in zip(report["nodes"], agents, strict=True):
        assert sum(lane["states"].values()) == pytest.approx(agent.present_s, abs=patience(0.5))
    assert report["account"]["present_s"] == pytest.approx(sum(agent.present_s for agent in agents), abs=patience(1))
    steps = list(truth.of("step"))
    again = next(at for at, event in enumerate(steps) if at and event.step == 15 and steps[at - 1].step == 24)
    above_s = next(event.s for event in steps[again:] if event.step == 25)
    redone_s = above_s - steps[again].s
    for found in (report["account"]["states"]["redone"], seconds_of(shown.states["redone"])):
        check_near(found, redone_s, redone_s, "redone")
    ends = truth.of("end")
    productive = [ends[0].s - steps[0].s, ends[1].s - above_s]
    check_near(report["account"]["states"]["productive"], sum(productive), sum(productive), "productive", 2 * SLACK_S)

    directories = [path.name for path in place.temp.glob("elastic-*/*") if path.name.startswith("twice")]
    assert len(directories) == 1  # that of the failure
    place.run(0, "--rdzv-id", "twice", "--max-restarts", 2, "attempts.py", 1, 5)
    report, html = place.report("twice")
    shown = show(html)
    check_sums(report)
    check_page(shown, report)
    assert report["run"]["attempt_count"] == 1
    assert "twice" in report["compared_with"]
    found = {(each["kind"], each["name"]): (each["before"], each["now"]) for each in report["differences"]}
    assert found == {("option", "max_restarts"): ("0", "2")}
    assert "max_restarts" in shown.text_of("#differences")


def test_a_live_run_and_the_same_run_after_its_end(place, show):
    place.script("nodes.py", NODES)
    port = free_port()
    agent = place.start("--rdzv-id", "live", "--metrics-port", port, "nodes.py")
    place.until("step", step=40)
    report, html = place.report("live")
    truth, shown = place.truth(), show(html)
    check_sums(report)
    check_page(shown, report)
    assert (report["live"], report["account"]["frozen"], report["run"]["state"]) == (True, False, "running")
    first_s = at_s(report, truth.of("step")[0])
    now_s = (report["generated_ns"] - report["run"]["began_ns"]) / 1e9
    productive_s = report["account"]["states"]["productive"]
    check_near(productive_s, report["nodes"][0]["end_s"] - first_s, now_s - first_s, "productive")

    fields = wait_for(lambda: fields_of_productive(place), within_s=60, what="the agent's fields")
    check_near(fields["rendezvous_s"], *[report["account"]["states"]["rendezvous"]] * 2, "status: rendezvous")
    check_near(fields["starting_s"], *[report["account"]["states"]["starting"]] * 2, "status: starting")
    assert sum(fields[name] for name in fields if name.endswith("_s") and name in STATE_FIELDS) == pytest.approx(
        fields["present_s"], abs=patience(0.3)
    )
    line = re.search(r"^time: (\d+) % productive; ", place.elastic("status", "live"), re.MULTILINE)
    assert line is not None
    shown_ratio = int(line[1]) / 100
    metrics = metrics_at(port)
    later, _ = place.report("live")
    ratio = metrics['elastic_goodput_ratio{formula="google"}']
    assert report["account"]["goodput"]["low"] - 0.02 <= ratio <= later["account"]["goodput"]["high"] + 0.02
    assert report["account"]["goodput"]["low"] - 0.02 <= shown_ratio <= later["account"]["goodput"]["high"] + 0.02
    lost_s = metrics.get('elastic_lost_seconds_total{cause="rendezvous"}', 0.0)  # there is none if it took 0.0 s
    assert lost_s == pytest.approx(report["account"]["states"]["rendezvous"], abs=0.1)

    (place.folder / "finish").touch()
    agent.end(0)
    report, html = place.report("live")
    assert (report["live"], report["account"]["frozen"], report["run"]["state"]) == (False, True, "succeeded")
    later = place.report("live")[0]
    assert later | {"generated_ns": 0} == report | {"generated_ns": 0}
    check_sums(report)
    check_page(show(html), report)
    truth = place.truth()
    trained_s = truth.one("end").s - truth.of("step")[0].s
    check_near(report["account"]["states"]["productive"], trained_s, trained_s, "productive")


STATE_FIELDS = frozenset(f"{state.value.replace(' ', '_')}_s" for state in S)


def fields_of_productive(place):
    """Return the ledger's fields in `elastic status --json`, if they are those of a node that trains."""
    (run,) = json.loads(place.elastic("status", "--json", "live"))["runs"]
    fields = run["hooks"].get("ledger", {})
    return fields if fields.get("state") == "productive" else None


def metrics_at(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_secrets_are_in_no_output_and_the_printed_command_works(place, show, server):
    place.script("secret.py", SECRETS)
    run_id = "a b/'c' \"$HOME\""
    words = ("--rdzv-backend", "redis", "--rdzv-endpoint", endpoint_of(server), "--nnodes", "1:1", "--rdzv-id", run_id)
    agent = place.run(
        1, *words, "secret.py", "--api-key", PASSWORD,
        API_TOKEN=PASSWORD, SECRET_URL=f"redis://me:{PASSWORD}@store:6379/0",
    )  # fmt: skip
    (line,) = re.findall(r"report: (elastic report .*)", agent.text)
    found = subprocess.run(
        ["/bin/sh", "-c", f"{line} --trace trace.json --json -o page.html"],
        env=place.environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=place.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    html = (place.folder / "page.html").read_text()
    check_page(show(html), report)
    assert report["run"]["run_id"] == run_id
    check_sums(report)
    (ledger,) = place.temp.glob("elastic-*/index/*/ledger.jsonl")
    markdown = place.elastic("report", "--markdown", "--", run_id)
    for text in (html, found.stdout, (place.folder / "trace.json").read_text(), ledger.read_text(), markdown):
        assert PASSWORD not in text
    assert "redis://me:***@store:6379/0" in report["run"]["sentence"]
    incident = report["incidents"][0]["incident"]
    assert set(incident["hooks"]["ledger"]) <= {
        "state",
        "since_ns",
        "goodput",
        "goodput_at_most",
        "present_s",
        *STATE_FIELDS,
    }
    fields = incident["hooks"]["ledger"]
    assert fields["state"] in [state.value for state in S]
    assert sum(fields.get(name, 0) for name in STATE_FIELDS) == pytest.approx(fields["present_s"], abs=patience(0.3))
