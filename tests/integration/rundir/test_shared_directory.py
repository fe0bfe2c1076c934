"""One `--run-dir` for all nodes of a run, as the same command line on a shared file system has it."""

import json

import pytest

from elastic_core.rundir.claim import CLAIM_FILE
from redis_servers import redis_server
from support import wait_for

__all__ = ["redis_server"]

FAILS_ON_RANK_1 = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
print("of rank", os.environ["RANK"], flush=True)
(here / os.environ["RANK"]).touch()
while len(list(here.iterdir())) < 2: time.sleep(0.01)
if os.environ["RANK"] == "1": raise ValueError("rank 1 has the bad label")
time.sleep(60)
"""


@pytest.fixture
def nodes(elastic, script, tmp_path, redis_server):
    """Start nodes A and B of a run with one run directory; return them ended, with it."""

    def run(*options):
        shared, met = tmp_path / "shared", tmp_path / "met"
        met.mkdir()
        line = ("--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "same", *options)
        path = script(FAILS_ON_RANK_1)
        started = [elastic("--nnodes", "2", *line, "--node-id", name, "--run-dir", shared, path, met) for name in "AB"]
        for node in started:
            assert node.wait() == 1, node.err
        return started, shared

    return run


def test_nodes_with_one_run_directory_have_a_place_each_and_report_the_rank_that_failed(nodes):
    started, shared = nodes("--redirects", "3")
    (beside,) = shared.glob("node_*")
    assert beside.name in ("node_A", "node_B")
    texts = []
    for folder in (shared, beside):
        (text,) = [path.read_text() for path in (folder / "attempt_0").glob("*/stdout.log")]
        texts.append(text)
        incident = json.loads((folder / "incident.json").read_text())
        assert "rank 1 has the bad label" in json.dumps(incident)
        assert not (folder / CLAIM_FILE).exists()
    assert sorted(texts) == ["of rank 0\n", "of rank 1\n"]
    for node in started:
        assert "failed: rank 1" in node.err
        assert "failed: rank 0" not in node.err
    told = [line for node in started for line in node.err.splitlines() if "--run-dir" in line]
    assert len(told) == 1, told
    assert f"this node's are in {str(beside)!r}" in told[0]


def test_the_next_run_has_the_directory_again_also_after_a_kill(elastic, script, tmp_path):
    shared = tmp_path / "shared"
    killed = elastic("--run-dir", shared, script("print('up', flush=True); import time; time.sleep(60)"))
    wait_for(lambda: "up" in killed.out)
    assert (shared / CLAIM_FILE).exists()
    killed.process.kill()
    killed.process.wait()
    for _ in range(2):
        run = elastic("--run-dir", shared, script("print('ran')"))
        assert run.wait() == 0
        assert run.err == ""
        assert sorted(shared.glob("node_*")) == []
        assert not (shared / CLAIM_FILE).exists()
