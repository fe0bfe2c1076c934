"""RESERVE R5: an agent whose clock is a minute off keeps its place, and is blamed for what it did, in order."""

import json

import pytest

from chaos.multi_node import LEASE_S, WORKER
from patience import patience
from support import wait_for

SHIFTS = """
import datetime, os, pathlib, time
if "TORCHELASTIC_RUN_ID" not in os.environ:  # an agent, and no worker
    def shifted(read, by):
        return lambda: read() + by
    offset = float(os.environ["TEST_CLOCK_OFFSET_S"])
    time.time, time.time_ns = shifted(time.time, offset), shifted(time.time_ns, int(offset * 10**9))
    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)
    datetime.datetime = Shifted
    pathlib.Path(os.environ["TEST_SHARED"], "shifted").touch()
"""
ORDERED = WORKER.replace(
    "    order =",
    """    fail = shared / "fail"  # the pid of b's worker
    if fail.exists():
        if says["node"] == "b":
            sys.exit(7)
        while os.path.exists(f"/proc/{fail.read_text()}"):  # until b's agent has seen its end
            time.sleep(0.001)
        time.sleep(float(os.environ["TEST_GAP_S"]))
        os._exit(9)
    order =""",
)
OFF_S = 60.0
GAP_S = 0.2
"""Of two failures on two nodes the first is blamed if this lies between them: what a word to the store takes, and a
turn of the agent that has it."""


@pytest.fixture
def pair(served_run, tmp_path, request):
    """Start two nodes; b's clock is off."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SHIFTS)
    served_run.script.write_text(ORDERED)
    a = served_run.node("a", "1:2", env={"TEST_GAP_S": str(patience(GAP_S))})
    env = {"PYTHONPATH": str(site), "TEST_CLOCK_OFFSET_S": str(request.param)}
    b = served_run.node("b", "1:2", env=env)
    for node in (a, b):
        node.said(world=2)
    assert (served_run.shared / "shifted").exists()
    return served_run, a, b


@pytest.mark.parametrize("pair", [OFF_S, -OFF_S], indirect=True, ids=["fast", "slow"])
def test_a_node_whose_clock_is_off_stays_and_its_failure_is_told_in_order(pair):
    run, a, b = pair
    at_s = b.said(world=2)["at"]
    pid = b.said(world=2)["pid"]
    wait_for(lambda: b.last_alive_s(pid) > at_s + 2 * LEASE_S, what="two leases to pass")
    said = [[line for line in node.says() if line["world"] == 2] for node in (a, b)]
    assert [len(lines) for lines in said] == [1, 1], said
    file = run.shared / "fail.new"
    file.write_text(str(pid))
    file.rename(run.shared / "fail")
    for node in (a, b):  # b's worker ended first
        node.ends(7)
    incidents = [node.agent.incident() for node in (a, b)]
    assert [one["first"]["exit"]["global_rank"] for one in incidents] == [b.said(world=2)["rank"]] * 2
    assert abs(incidents[1]["phases"]["stop_s"]) < OFF_S / 2, json.dumps(incidents[1]["phases"])
    failed = [one for one in incidents[0]["nodes"] if one["failed_count"]]
    assert all(0 <= one["age_s"] < OFF_S / 2 for one in failed), failed
