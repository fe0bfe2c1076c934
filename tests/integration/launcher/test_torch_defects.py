"""Defects of torch 2.13 that nothing else here is about; the numbers are those of docs/reference/differences.md."""

import os
import subprocess
import sys
import time

import pytest

from patience import kept, patience

STUBBORN = """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("ready").touch()
    time.sleep(600)
while not pathlib.Path("ready").exists():
    time.sleep(0.01)
sys.exit(5)
"""

ENDS = """
import os, signal, sys
how = sys.argv[1]
if how.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, how))
sys.exit(int(how))
"""


def run(*words, folder, env=None):
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PET_")} | (env or {})
    command = [sys.executable, "-m", "elastic_core.run", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=patience(60))


def test_5_the_shutdown_timeout_counts_after_a_failure(script, tmp_path):
    begun_s = time.monotonic()
    done = run("--nproc-per-node", 2, "--shutdown-timeout", 1, script(STUBBORN), folder=tmp_path)
    assert done.returncode == 5, done.stderr
    kept(time.monotonic() - begun_s, 20)  # torchrun takes 30 s for the failure alone


@pytest.mark.parametrize(("how", "code"), [("0", 0), ("1", 1), ("42", 42), ("SIGKILL", 137)])
def test_8_the_exit_code_is_the_workers(script, tmp_path, how, code):
    done = run(script(ENDS), how, folder=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PET_START_METHOD", "bogus", "PET_START_METHOD: 'bogus'; expected one of spawn, fork, forkserver"),
        ("PET_STANDALONE", "perhaps", "PET_STANDALONE: 'perhaps'; expected yes or no"),
        ("PET_NUMA_BINDING", "far", "PET_NUMA_BINDING: 'far'; expected one of node, socket, exclusive, core-complex"),
        ("PET_LOGS_SPECS", "none-such", "'none-such' is not installed"),
    ],
)
def test_26_variables_are_checked_as_options_are(script, tmp_path, variable, value, told):
    done = run("--dry-run" if variable != "PET_LOGS_SPECS" else "--nnodes=1", script(ENDS), 0, folder=tmp_path,
               env={variable: value})  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_26_flags_take_words(script, tmp_path, value):
    done = run("--dry-run", script(ENDS), 0, folder=tmp_path, env={"PET_STANDALONE": value})
    assert done.returncode == 0, done.stderr
    assert "env PET_STANDALONE" in done.stdout or "local" in done.stdout
