"""A health gate on one of two static nodes: it waits, the other waits for it, and nobody else can be told why."""

import os

import pytest

from patience import patience
from ports import free_port
from support import wait_for

GATE = """
import os
from elastic_core.api import AgentHook, Power, Refuse

class Gate(AgentHook):
    api_version = 1
    powers = frozenset({Power.REFUSAL})

    def ask(self, event):
        return Refuse(reason="the disk is full", again_s=1.0) if os.path.exists(os.environ["SHUT"]) else None

setattr(Gate, os.environ["MOMENT"], Gate.ask)
"""

MEETS = """
import os, socket, sys
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(where) as server:
        server.settimeout(float(sys.argv[1]))
        print("listens", flush=True)
        server.accept()
else:
    socket.create_connection(where, 60).close()
"""


@pytest.fixture
def nodes(elastic, script, tmp_path):
    """Start the two nodes of a run, the second behind a gate that is shut at first; return them and the gate."""
    site, shut = tmp_path / "site", tmp_path / "shut"
    (info := site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme.py").write_text(GATE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\ngate = acme:Gate\n")
    shut.touch()
    path = script(MEETS)

    def start(moment, patience_s, *options):
        where = ("--nnodes", "2", "--rdzv-backend", "static", "--master-addr", "127.0.0.1")
        where += ("--master-port", str(free_port()), *options)
        env = {"SHUT": os.devnull + "/none", "MOMENT": moment, "PYTHONPATH": str(site)}
        first = elastic(*where, "--node-rank", "0", path, str(patience_s), env=env)
        wait_for(lambda: "listens" in first.out, within_s=30)
        second = elastic(*where, "--node-rank", "1", path, str(patience_s), env=env | {"SHUT": str(shut)})
        wait_for(lambda: "stays out" in second.err, within_s=30)
        return first, second, shut

    return start


@pytest.mark.parametrize("moment", ["on_joining", "on_workers_starting"])
def test_a_node_whose_gate_passes_again_is_waited_for(nodes, moment):
    first, second, shut = nodes(moment, 60)
    shut.unlink()
    assert (first.wait(), second.wait()) == (0, 0)
    assert "this node stays out: hook 'gate' (acme 1.0) refused: the disk is full" in second.err
    (line,) = first.err.splitlines()
    assert "static: node 0 of 2; workers meet at 127.0.0.1:" in line


def test_one_whose_gate_stays_shut_ends_with_its_reason_and_the_other_by_its_workers_own_patience(nodes):
    first, second, _ = nodes("on_joining", 2, "--join-timeout", f"{patience(1):g}")
    assert (first.wait(), second.wait()) == (1, 1)
    assert "health check: hook 'gate' (acme 1.0) refused: the disk is full" in second.err
    assert "TimeoutError" in first.err
    assert "the disk is full" not in first.err
