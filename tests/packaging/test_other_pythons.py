"""Newer Pythons than the one of the tests: the parts without torch, installed from wheels. Skips where there is none.

Their click, msgspec and pluggy come from the package index; so an index is needed here, and CI has one.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from support import lacks
from wheel_kit import Environment, attempted, version, write_script

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(600)]  # pip takes its time beside other work

THIRD_PARTY = ["click>=8.1,<9", "msgspec>=0.19", "pluggy>=1.5,<2"]
STRICT = {"PYTHONWARNINGS": "error"}
WORKER = """
import os, sys
rank, round_ = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"{sys.version_info[0]}.{sys.version_info[1]} rank {rank} round {round_}\\n".encode())
if (rank, round_) == ("1", "0"):
    raise ValueError("boom")
"""
IMPORTS = "json,threading,logging,multiprocessing"
"""Modules that keep something about their process."""
SEEN = """
import sys
given = sorted(name for name in globals() if name != "sys")
import json, logging, multiprocessing, os, random, threading, warnings
main, me = threading.main_thread(), multiprocessing.current_process()
print(json.dumps({
    "version": sys.version, "names": given,
    "main": [main.native_id == os.getpid(), main.ident == threading.get_ident()],
    "threads": [each.name for each in threading.enumerate()], "process": [me.name, me.ident == os.getpid()],
    "argv": sys.argv, "command": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "filters": [str(each) for each in warnings.filters], "parent": str(multiprocessing.parent_process()),
    "young": logging.LogRecord("", 0, "", 0, "", None, None).relativeCreated < 600_000,
    "stdout": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "session": os.getsid(0) == os.getpid(),
}))
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
"""


def interpreter(minor):
    """Return a Python of this version that works: from PATH, where stand-ins of pyenv may be, or from pyenv."""
    kept = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{minor}.*/bin/python{minor}")
    )
    for candidate in [shutil.which(f"python{minor}"), *map(str, kept)]:
        if candidate and attempted([candidate, "-c", "import venv"]).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module", params=["3.12", "3.13"])
def other(request, tmp_path_factory, dist):
    if sys.version_info[:2] == tuple(map(int, request.param.split("."))):
        pytest.skip("all tests run on this very Python")
    python = interpreter(request.param)
    if python is None:
        lacks(f"python{request.param}")
    environment = Environment(tmp_path_factory.mktemp("other") / "venv", python)
    done = environment.pip("install", "--only-binary", ":all:", *THIRD_PARTY)
    if done.returncode and not os.environ.get("CI"):
        lacks(f"a package index for python{request.param}")
    assert done.returncode == 0, done.stderr
    environment.install("--no-deps", *dist.glob("*.whl"))
    environment.minor = request.param
    return environment


def test_the_plugins_are_found(other, tmp_path):
    code, out, err = other.run("plugins", "-v", cwd=tmp_path, **STRICT)
    assert (code, err) == (0, "")
    assert re.search(rf"^static .*{re.escape(version())} +loaded$", out, flags=re.MULTILINE), out


def test_a_local_job_fails_restarts_and_ends_well(other, tmp_path):
    script = write_script(tmp_path, WORKER)
    options = ["--nproc-per-node", 2, "--max-restarts", 1, "--omp-threads", 1, "--run-dir", tmp_path / "kept"]
    options += ["--tee", 3, "--log-dir", tmp_path / "logs"]
    code, out, err = other.run("run", *options, script, cwd=tmp_path, **STRICT)
    assert code == 0, err
    lines = {line.partition(":")[2].strip() for line in out.splitlines()}
    rest = {f"{other.minor} rank {rank} round {round_}" for rank in (0, 1) for round_ in (0, 1)}
    assert rest - {f"{other.minor} rank 0 round 0"} <= lines <= rest  # rank 0 may be stopped before its first line
    assert "Warning" not in err
    assert "ValueError: boom" in err


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_standby_workers_take_over(other, tmp_path, how):
    script = write_script(tmp_path, WORKER)
    options = ["--nproc-per-node", 2, "--max-restarts", 1, "--omp-threads", 1, "--timings", "--restart-backoff", 0]
    standby = ["--standby", "--standby-start", how, "--standby-imports", IMPORTS]
    code, out, err = other.run("run", *options, *standby, script, cwd=tmp_path, **STRICT)
    assert code == 0, err
    assert f"{other.minor} rank 1 round 1" in out
    assert "Warning" not in err
    assert "not forked" not in err
    assert err.count("spawn (2 forked) ") == (2 if how == "fork" else 0)


def test_a_forked_worker_is_as_a_fresh_one(other, tmp_path):
    script = write_script(tmp_path, SEEN)
    options = ["run", "--omp-threads", 1]
    standby = ["--standby", "--standby-start", "fork", "--standby-imports", IMPORTS]
    code, cold, err = other.run(*options, script, cwd=tmp_path, **STRICT)
    assert (code, err) == (0, "")
    code, forked, err = other.run(*options, *standby, script, cwd=tmp_path, **STRICT)
    assert (code, err) == (0, "")
    assert forked.splitlines()[1:] == cold.splitlines()[1:] == ["child"]
    assert json.loads(forked.splitlines()[0]) == json.loads(cold.splitlines()[0])


def test_the_agent_store_asks_for_torch_in_one_line(other, tmp_path):
    script = write_script(tmp_path, "print('started')\n")
    code, out, err = other.run("run", "--agent-store", script, cwd=tmp_path, **STRICT)
    assert (code, out) == (4, "")
    line = " ".join(err.split())
    assert "the agent store can't be opened: --agent-store: no torch is installed for" in line
    assert "Try: pip install 'torch>=2.13,<2.16'" in line
    assert "Traceback" not in err
