"""A server's process beside ours."""

import os
import signal
import threading
from pathlib import Path

import pytest

from elastic_backend_net.hosted_server import HostedProcess, hosted_environment
from elastic_core.api import WaitBudget
from elastic_core.api.stores import WaitCancelledError
from group_kit import all_closed_since, open_fds
from patience import patience
from proc_kit import is_alive
from support import wait_for

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
    assert process.ending(within_s=patience(20)) == ending
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
    assert process.ending(within_s=patience(20)) == "ended with code 0"
    assert said.read_text() == "hello"


def test_a_program_that_can_not_be_run_leaves_nothing(tmp_path):
    before = open_fds()
    process = HostedProcess([str(tmp_path)], {})
    with pytest.raises(PermissionError):
        process.start()
    assert process.pids() == frozenset()
    assert not process.alive
    process.stop()
    all_closed_since(before)


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
