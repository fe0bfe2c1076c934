"""The benchmarks measure: one quick pass for real, without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_pass_measures_the_floor_and_us(tmp_path):
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-torch", "--only", "start", "--json", str(out)]
    # Bytecode is nobody's business here: the tree stays as it is.
    env = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "exec to the first line of 8 workers, ms" in done.stdout
    _, result = json.loads(out.read_text())["results"]
    assert set(result["launchers"]) == {"floor", "elastic run"}
    for launcher in result["launchers"].values():
        assert launcher["count"] == 3
        assert all(0 < figure < 20_000 for figure in launcher["figures"])
