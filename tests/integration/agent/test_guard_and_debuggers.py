"""Tools that follow children and put their code into each: the guard stays itself, or does not act."""

import os
import posix
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_backend_net.hosted_server import HostedProcess
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.processes.sweep import is_alive
from elastic_core.system.reactor import Reactor
from patience import patience
from support import Lines, wait_for

SOURCES = str(Path(sys.modules["elastic_core"].__file__).parents[1])
GUARD = f"import sys; sys.path.append({SOURCES!r})\n{{tool}}\nfrom elastic_core.agent.guard.guard import main; main()"
TOOLS = {
    "thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "trace": "sys.settrace(lambda *_: None)",
}


@pytest.fixture
def followed(monkeypatch):
    """Have `os.posix_spawn` do as under a debugger: another command is run in place of each."""

    def spawn(path, argv, env, **how):
        return posix.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], env, **how)

    monkeypatch.setattr(os, "posix_spawn", spawn)


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]


def test_the_guard_is_what_it_was_meant_to_be(followed):
    reactor = Reactor()
    guardian = Guardian(reactor, incarnation=secrets.token_hex(8), log=Lines())
    try:
        guardian.start()
        wait_for(lambda: command(guardian.pid)[-1:] == [b"elastic-guard"])
        assert b"elastic_core.agent.guard.guard" in command(guardian.pid)[-2]
    finally:
        guardian.dismiss()
        reactor.close()


def test_so_is_a_server_of_the_agents(followed):
    server = HostedProcess(["/bin/sleep", "60"], {})
    try:
        server.start(output=1)
        (pid,) = server.pids()
        wait_for(lambda: command(pid) == [b"/bin/sleep", b"60"])
    finally:
        server.stop()


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("why", ["fence", "end"])
def test_a_guard_with_a_tool_in_it_says_so_and_ends_no_worker(tmp_path, tool, why):
    code = GUARD.format(tool=TOOLS[tool])
    worker = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    said = tmp_path / "said"
    with said.open("wb") as people, worker:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-c", f"import os; os.dup2({people.fileno()}, 3)\n{code}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[people.fileno()],
            env={},
        )
        with guard:
            fence_s = time.monotonic() if why == "fence" else float("inf")
            lines = f"agent {os.getpid()}\nincarnation x{secrets.token_hex(8)}\nworkers {worker.pid}\nfence {fence_s}\n"
            guard.stdin.write(lines.encode())
            guard.stdin.flush()
            if why == "end":
                guard.stdin.close()
                assert guard.wait(timeout=patience(20)) == 0
            wait_for(said.read_bytes)
            assert is_alive(worker.pid)
            guard.kill()
        worker.kill()
    line = "elastic: a debugger or another tool runs in the guard of this agent: the guard ends no worker\n"
    assert said.read_text() == line
