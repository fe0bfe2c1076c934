"""The benchmarks of warm rounds measure kept workers, and their floor."""

import json
import subprocess
import sys
from pathlib import Path

import redis_servers
from patience import patience

ROOT = Path(__file__).parents[4]


def test_a_kill_and_a_join_are_measured(tmp_path):
    redis_servers.binary()  # missing: skipped here, an error in CI
    out = tmp_path / "results.json"
    command = ["--only", "warm-2", "--only", "warm-join", "--size", "smallest", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=patience(200), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert {name: set(figure["launchers"]) for name, figure in figures.items()} == {
        "warm-2": {"floor", "elastic run, warm", "elastic run --standby"},
        "warm-join": {"elastic run, warm"},
    }
