"""The kit for servers at MASTER_PORT: a sound one passes, and each broken one fails where its defect is named."""

import socket
import subprocess
import threading

import pytest

from elastic_core.api.starters import MasterServer
from elastic_core.api.stores import BackendUnavailableError
from elastic_plugin_kit import MasterServerConformance, RealLoop
from elastic_plugin_kit.conformance.master_server import Node


class Plain(MasterServer):
    """Listens in this process."""

    def __init__(self, loop):
        self.socket = None

    def open(self, port, done):
        self.socket = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            self.socket.bind(("0.0.0.0", port))
        except OSError as err:
            done(BackendUnavailableError(f"port {port}: {err.strerror}"))
            return
        self.socket.listen()
        done(None)

    def shut(self, done):
        self.close()
        done(None)

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class TestPlain(MasterServerConformance):
    @pytest.fixture
    def make_server(self):
        return Plain


class Silent(Plain):
    """Says that it listens, and doesn't."""

    def open(self, port, done):
        done(None)


class Greedy(Plain):
    """Wants the port for itself."""

    def open(self, port, done):
        self.socket = socket.socket()
        try:
            self.socket.bind(("0.0.0.0", port))
        except OSError as err:
            done(BackendUnavailableError(err.strerror))


class Stays(Plain):
    """Is never shut."""

    def shut(self, done):
        done(None)


class Mute(Plain):
    """Answers `shut` only if something is open."""

    def shut(self, done):
        if self.socket is not None:
            super().shut(done)


class Hopeful(Plain):
    """Takes every port for its own."""

    def open(self, port, done):
        super().open(port, lambda error: done(None))


class Slow(Plain):
    """Has all else wait."""

    def open(self, port, done):
        threading.Event().wait(0.3)
        super().open(port, done)


class Leaves(Plain):
    """Leaves a process."""

    helpers = ()

    def open(self, port, done):
        self.helpers = (subprocess.Popen(["/bin/sleep", "60"]),)
        super().open(port, done)

    def pids(self):
        return [helper.pid for helper in self.helpers]


BROKEN = [
    (Silent, "it_listens_when_it_has_answered", "no server listens"),
    (Greedy, "it_listens_when_it_has_answered", "`open` failed for a port that the agent holds"),
    (Stays, "each_round_has_a_port_of_its_own", "accepts connections after `shut`"),
    (Mute, "shutting_what_is_not_open_is_answered", "`shut` has not called `done` within 0.2 s"),
    (Hopeful, "a_port_that_is_taken_is_an_error_with_its_reason", "returned None; expected BackendUnavailableError"),
    (Slow, "every_call_is_quick", r"a call took \d+\.\d s; expected less than 0\.2 s"),
    (Leaves, "the_end_leaves_nothing", "after `close`"),
]


@pytest.mark.parametrize(("cls", "name", "words"), BROKEN, ids=[cls.__name__ for cls, _, _ in BROKEN])
def test_a_broken_server_fails_where_its_defect_is_named(cls, name, words, monkeypatch):
    monkeypatch.setattr("elastic_plugin_kit.conformance.master_server.END_S", 0.2)
    if cls is Slow:
        monkeypatch.setattr("elastic_plugin_kit.conformance.master_server.QUICK_S", 0.2)
    kit, loop, made = MasterServerConformance(), RealLoop(), []
    kit.ready_s = 0.2

    def make(loop):
        made.append(cls(loop))
        return made[-1]

    node = None if name == "the_end_leaves_nothing" else Node(make(loop), loop, kit.ready_s)
    try:
        with pytest.raises(AssertionError, match=words):
            getattr(kit, f"test_{name}")(**({"make_server": make} if node is None else {"node": node}))
    finally:
        if node is not None:
            node.close()
        made[-1].close()
        for helper in getattr(made[-1], "helpers", ()):
            helper.kill()
            helper.wait()
