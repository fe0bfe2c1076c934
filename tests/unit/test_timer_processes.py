"""Servers of timers and pids: a pid that another process has by now costs that one nothing, nor does the server's."""

import os
import signal
import subprocess
import sys

import pytest

from elastic_core import timer
from elastic_core.timer.processes import Processes


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
    processes = Processes()
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert [processes.hold(os.getpid()), processes.hold(os.getpid()), processes.hold(gone.pid)] == [True, False, False]
    processes.keep(())


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
