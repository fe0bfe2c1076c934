"""Bounds of the control plane: what is read of an answer, and how many are answered at once."""

import os
import re
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from elastic_ops.control_plane import client
from elastic_ops.control_plane.server import MOST_CONNECTIONS
from elastic_ops.control_plane.worker_server import WorkerServer
from support import places_of_runs, wait_for

FLOODS = """
import os, socket
server = socket.socket(socket.AF_UNIX)
path = os.environ["TORCH_WORKER_SERVER_SOCKET"]
server.bind(f"{path}-")
server.listen()
os.rename(f"{path}-", path)  # who sees it is answered
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    try:
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\n")
        for _ in range(400):
            peer.sendall(bytes(1 << 20))
    except OSError:
        pass
    peer.close()
"""


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="ec-", dir="/tmp") as folder:  # short: sockets are in it
        yield Path(folder)


def rss_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def test_a_worker_that_answers_without_end_costs_a_line(elastic, script, folder):
    agent = elastic("--no-worker-hooks", script(FLOODS), env=places_of_runs(folder))
    path = str(wait_for(lambda: list(folder.rglob("agent.sock")))[0])
    wait_for(lambda: any(os.path.exists(f"{path.rpartition('/')[0]}/{name}") for name in names(path)))
    before = rss_mib(agent.pid)
    line = "its own server:\nleft out: its answer is longer than 1 MiB\n"
    wait_for(lambda: line in client.call(path, "stacks").text, what=line)  # a worker without a turn does not answer
    assert rss_mib(agent.pid) < before + 15
    assert client.call(path, "ping").text == "pong"


def names(path):
    return [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".sock") and name != "agent.sock"]


# --- the client


@pytest.fixture
def server(folder):
    """Serve raw answers: a function that takes a connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(folder / "s")
        listener.bind(path)
        listener.listen()

        def serving(answer):
            def serve():
                peer, _ = listener.accept()
                with peer, suppress(OSError):
                    peer.recv(4096)
                    answer(peer)

            threading.Thread(target=serve, daemon=True).start()
            return path

        yield serving


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def test_an_answer_is_read_to_its_bound(server):
    path = server(lambda peer: peer.sendall(HEAD + b"Content-Length: 10\r\n\r\n0123456789"))
    assert client.call(path, "x", longest=10).text == "0123456789"


@pytest.mark.parametrize("head", [HEAD + b"\r\n", HEAD + b"Content-Length: 400000000\r\n\r\n"])
def test_an_answer_beyond_its_bound_is_refused(server, head):
    path = server(lambda peer: peer.sendall(head + bytes(100_000)))
    with pytest.raises(client.AnswerTooLongError, match=r"^its answer is longer than 0\.03125 MiB$"):
        client.call(path, "x", longest=1 << 15)


def test_an_answer_that_trickles_has_one_deadline(server):
    over = threading.Event()

    def trickle(peer):
        peer.sendall(HEAD + b"\r\n")
        while not over.wait(0.05):
            peer.sendall(b"x")

    with pytest.raises(TimeoutError):
        client.call(server(trickle), "x", timeout_s=0.5)
    over.set()


# --- the servers


@pytest.fixture
def held():
    """Return what makes connections that say nothing, and close them all."""
    with ExitStack() as made:

        def connect(path, number):
            clients = [made.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(number)]
            for each in clients:
                each.connect(path)
            return clients

        yield connect


def sockets(pid):
    """Return the sockets that a process has open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("socket:")}


def test_the_agent_answers_some_at_a_time(elastic, script, folder, held):
    agent = elastic(script("import time\ntime.sleep(60)\n"), env=places_of_runs(folder))
    path = str(wait_for(lambda: list(folder.rglob("agent.sock")))[0])
    tasks = Path(f"/proc/{agent.pid}/task")
    statuses = folder.rglob
    wait_for(lambda: any(path in each.read_text() for each in statuses("status.json")), what="all its threads")
    assert client.call(path, "ping").text == "pong"  # whoever waits for connections is there
    before, threads = sockets(agent.pid), len(list(tasks.iterdir()))
    clients = held(path, 2 * MOST_CONNECTIONS)
    wait_for(lambda: len(sockets(agent.pid) - before) >= MOST_CONNECTIONS)
    assert len(sockets(agent.pid) - before) == MOST_CONNECTIONS
    assert len(list(tasks.iterdir())) < threads + 2 * MOST_CONNECTIONS  # its files are written by one of a moment
    for each in clients:
        each.close()
    assert client.call(path, "ping").text == "pong"


def test_a_worker_answers_some_at_a_time_and_ends_meanwhile(folder, held):
    path = str(folder / "w")
    before = {*threading.enumerate()}
    server = WorkerServer(path)
    waiting = {*threading.enumerate()}

    def served():
        return len({*threading.enumerate()} - waiting)

    clients = held(path, MOST_CONNECTIONS + 8)
    wait_for(lambda: served() >= MOST_CONNECTIONS)
    assert served() == MOST_CONNECTIONS
    for each in clients[:4]:
        each.close()
    wait_for(lambda: served() == MOST_CONNECTIONS)
    server.shutdown()
    for each in clients:
        each.close()
    wait_for(lambda: {*threading.enumerate()} <= before)
