"""A run that fails again and again: its agent's memory does not grow with the number of its restarts."""

import os
import re
from pathlib import Path

import pytest

from elastic_report.ledger.document import LEDGER_FILE
from support import wait_for

EARLY = 20
SETTLED = 60
"""Restarts after the ledger's start, whose threads load more of it beside them on a busy machine."""
MOST_GROWTH_KIB = 5 << 10
RESTARTS = [
    pytest.param(300, id="300"),
    pytest.param(2000, marks=[pytest.mark.chaos_full, pytest.mark.timeout(1800)], id="2000"),
]
FOR_EVER = ("--no-python", "--restart-backoff", "0", "--max-restarts", "100000", "/bin/false")


def memory_kib(agent):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{agent.pid}/status").read_text())[1])


@pytest.mark.parametrize("count", RESTARTS)
@pytest.mark.parametrize("with_store", [False, True], ids=["one node", "redis"])
def test_memory_after_many_restarts_is_what_it_was_after_few(elastic, request, tmp_path, count, with_store):
    store = ()
    if with_store:
        endpoint = request.getfixturevalue("redis_server").endpoint
        store = ("--rdzv-backend", "redis", "--rdzv-endpoint", endpoint, "--nnodes", "1")
        store += ("--rdzv-conf", "last_call_timeout=0.1")
    agent = elastic(*store, "--run-dir", tmp_path / "run", *FOR_EVER)

    def restarts(number):
        return lambda: f"; restart {number} of 100000" in agent.err

    # What an agent loads once, however long it runs: the ledger, after its first half second.
    wait_for((tmp_path / "run" / LEDGER_FILE).exists, within_s=60)
    few = agent.err.count("; restart ") + SETTLED
    wait_for(restarts(few), within_s=60)
    before_kib = memory_kib(agent)
    wait_for(restarts(few + count - EARLY), within_s=count * 0.8)
    assert memory_kib(agent) - before_kib < MOST_GROWTH_KIB
    assert len(os.listdir(tmp_path / "run")) < 200
