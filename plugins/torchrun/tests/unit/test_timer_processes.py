"""Servers of timers and pids: a pid that another process has by now costs that one nothing, nor does the server's."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from elastic_core.compat.elastic import timer
from elastic_core.processes import procfs
from elastic_torchrun.timer import processes
from elastic_torchrun.timer.processes import Processes


@pytest.fixture(params=["file", "local"])
def server(request, tmp_path):
    if request.param == "local":
        yield timer.LocalTimerServer(None), lambda pid, scope: timer.TimerRequest(pid, scope, 1.0)
        return
    made = timer.FileTimerServer(str(tmp_path / "pipe"), "run")
    yield made, lambda pid, scope: timer.FileTimerRequest(pid, scope, 1.0, signal.SIGKILL)
    made.stop()


def test_timers_of_a_process_that_has_ended_are_not_those_of_the_next_one_with_its_pid(server, monkeypatch):
    server, make = server
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    server.register_timers([make(gone.pid, "old")])
    gone.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        pidfd_open = os.pidfd_open
        monkeypatch.setattr(os, "pidfd_open", lambda pid: pidfd_open(later.pid if pid == gone.pid else pid))
        server.register_timers([make(gone.pid, "new")])
        assert [each.scope_id for each in server.get_expired_timers(5.0)[gone.pid]] == ["new"]
        later.communicate(b"\n")
    server.clear_timers({gone.pid})


def test_several_timers_of_a_process_stay_set(server):
    server, make = server
    server.register_timers([make(os.getpid(), "a"), make(os.getpid(), "b")])
    server.register_timers([make(os.getpid(), "c")])
    assert [each.scope_id for each in server.get_expired_timers(5.0)[os.getpid()]] == ["a", "b", "c"]
    server.clear_timers({os.getpid()})


def test_a_process_is_held_once_and_one_that_has_ended_never():
    made = Processes()
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert [made.hold(os.getpid()), made.hold(os.getpid()), made.hold(gone.pid)] == [True, False, False]
    made.close()


SERVER = """
import os, resource, subprocess, sys
from elastic_core.compat.elastic import timer
server = timer.FileTimerServer("pipe", "run", max_interval=0.1)
server.start()
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError as full:
    print(full.errno)
worker.stdin.write(b"go\\n")
worker.stdin.flush()
print(worker.wait())
for fd in taken:
    os.close(fd)
server.stop()
"""
LATE = """
import signal, sys, time
from elastic_core.compat.elastic import timer
sys.stdin.readline()
timer.FileTimerClient("pipe", signal=signal.SIGKILL).acquire("step", time.time() + 0.1)
time.sleep(60)
"""


def test_a_server_without_a_descriptor_left_still_ends_who_is_late(tmp_path):
    """It holds a process by its start in place of a pidfd."""
    result = subprocess.run(
        [sys.executable, "-c", SERVER, LATE], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert result.stdout.split() == [str(errno.EMFILE), "-9"], result.stderr


def test_without_a_descriptor_a_later_process_with_the_pid_is_left_alone(monkeypatch):
    def full(pid):
        raise OSError(errno.EMFILE, "none left")

    killed = []
    monkeypatch.setattr(os, "pidfd_open", full)
    monkeypatch.setattr(os, "kill", lambda pid, signum: killed.append(pid))
    made = Processes()
    own = os.getpid()
    start = processes._start_of(own)
    assert start == procfs.read_stat(own).start_ticks
    assert [made.hold(own), made.hold(own), made.lives(own)] == [True, False, True]
    made.send(own, signal.SIGKILL)
    monkeypatch.setattr(processes, "_start_of", lambda pid: start + 1)
    made.send(own, signal.SIGKILL)
    assert (killed, made.lives(own), made.hold(own)) == ([own], False, True)
    made.close()


def test_that_a_process_can_not_be_held_at_all_is_logged_once(monkeypatch, caplog):
    def full(pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    monkeypatch.setattr(processes, "_start_of", lambda pid: None)
    made = Processes()
    assert [made.hold(os.getpid()), made.hold(os.getppid())] == [False, False]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("is without effect: it can't be held (Too many open files)")
    made.close()


def test_a_pipe_server_does_not_signal_its_own_process(tmp_path):
    got, heard = [], []
    before = signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
    try:
        path = str(tmp_path / "pipe")
        server = timer.FileTimerServer(path, "run", log_event=lambda name, request: heard.append(name))
        timer.FileTimerClient(path, signal=signal.SIGUSR2).acquire("s", 1.0)
        server.start()
        server.run_once()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (got, heard) == ([], ["watchdog started", "timer expired"])


def test_timers_beyond_the_bound_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("elastic_torchrun.timer.file_server.MOST", 2)
    made = timer.FileTimerServer(str(tmp_path / "pipe"), "run")
    try:
        pid = os.getpid()
        made.register_timers([timer.FileTimerRequest(pid, f"scope {n}", 1e12, 0) for n in range(4)])
        made.register_timers([timer.FileTimerRequest(pid, "scope 0", 2e12, 0)])  # one that is set may be set again
        found = made.get_expired_timers(3e12)[pid]
        assert [(each.scope_id, each.expiration_time) for each in found] == [("scope 0", 2e12), ("scope 1", 1e12)]
    finally:
        made.stop()


def test_a_queue_s_timers_beyond_the_bound_are_left_out(monkeypatch, caplog):
    monkeypatch.setattr("elastic_torchrun.timer.local_timer.MOST", 2)
    made = timer.LocalTimerServer(None)
    try:
        pid = os.getpid()
        made.register_timers([timer.TimerRequest(pid, f"scope {n}", 1e12) for n in range(4)])
        made.register_timers([timer.TimerRequest(pid, "scope 0", 2e12)])
        found = made.get_expired_timers(3e12)[pid]
        assert [(each.scope_id, each.expiration_time) for each in found] == [("scope 0", 2e12), ("scope 1", 1e12)]
        assert len(caplog.records) == 1
    finally:
        made.stop()
