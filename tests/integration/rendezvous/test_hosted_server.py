"""A server's process beside ours, and a folder that goes with us."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic_core.api import HostedProcess, KeptFolder, WaitBudget, WaitCancelledError, hosted_environment
from proc_kit import is_alive
from support import processes_with, wait_for

SH = "/bin/sh"


@pytest.fixture
def run():
    made = []

    def run(script, *, environment=None, **given):
        made.append(HostedProcess([SH, "-c", script], {"PATH": os.environ["PATH"]} | (environment or {})))
        made[-1].start(**given)
        return made[-1]

    yield run
    for process in made:
        process.stop()


def pid_of(process):
    (pid,) = process.pids()
    return pid


def test_starts_is_heard_and_stops(run):
    process = run("echo one; echo two >&2; exec sleep 60")
    assert process.hear(b"two", timeout_s=20, wait=WaitBudget())
    assert process.said == b"one\ntwo\n"
    assert process.alive
    pid = pid_of(process)
    assert os.getsid(pid) == pid
    process.stop()
    process.stop()
    assert not process.alive
    assert process.pids() == frozenset()
    assert not Path(f"/proc/{pid}").exists()


def test_signals_for_us_do_not_reach_it(run):
    process = run("echo up; while read line; do :; done < /dev/zero")
    assert process.hear(b"up", timeout_s=20, wait=WaitBudget())
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid_of(process), signum)
    assert process.alive
    assert process.ending(within_s=0) == ""


@pytest.mark.parametrize(
    ("script", "ending"),
    [("exit 3", "ended with code 3"), ("kill -9 $$", "was killed by SIGKILL"), ("exit 0", "ended with code 0")],
)
def test_says_how_it_ended(run, script, ending):
    process = run(f"echo last words; {script}")
    assert not process.hear(b"never said", timeout_s=20, wait=WaitBudget())
    assert process.said == b"last words\n"
    assert process.ending() == ending
    assert process.ending() == ending  # it was not reaped
    assert process.pids()


def test_waits_no_longer_than_told(run):
    assert not run("exec sleep 60").hear(b"word", timeout_s=0.1, wait=WaitBudget())


def test_is_waited_for_no_more_when_that_is_cancelled(run):
    process, wait = run("exec sleep 60"), WaitBudget()
    timer = threading.Timer(0.05, wait.cancel)
    timer.start()
    with pytest.raises(WaitCancelledError):
        process.hear(b"word", timeout_s=60, wait=wait)
    timer.join()


def test_what_it_started_is_stopped_with_it(run):
    process = run("sleep 60 & echo $! up; wait")
    assert process.hear(b"up", timeout_s=20, wait=WaitBudget())
    child = int(process.said.split()[0])
    process.stop()
    wait_for(lambda: not is_alive(child), what="its child's end")


def test_reads_and_writes_what_it_is_given(run, tmp_path):
    source, said = tmp_path / "in", tmp_path / "out"
    source.write_text("hello")
    with source.open() as reading, said.open("w") as writing:
        process = run("cat", stdin=reading.fileno(), output=writing.fileno())
    assert process.ending() == "ended with code 0"
    assert said.read_text() == "hello"


def test_a_program_that_can_not_be_run_leaves_nothing(tmp_path):
    before = open_descriptors()
    process = HostedProcess([str(tmp_path)], {})
    with pytest.raises(PermissionError):
        process.start()
    assert process.pids() == frozenset()
    assert not process.alive
    process.stop()
    assert open_descriptors() == before


def test_its_environment_is_small():
    environ = {"PATH": "/bin", "TZ": "UTC", "SECRET": "x", "ETCD_NAME": "y"}
    assert hosted_environment("abc", environ) == {
        "PATH": "/bin",
        "TZ": "UTC",
        "LC_ALL": "C",
        "ELASTIC_INCARNATION": "abc",
        "ELASTIC_SIDECAR": "1",
    }
    assert hosted_environment("", environ) == {"PATH": "/bin", "TZ": "UTC", "LC_ALL": "C"}


# --- the folder


def test_a_folder_is_its_owners_alone_and_goes(tmp_path):
    before = open_descriptors()
    folder = KeptFolder("kept-", parent=str(tmp_path))
    assert not folder.path.exists()
    folder.make()
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (keeper,) = folder.pids()
    fill(folder.path)
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{keeper}").exists()
    assert folder.pids() == frozenset()
    assert open_descriptors() == before


def test_a_folder_that_can_not_be_made_leaves_no_keeper(tmp_path):
    folder = KeptFolder("kept-", parent=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        folder.make()
    assert folder.pids() == frozenset()


OWNER = """
import os, signal, sys
from elastic_core.api import HostedProcess, KeptFolder
folder = KeptFolder("kept-", parent=sys.argv[1])
folder.make()
(folder.path / "deep" / "deeper").mkdir(parents=True)
(folder.path / "deep" / "deeper" / "file").write_text("x")
(folder.path / "link").symlink_to(sys.argv[2])
process = HostedProcess(["/bin/sleep", "300"], dict(folder.mark))
process.start()
if sys.argv[3] == "fork" and not os.fork():
    signal.pause()
print(*process.pids(), *folder.pids(), flush=True)
if sys.argv[3] != "end":
    signal.pause()
"""


@pytest.mark.parametrize("how", ["killed", "end", "fork"])
def test_a_folder_goes_when_its_owner_does_not_say_farewell(tmp_path, how):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for made in (outside, inside):
        made.mkdir()
    (outside / "precious").write_text("")
    argv = [sys.executable, "-c", OWNER, inside, outside, how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        server, keeper = map(int, owner.stdout.readline().split())
        if how != "end":
            owner.kill()
        owner.wait(20)
        try:
            wait_for(lambda: not list(inside.iterdir()), what="the folder's end")
            wait_for(lambda: not is_alive(server) and not is_alive(keeper), what="the processes' end")
        finally:
            if how == "fork":
                os.killpg(owner.pid, signal.SIGKILL)
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_keeper_kills_only_who_is_marked(tmp_path):
    script = OWNER.replace("dict(folder.mark)", "{}")
    argv = [sys.executable, "-c", script, tmp_path, tmp_path, "end"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, start_new_session=True)
    server, keeper = map(int, ended.stdout.split())
    wait_for(lambda: not is_alive(keeper) and not list(tmp_path.iterdir()), what="the folder's end")
    assert is_alive(server)
    os.kill(server, signal.SIGKILL)


def test_a_process_is_found_by_the_mark_of_its_folder(tmp_path, run):
    folder = KeptFolder("kept-", parent=str(tmp_path))
    process = run("exec sleep 60", environment=folder.mark)
    entry = "=".join(next(iter(folder.mark.items())))
    wait_for(lambda: processes_with(entry) == list(process.pids()), what="the mark")


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def fill(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("content")
