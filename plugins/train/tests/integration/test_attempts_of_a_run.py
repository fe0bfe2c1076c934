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


FAILS = """
import os, sys
from elastic_train import attempt, should_stop
begin, ends = int(sys.argv[1]) * attempt().restart_count, (6, 11, 11)
for step in range(begin, 99):
    should_stop(step=step)
    if step == ends[attempt().restart_count]:
        raise ValueError(f"bad sample {step}")
"""


def test_steps_of_should_stop_are_progress_between_two_failures(elastic, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    agent = elastic("--max-restarts", 3, "--restart-backoff", 0, "--same-failure-limit", 2, script, 5)
    assert agent.wait() == 1
    assert "ValueError: bad sample 11 (train.py:8); restart 2 of 3 now" in agent.err  # after 6: further
    assert "the same failure 2 times in a row, and no step between (--same-failure-limit 2)" in agent.err
