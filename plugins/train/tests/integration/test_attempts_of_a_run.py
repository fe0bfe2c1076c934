"""What workers of a real run find out about their attempt."""

import subprocess
import sys

SCRIPT = """
import json, os, sys
from dataclasses import asdict
from elastic_train import attempt
this = attempt()
os.write(1, (json.dumps(asdict(this)) + os.linesep).encode())
sys.exit(3 if (this.restart_count, this.rank) == (0, 1) else 0)
"""


def test_a_restarted_worker_knows_what_was_before(elastic, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    agent = elastic("--nproc-per-node", 2, "--max-restarts", 1, "--omp-threads", 1, script)
    assert agent.wait() == 0, agent.err
    again = [line for line in agent.lines() if line["round_index"] == 1]
    assert sorted(line["rank"] for line in again) == [0, 1]
    for line in again:
        assert (line["run_id"], line["restart_count"], line["max_restarts"]) == (agent.run_id, 1, 1)
        assert (line["last_world_size"], line["last_end"], line["last_reason"]) == (2, "failure", "exit code 3")
    assert all(line["last_end"] is None for line in agent.lines() if line["round_index"] == 0)


def test_neither_the_package_nor_what_needs_no_torch_imports_it():
    code = "import sys, elastic_train, elastic_train.hook; elastic_train.attempt(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy"} & set(done.stdout.split())
