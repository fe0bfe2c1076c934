"""The agent's side of the agent store, with small programs in place of the one that imports torch."""

import os
import signal
import sys

import pytest

from elastic_core.api import HookSettings
from elastic_core.api.stores import BackendUnavailableError
from elastic_plugin_kit import MasterServerConformance
from elastic_plugin_kit.real_loop import RealLoop
from elastic_torchrun.store.hook import StoreServer
from elastic_torchrun.store.sidecar import StoreSidecar
from support import processes_with, wait_for

# Speaks the protocol; what it was told is in a file, a process a line.
PROGRAM = """
import os, signal, sys
mode, told = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
if mode == "dies":
    os._exit(9)
for line in os.fdopen(os.dup(0), "r"):
    os.write(told, f"{os.getpid()} {line}".encode())
    if mode == "mute":
        continue
    if mode == "late" and line == "open 7001\\n":
        continue
    if mode == "late":
        os.write(0, b"failed this is for 7001\\n")
    if mode == "fails":
        answer = "failed OSError: port taken"
    else:
        answer = "closed" if line == "close\\n" else "opened"
    os.write(0, f"{answer}\\n".encode())
"""


class Desk:
    """A sidecar on a loop, and what came of it."""

    def __init__(self, folder, mode):
        self.loop = RealLoop()
        self.notices = self.loop.notices
        self.told_path = folder / "told"
        self.log = folder / "agent_store.log"
        self.mark = f"test{os.getpid()}{folder.name}"
        self.sidecar = StoreSidecar(
            self.loop,
            incarnation=self.mark,
            log_file=self.log,
            argv=[sys.executable, "-c", PROGRAM, mode, str(self.told_path)],
        )

    def told(self):
        return [line.split(None, 1) for line in self.told_path.read_text().splitlines()]

    def turn_until(self, condition, what):
        def turned():
            self.loop.turn(0.01)
            return condition()

        wait_for(turned, what=what)

    def done(self, command, *args):
        """Carry a command to its end; return what it answers."""
        reasons = []
        command(*args, reasons.append)
        self.turn_until(lambda: reasons, "an answer")
        return reasons[0]

    def processes(self):
        return processes_with(f"ELASTIC_INCARNATION={self.mark}")


@pytest.fixture
def desk(tmp_path):
    desks = []

    def make(mode="good"):
        desks.append(Desk(tmp_path, mode))
        return desks[-1]

    yield make
    for each in desks:
        each.sidecar.close()


def test_one_process_serves_all_rounds(desk):
    here = desk()
    sidecar = here.sidecar
    assert here.done(sidecar.open_store, 7001) == ""
    assert here.done(sidecar.close_store) == ""
    assert here.done(sidecar.open_store, 7002) == ""
    assert [line for _, line in here.told()] == ["open 7001", "close", "open 7002"]
    assert {int(pid) for pid, _ in here.told()} == set(sidecar.pids()) == set(here.processes())


def test_closing_what_is_not_open_needs_no_process(desk):
    here = desk()
    assert here.done(here.sidecar.close_store) == ""
    assert here.sidecar.pids() == frozenset()


def test_death_while_open_opens_an_empty_store_on_the_same_port_and_says_so(desk):
    here = desk()
    here.done(here.sidecar.open_store, 7001)
    (first,) = here.sidecar.pids()
    os.kill(first, signal.SIGKILL)
    here.turn_until(lambda: len(here.told()) == 2, "the next process to be told")
    assert [line for _, line in here.told()] == ["open 7001", "open 7001"]
    assert len(here.sidecar.pids() - {first}) == 1
    (notice,) = here.notices
    assert "was killed by SIGKILL" in notice
    assert here.done(here.sidecar.open_store, 7002) == ""


def test_death_between_rounds_is_nobodys_business_and_the_next_round_has_a_store(desk):
    here = desk()
    here.done(here.sidecar.open_store, 7001)
    here.done(here.sidecar.close_store)
    (first,) = here.sidecar.pids()
    os.kill(first, signal.SIGKILL)
    here.turn_until(lambda: not here.sidecar.pids(), "the dead one to be reaped")
    assert here.done(here.sidecar.open_store, 7002) == ""
    assert here.notices == []


def test_a_process_that_keeps_dying_is_given_up_with_its_last_end(desk):
    here = desk("dies")
    reason = here.done(here.sidecar.open_store, 7001)
    assert reason == "its process ended with exit code 9, the last of 3 within 60 s"
    assert here.sidecar.pids() == frozenset()


def test_a_program_that_does_not_exist_is_an_answer(desk, tmp_path):
    here = desk()
    sidecar = StoreSidecar(here.loop, incarnation="x", log_file=tmp_path / "log", argv=[str(tmp_path / "none")])
    sidecar.start()
    reasons = []
    sidecar.open_store(7001, reasons.append)
    assert "can't be started" in reasons[0]
    assert "No such file" in reasons[0]


def test_a_refused_store_is_one_line_with_what_to_try(desk):
    here = desk("fails")
    error = here.done(here.sidecar.open, 7001)
    assert isinstance(error, BackendUnavailableError)
    assert str(error) == "the agent store can't be opened: OSError: port taken. Try: run without --agent-store"


def test_the_agent_has_a_store_opened_and_shut(desk):
    here = desk()
    assert here.done(here.sidecar.open, 7001) is None
    assert here.done(here.sidecar.shut) is None
    assert [line for _, line in here.told()] == ["open 7001", "close"]


def test_a_late_answer_is_not_taken_for_the_next_commands(desk):
    here = desk("late")
    given_up = []
    here.sidecar.open_store(7001, given_up.append)
    assert here.done(here.sidecar.open_store, 7002) == ""
    assert given_up == []


def test_close_leaves_neither_process_nor_empty_log_and_may_be_repeated(desk):
    here = desk("mute")
    here.sidecar.start()
    assert wait_for(here.processes)
    here.sidecar.close()
    here.sidecar.close()
    assert here.processes() == []
    assert not here.log.exists()


def test_the_process_outlives_signals_that_stop_workers(desk):
    here = desk()
    here.done(here.sidecar.open_store, 7001)
    (pid,) = here.sidecar.pids()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, signum)
    assert here.done(here.sidecar.open_store, 7002) == ""
    assert here.sidecar.pids() == {pid}
    assert os.getsid(pid) == pid


# --- as the agent has it, with a torch that only listens

TORCH = """
import socket

class TCPStore:
    def __init__(self, host, port, *, is_master, wait_for_workers):
        self.socket = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 1)
        self.socket.bind(("0.0.0.0", port))
        self.socket.listen()
"""


class TestStoreServer(MasterServerConformance):
    @pytest.fixture
    def make_server(self, tmp_path, monkeypatch):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").touch()
        (tmp_path / "torch" / "distributed.py").write_text(TORCH)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return lambda loop: StoreServer(loop, HookSettings(name="agent-store", run_dir=str(tmp_path)), given=True)
