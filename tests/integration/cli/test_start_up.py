"""What `elastic run` loads before its workers run: each of these would cost milliseconds of every start."""

import subprocess
import sys

NOT_NEEDED = {
    "argparse",
    "asyncio",
    "click",
    "ctypes",
    "hashlib",  # OpenSSL: half a MiB
    "importlib.metadata",
    "inspect",  # by way of pluggy or typing_extensions
    "json",
    "logging",
    "numpy",
    "pluggy",
    "random",
    "secrets",
    "shutil",
    "tempfile",
    "torch",
}


def test_a_run_loads_nothing_that_it_does_not_need(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "elastic_core.run", "--run-dir", str(tmp_path)]
    done = subprocess.run([*command, "--no-python", "true"], capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "elastic_core.launcher.job" in loaded
    assert loaded & NOT_NEEDED == set()


def test_what_is_loaded_for_failures_while_workers_run_needs_no_openssl():
    code = (
        "import sys; from elastic_core.failure.incidents import Incidents\n"
        "Incidents.warm(None); print('elastic_core.failure.incident' in sys.modules, 'hashlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_typing_extensions_can_be_imported_in_the_supervisor_all_the_same():
    # msgspec is loaded without it; a plugin may want it afterwards.
    code = (
        "import sys; from elastic_core.cli import main as entry\n"
        "entry.main = lambda argv: (__import__('typing_extensions'), 0)[1]\n"
        "entry.elastic_process(['run'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_timings_say_where_the_time_went(tmp_path):
    command = [sys.executable, "-m", "elastic_core.run", "--timings", "--no-python", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    told = [line.removeprefix("elastic: timings: ").partition(":")[0] for line in done.stderr.splitlines()]
    assert told == ["start", "round 0", "end", "all"]
    assert "spawn" in done.stderr
