"""The HTTP server for probes and scrapes: what it answers, and what strangers can't use up."""

import errno
import json
import os
import resource
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_ops.control_plane import server as http_server
from elastic_ops.control_plane.handlers import Pages, Response
from elastic_ops.control_plane.listeners import TcpServer
from elastic_ops.control_plane.server import MOST_CONNECTIONS
from elastic_torchrun.agent.health_check_server import HealthCheckServer
from patience import patience
from ports import free_port
from support import wait_for


@pytest.fixture
def server():
    server = TcpServer("127.0.0.1", 0, Pages(page), name="pages")
    yield server
    server.shutdown()
    server.shutdown()


def page(path):
    if path == "/broken":
        raise ValueError("no page")
    response = Response()
    response.set_content(b"x" * (3_000_000 if path == "/large" else 3), "text/plain")
    return None if path == "/none" else response


def connected(port):
    return socket.create_connection(("127.0.0.1", port), 10)


def answer(port, request):
    with connected(port) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK", b"xxx"),
        (b"GET /large?a=b HTTP/1.0\r\n\r\n", b"200 OK", b"x" * 3_000_000),
        (b"HEAD / HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500 Internal Server Error", b"ValueError: no page\n"),
        (b"GET /none HTTP/1.1\r\n\r\n", b"404 Not Found", b""),
        (b"POST / HTTP/1.0\r\n\r\n", b"401 Unauthorized", b""),
        (b"PUT / HTTP/1.1\r\n\r\n", b"404 Not Found", b""),
        (b"\xff\x00 / HTTP/1.1\r\n\r\n", b"501 Unsupported method", None),
    ],
)
def test_what_is_answered(server, request_, status, body):
    head, _, rest = answer(server.port, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert body is None or rest == body


@pytest.mark.parametrize("request_", [b"", b"GET / HT", b"G" * 200_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 30_000])
def test_what_is_no_request_is_sent_away(server, request_):
    with connected(server.port) as client:
        with suppress(OSError):  # it may be closed at the other end already
            client.sendall(request_)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert not client.recv(100).startswith(b"HTTP/1.1 200")
    assert answer(server.port, b"GET / HTTP/1.1\r\n\r\n").endswith(b"xxx")


def test_a_request_byte_by_byte_ends_by_its_time_and_by_its_pieces(server):
    server._bounds = replace(server._bounds, request_s=0.5)
    for pause_s in (0.05, 0.005):
        with connected(server.port) as client:
            client.settimeout(pause_s)
            wait_for(lambda: sent_away(client), within_s=10, what="the end of the connection")  # at once


def sent_away(client):
    """Send one more byte; return whether the server has closed."""
    try:
        client.sendall(b"x")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_who_holds_all_connections_makes_room_for_who_waits(server):
    server._bounds = replace(server._bounds, crowded_s=patience(1))
    held = [connected(server.port) for _ in range(MOST_CONNECTIONS)]
    wait_for(lambda: len(server._strangers) == MOST_CONNECTIONS)
    assert answer(server.port, b"GET / HTTP/1.1\r\n\r\n").endswith(b"xxx")
    for client in held:
        client.close()


def test_when_descriptors_are_gone_it_does_not_spin(server, monkeypatch):
    real, refused = socket.socket.accept, []

    def refuse(listener):
        refused.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", refuse)
    with connected(server.port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_for(lambda: len(refused) >= 3)
        monkeypatch.setattr(socket.socket, "accept", real)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert all(later_s - sooner_s >= http_server.REFUSED_PAUSE_S for sooner_s, later_s in pairwise(refused))


# --- a run beside a hostile client

FAILS_ONCE = """
import os, pathlib, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0": sys.exit(0)
pathlib.Path("up").touch()
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count(pid, what):
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


def _settled(agent):
    """Whether all threads are there: the control plane's begins last, and then says where it listens."""
    return any("agent.sock" in path.read_text() for path in agent.runtime.rglob("status.json"))


@pytest.mark.parametrize("port_of", ["health", "metrics"])
def test_a_hostile_client_uses_up_nothing(elastic, script, tmp_path, port_of):
    port = free_port()
    args = ["--metrics-port", str(port)] if port_of == "metrics" else []
    agent = elastic(
        "--nproc-per-node", "2", "--max-restarts", "3", *args, script(FAILS_ONCE), cwd=tmp_path,
        env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)} if port_of == "health" else {},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96)),
    )  # fmt: skip
    wait_for((tmp_path / "up").exists)
    wait_for(lambda: _settled(agent), what="an agent that has settled")
    descriptors, threads = count(agent.pid, "fd"), count(agent.pid, "task")
    clients = [socket.socket() for _ in range(400)]
    try:
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        began_s, used_s = time.monotonic(), cpu_s(agent.pid)
        pause = threading.Event()
        while time.monotonic() < began_s + 4:
            for client in clients:
                with suppress(OSError):
                    client.send(b"x")  # never a whole line
            # Other parts of the agent have a file or a thread for a moment.
            wait_for(lambda: count(agent.pid, "fd") <= descriptors + MOST_CONNECTIONS, within_s=1)
            wait_for(lambda: count(agent.pid, "task") <= threads + MOST_CONNECTIONS + 1, within_s=1)
            pause.wait(0.5)
        assert cpu_s(agent.pid) - used_s < 0.8, "of 4 s"
        (tmp_path / "go").touch()
        assert agent.wait(60) == 0, agent.err
    finally:
        for client in clients:
            client.close()
    assert "restart 1 of 3" in agent.err
    assert "Too many open files" not in agent.err


def test_a_probe_is_answered_beside_a_hostile_client(server):
    server._bounds = replace(server._bounds, crowded_s=patience(1))  # a thread that gets no turn is no stranger
    clients = [socket.socket() for _ in range(3 * MOST_CONNECTIONS)]
    try:
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", server.port))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=60) as found:
            assert found.read() == b"xxx"
    finally:
        for client in clients:
            client.close()


def test_health_is_json():
    server = HealthCheckServer(lambda: SYSTEM_CLOCK.wall_ns() // 10**9, 0, 60, host="::1")
    server.start()
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.port}/health?x", timeout=10) as found:
            assert json.load(found)["alive"]
            assert found.headers["Content-Type"] == "application/json"
    finally:
        server.stop()
        server.stop()
