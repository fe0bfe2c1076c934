"""Reaching a host by its name: every address tried, every failure on one line, every wait cancellable."""

import re
import socket
import threading
import time
from contextlib import suppress

import pytest

from elastic_backend_net import endpoint
from elastic_backend_net.endpoint import dial, resolve
from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendUnavailableError, WaitCancelledError
from patience import kept, patience
from ports import free_port


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def names(monkeypatch):
    """Make names resolve to what a test says: a list of addresses, an error, or a function."""
    known = {}
    ask_system = socket.getaddrinfo

    def getaddrinfo(host, port, **options):
        answer = known.get(host)
        if answer is None:
            return ask_system(host, port, **options)
        if callable(answer):
            return answer()
        return [entry for ip in answer for entry in ask_system(ip, port, **options)]

    monkeypatch.setattr(endpoint.socket, "getaddrinfo", getaddrinfo)
    return known


@pytest.fixture
def silent():
    """An address that never answers: its queue of connections is full."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.9", free_port()))  # a test listens at the same port of another address
        server.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()


def test_what_a_connection_has_not_sent_when_it_is_closed_never_arrives(listener):
    sock = dial(*listener.getsockname(), timeout_s=patience(10), wait=WaitBudget())
    server, _ = listener.accept()
    with server:
        sock.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while True:  # until both the server's and this end's memory for it are full
                sent += sock.send(bytes(65536))
        sock.close()
        came, dropped = 0, False
        try:
            while data := server.recv(65536):
                came += len(data)
        except ConnectionResetError:
            dropped = True
        assert (dropped, came < sent) == (True, True)


def said_after(caught, least_s=0.0):
    """Return what was said without the time that it took, which is at least `least_s` and not much more."""
    said, after_s = re.fullmatch(r"(.*) after (\d+\.\d) s", str(caught.value)).groups()
    assert float(after_s) >= least_s
    kept(float(after_s), least_s + 1)
    return said


def cancel_after(wait, seconds):
    timer = threading.Timer(seconds, wait.cancel)
    timer.start()
    return timer


def test_connects(listener):
    port = listener.getsockname()[1]
    with dial("127.0.0.1", port, timeout_s=5, wait=WaitBudget()) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)
        assert sock.getblocking()


def test_tries_every_address(listener, names):
    names["two.test"] = ["127.0.0.2", "127.0.0.1", "127.0.0.2"]
    port = listener.getsockname()[1]
    with dial("two.test", port, timeout_s=5, wait=WaitBudget()) as sock:
        assert sock.getpeername()[0] == "127.0.0.1"


def test_a_silent_address_leaves_time_for_the_next(silent, names):
    names["two.test"] = [silent[0], "127.0.0.1"]
    with (
        socket.create_server(("127.0.0.1", silent[1])),
        dial("two.test", silent[1], timeout_s=patience(2), wait=WaitBudget()) as sock,
    ):
        assert sock.getpeername()[0] == "127.0.0.1"


def test_nobody_listens(listener, names):
    port = listener.getsockname()[1]
    names["gone.test"] = ["127.0.0.2", "127.0.0.3"]
    with pytest.raises(BackendUnavailableError) as caught:
        dial("gone.test", port, timeout_s=5, wait=WaitBudget())
    said = f"cannot connect to 'gone.test:{port}' (127.0.0.2, 127.0.0.3: Connection refused)"
    assert said_after(caught) == said


def test_nobody_answers(silent):
    host, port = silent
    with pytest.raises(BackendUnavailableError) as caught:
        dial(host, port, timeout_s=0.3, wait=WaitBudget())
    said = re.escape(f"cannot connect to '{host}:{port}' ({host}: no answer within ")
    assert re.fullmatch(rf"{said}0\.[0-3] s\)", said_after(caught, 0.3))  # of 0.3 s, without what came before


def test_the_budget_is_shorter_than_the_time_limit(silent):
    began = time.monotonic()
    with pytest.raises(BackendUnavailableError, match=r"no answer within 0\.[12] s"):
        dial(*silent, timeout_s=60, wait=WaitBudget.lasting(0.2))
    kept(time.monotonic() - began, 5)


def test_cancelled_while_connecting(silent):
    wait = WaitBudget()
    cancel_after(wait, 0.1)
    began = time.monotonic()
    with pytest.raises(WaitCancelledError):
        dial(*silent, timeout_s=60, wait=wait)
    kept(time.monotonic() - began, 1)


def test_cancelled_before(listener):
    wait = WaitBudget()
    wait.cancel()
    with pytest.raises(WaitCancelledError):
        dial("localhost", listener.getsockname()[1], timeout_s=60, wait=wait)


def test_cancelling_later_touches_nothing(listener, silent):
    wait = WaitBudget()
    with pytest.raises(BackendUnavailableError):
        dial(*silent, timeout_s=0.05, wait=wait)
    with dial("127.0.0.1", listener.getsockname()[1], timeout_s=5, wait=WaitBudget()) as sock:
        wait.cancel()
        sock.sendall(b"still open")


def test_unknown_name(names):
    def unknown():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names["nowhere.test"] = unknown
    with pytest.raises(BackendUnavailableError) as caught:
        dial("nowhere.test", 1, timeout_s=5, wait=WaitBudget())
    assert said_after(caught) == "cannot resolve 'nowhere.test' (Name or service not known)"


@pytest.mark.parametrize("name", ["a..b", "x" * 70 + ".test"])
def test_names_that_are_none(name):
    with pytest.raises(BackendUnavailableError, match=r"cannot resolve .* \(not a valid host name\)"):
        resolve(name, 1, wait=WaitBudget())


def test_a_name_server_that_does_not_answer(names):
    never = threading.Event()
    names["slow.test"] = lambda: never.wait(20) and []
    try:
        with pytest.raises(BackendUnavailableError) as caught:
            resolve("slow.test", 1, wait=WaitBudget(), timeout_s=0.2)
        assert said_after(caught, 0.2) == "cannot resolve 'slow.test' (no answer)"
        wait = WaitBudget()
        cancel_after(wait, 0.1)
        began = time.monotonic()
        with pytest.raises(WaitCancelledError):
            resolve("slow.test", 1, wait=wait)
        kept(time.monotonic() - began, 1)
    finally:
        never.set()
