"""A hook that refuses keeps its own node out and costs the run nothing; the node comes back by itself."""

import pytest

from patience import patience
from support import wait_for

GATE = """
import os, pathlib, time
from elastic_core.api import AgentHook, Power, Refuse

class Gate(AgentHook):
    powers = frozenset({Power.REFUSAL})

    def _answer(self):
        shut = pathlib.Path(os.environ["TEST_SHARED"]) / f"shut-{os.environ['GATE']}"
        return Refuse(reason=shut.read_text()) if shut.exists() else None

class Joins(Gate):
    api_version = 1
    def on_joining(self, event):
        return self._answer()

class Starts(Gate):
    api_version = 1
    def on_workers_starting(self, event):
        return self._answer()

class StartsAfterA(Starts):  # whose node knows of the round by then, however late it gets a turn
    api_version = 1
    def on_workers_starting(self, event):
        shared, until_s = pathlib.Path(os.environ["TEST_SHARED"]), time.monotonic() + 4
        (shared / f"starting-{os.environ['GATE']}").touch()
        while not (shared / "starting-a").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        return self._answer()
"""


class Gated:
    """The nodes of a run whose hosts have a gate; it is shut for those nodes that are named."""

    def __init__(self, run, folder, cls):
        self.run, self.cls, self._site = run, cls, folder
        folder.mkdir()
        (folder / "acme_gate.py").write_text(GATE)
        info = folder / "acme_gate-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gate\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[elastic_core.hooks]\ngate = acme_gate:{cls}\n")

    def shut(self, name, reason="ECC errors"):
        """Shut a node's gate."""
        (self.run.shared / f"shut-{name}").write_text(reason)

    def open(self, name):
        """Open it."""
        (self.run.shared / f"shut-{name}").unlink()

    def node(self, name, nnodes, *options, **more):
        """Start a node."""
        env = {"PYTHONPATH": str(self._site), "GATE": name}
        return self.run.node(name, nnodes, *options, env=env, **more)


REFUSED = "hook 'gate' (acme-gate 1.0) refused: ECC errors"


@pytest.fixture(params=["Joins", "Starts"])
def gated(run, tmp_path, request):
    """Return a run with a gate at either moment."""
    return Gated(run, tmp_path / "site", request.param)


def test_a_gate_that_is_shut_costs_the_run_nothing_and_its_node_joins_when_it_opens(gated):
    gated.shut("b")
    a = gated.node("a", "1:2", "--max-restarts", "0")
    a.said(world=1)
    b = gated.node("b", "1:2", "--max-restarts", "0")
    b.told(f"this node stays out: {REFUSED}")
    if gated.cls == "Starts":  # a round with b was formed
        a.told(f"b stays out: {REFUSED}")
    wait_for(lambda: a.says()[-1]["world"] == 1, what="a's workers without b")
    assert not b.says()
    gated.open("b")
    for node in (a, b):
        assert node.said(world=2)["restarts"] == 0
    assert {line["restarts"] for line in a.says()} == {0}
    b.told("no hook refuses any more")
    gated.run.all_end(a, b)
    assert "failed" not in a.agent.err + b.agent.err


def test_a_later_failure_of_the_others_says_who_was_left_out(redis_run, tmp_path):
    gated = Gated(redis_run, tmp_path / "site", "Joins")
    gated.shut("b")
    a = gated.node("a", "1:2", "--max-restarts", "0")
    a.said(world=1)
    b = gated.node("b", "1:2", "--max-restarts", "0")
    b.told(f"this node stays out: {REFUSED}")
    gated.run.has_seats(2)
    gated.run.exit_rank(0, gen=0, code=7)
    for node in (a, b):
        node.ends(7)
        (absence,) = node.agent.incident()["absent"]
        assert absence["until_ns"] > 0
        wanted = {"node_id": "b", "by": "hook 'gate' (acme-gate 1.0)", "reason": "ECC errors", "refused": True}
        assert wanted.items() <= absence.items()
    a.told("Left out: b; b asked again by ")


def test_the_first_node_of_a_run_that_refuses_does_not_keep_the_others(gated):
    gated.shut("a")
    a = gated.node("a", "1:2")
    a.told(f"this node stays out: {REFUSED}")
    b = gated.node("b", "1:2")
    b.said(world=1)
    gated.run.all_end(a, b)  # the one that is out hears that the run has ended well
    assert not a.says()


def test_a_run_that_needs_the_node_waits_for_it_and_fails_with_the_gates_reason(redis_run, tmp_path):
    gated = Gated(redis_run, tmp_path / "site", "StartsAfterA")
    gated.shut("b")
    a, b = (gated.node(name, "2", conf=f"join_timeout={patience(4):g}") for name in "ab")
    b.told(f"this node stays out: {REFUSED}")
    a.told(f"round 0 is over: b stays out: {REFUSED}; 1 node left of at least 2: waiting for 1 more")
    for node in (a, b):
        node.ends(1, within_s=patience(25))
        incident = node.agent.incident()
        assert (incident["failure_class"], incident["restart_count"]) == ("health check", 0)
        assert f"b is out: {REFUSED}" in incident["summary"]


def test_a_node_that_opens_in_time_begins_the_run_that_waited_for_it(redis_run, tmp_path):
    gated = Gated(redis_run, tmp_path / "site", "Starts")
    gated.shut("b")
    a, b = (gated.node(name, "2") for name in "ab")
    b.told(f"this node stays out: {REFUSED}")
    gated.open("b")
    for node in (a, b):
        assert node.said(world=2)["restarts"] == 0
    gated.run.all_end(a, b)
