"""`python -m benchmarks.reconfigure` works with the installed torch, whatever that can do."""

import re
import subprocess
import sys
from pathlib import Path

from patience import patience

ROOT = Path(__file__).parents[4]


def test_a_kill_is_measured_in_each_way():
    command = [sys.executable, "-m", "benchmarks.reconfigure", "--workers", "2", "--kills", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(120), check=False)
    assert done.returncode == 0, done.stderr
    ways = re.findall(r"^2 workers, ([a-z, ]+?) {2,}[0-9.]+ ", done.stdout, re.MULTILINE)
    later = [] if "can't reconfigure" in done.stdout else ["reconfigure"]
    assert ways == ["destroy", "wake, destroy", *later], done.stdout
