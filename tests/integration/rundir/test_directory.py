"""A run directory that goes away under a living run, and one that somebody else has prepared."""

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from proc_kit import thread_states
from support import ELASTIC, wait_for

RAISES = """
import os, pathlib, sys, time
print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
pathlib.Path(sys.argv[1] + ".up").touch()
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": raise ValueError("label 11 is not a digit")
"""


@contextmanager
def standing_still(run):
    """Stop an agent meanwhile: what it writes then would be in the way of who removes its directory."""
    run.signal(signal.SIGSTOP)
    wait_for(lambda: set(thread_states(run.pid)) == {"T"}, what="all threads of the agent to stand still")
    yield
    run.signal(signal.SIGCONT)


def as_tmpfiles(path):
    """Remove what a cleaner removes: old files, then folders that are empty; sockets in use stay."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            if (Path(folder) / name).is_file():
                (Path(folder) / name).unlink()
        if folder != str(path) and not os.listdir(folder):
            os.rmdir(folder)


def all_of_it(path):
    shutil.rmtree(path.parent)


@pytest.fixture
def failing(elastic, script, tmp_path):
    """Start a run, return it once its worker waits for `go`; its incident may be lost with its directory."""

    def start(*options, **more):
        run = elastic("--max-restarts", "1", *options, script(RAISES), str(tmp_path / "go"), **more)
        wait_for((tmp_path / "go.up").exists, what="a worker")
        return run

    return start


@pytest.mark.parametrize("clean", [as_tmpfiles, all_of_it])
def test_a_failure_is_told_with_its_exception_where_the_directory_was_cleaned(failing, tmp_path, clean):
    run = failing("--redirects", "1")
    (path,) = run.runtime.glob("elastic-*/*-*")
    wait_for(lambda: (path / "status.json").exists(), what="a status")
    with standing_still(run):
        clean(path)
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.err
    assert "elastic: rank 0 failed: ValueError: label 11 is not a digit (train.py:6); restart 1 of 1 now" in run.err
    incident = json.loads((path / "incident.json").read_text())
    assert incident["first"]["error"]["message"] == "label 11 is not a digit"
    assert (path / "attempt_1" / "0" / "stdout.log").read_text() == "up 1\n"
    for folder in (path.parent, path, path / "attempt_0", path / "attempt_0" / "0", path / "attempt_1"):
        if folder.exists():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_place_that_is_gone_for_good_does_not_end_the_run(failing, tmp_path):
    ours, theirs = pty.openpty()
    (tmp_path / "temp").mkdir(mode=0o700)
    run = failing("--redirects", "1", env={"TMPDIR": str(tmp_path / "temp")}, stdin=theirs)
    (path,) = run.runtime.glob("elastic-*/*-*")  # it has a terminal
    with standing_still(run):
        shutil.rmtree(run.runtime)
        run.runtime.touch()  # as a directory of root's, in which it can't be made again
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.err
    assert f"the run directory {str(path)!r} has gone, and can't be made again: from now on this node" in run.err
    assert "rank 0 failed: " in run.err
    assert "up 1\n" in run.out
    assert not list((tmp_path / "temp").iterdir())
    os.close(ours)
    os.close(theirs)


def test_a_run_without_a_terminal_is_in_the_temp_directory_and_found_there(failing, tmp_path):
    temp = tmp_path / "temp"
    temp.mkdir(mode=0o700)
    run = failing(env={"TMPDIR": str(temp)})
    (path,) = temp.glob("elastic-*/*-*")
    assert list(run.runtime.glob("elastic-*/*-*")) == []
    wait_for(lambda: (path / "status.json").exists(), what="a status")
    env = os.environ | {"TMPDIR": str(temp), "XDG_RUNTIME_DIR": str(run.runtime)}
    told = subprocess.run(
        [*ELASTIC[:-1], "elastic_core", "status"], capture_output=True, text=True, env=env, check=False
    )
    assert run.run_id in told.stdout, told
    (tmp_path / "go").touch()
    assert run.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_directory_that_another_user_has_prepared_is_refused(elastic, script, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "run", 65534, 65534)
    run = elastic("--run-dir", str(tmp_path / "run"), script("raise ValueError(1)"))
    assert run.wait() == 2
    (line,) = run.err.splitlines()
    assert line.startswith(f"elastic: error: --run-dir '{tmp_path}/run' belongs to user 65534; expected a directory of")
    assert (tmp_path / "victim").read_text() == "precious"


def test_all_that_a_failed_run_leaves_is_its_owners_only(elastic, script, tmp_path):
    run = elastic("--run-dir", str(tmp_path / "run"), script("raise ValueError(1)"), umask=0)
    assert run.wait() == 1
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path.name for path in modes} >= {"journal.jsonl", "incident.json", "status.json", "error_0.json"}
    assert set(modes.values()) == {0o600}, modes
