"""Parts of a kept worker, without a process of its own: messages, errors of peers, and what it takes for a pool."""

import ctypes
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref

import pytest

from elastic_core.failure import classify
from elastic_warm import groups, leaving, loaders, residue
from elastic_warm.client import MAX_MESSAGE_BYTES, AgentConnection, ConnectionOverError
from patience import patience

PR_SET_NAME = 15  # linux/prctl.h

# --- messages


@pytest.fixture
def ends(tmp_path):
    """The agent's end of a connection, and the worker's."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        connection = AgentConnection(path)
        agent, _ = server.accept()
    with agent:
        yield agent, connection
    connection.close()


def received(connection, count):
    messages = []
    while len(messages) < count:
        messages += connection.receive()
    return messages


def test_messages_come_in_any_pieces(ends):
    agent, connection = ends
    lines = b"".join(json.dumps({"kind": f"k{number}", "text": "x" * 50_000}).encode() + b"\n" for number in range(3))
    sender = threading.Thread(
        target=lambda: [agent.sendall(lines[at : at + 7001]) for at in range(0, len(lines), 7001)]
    )
    sender.start()
    assert [message["kind"] for message in received(connection, 3)] == ["k0", "k1", "k2"]
    sender.join()


def test_descriptors_belong_to_the_message_that_names_them(ends):
    agent, connection = ends
    read, write = os.pipe()
    agent.sendall(b'{"kind": "first"}\n')
    line = json.dumps({"kind": "place", "fds": ["stdout", "stderr"], "text": "x" * 200_000}).encode() + b"\n"
    sender = threading.Thread(target=lambda: agent.sendall(line[socket.send_fds(agent, [line], [read, write]) :]))
    sender.start()
    first, place = received(connection, 2)
    sender.join()
    assert first["fds"] == {}
    assert [os.fstat(place["fds"][name]).st_ino for name in ("stdout", "stderr")] == [os.fstat(read).st_ino] * 2
    assert not any(os.get_inheritable(fd) for fd in place["fds"].values())
    for fd in (read, write, *place["fds"].values()):
        os.close(fd)


@pytest.mark.parametrize(
    "content",
    [b"no json\n", b"[1]\n", b'{"kind": "place", "fds": ["stdout"]}\n', b"x" * (MAX_MESSAGE_BYTES + 1), b""],
)
def test_what_is_no_message_ends_the_connection(ends, content):
    agent, connection = ends

    def send():
        agent.sendall(content)
        agent.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(ConnectionOverError):
        received(connection, 1)
    connection.close()
    sender.join()


def test_a_message_to_an_agent_that_is_gone_is_dropped(ends):
    agent, connection = ends
    agent.close()
    connection.send("left", round=1)
    connection.send("left", round=1)


# --- errors


def test_the_same_errors_are_a_peer_s_as_in_reports():
    assert leaving._COLLATERAL.pattern == classify._COLLATERAL.pattern
    assert {kind.__name__ for kind in leaving._COLLATERAL_TYPES} == classify._COLLATERAL_TYPES


@pytest.mark.parametrize(
    ("error", "is_collateral"),
    [
        (ConnectionResetError(104, "reset"), True),
        (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("The server socket has failed to listen; address already in use"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("own"), False),
        (KeyboardInterrupt(), False),
        (SystemExit("connection reset by peer"), False),
    ],
)
def test_errors_of_a_peer(error, is_collateral):
    assert bool(leaving.collateral_text(error)) is is_collateral
    wrapped = ValueError("around it")
    wrapped.__cause__ = error
    assert bool(leaving.collateral_text(wrapped)) is is_collateral


def test_frames_of_all_exceptions_of_a_chain_are_cleared():
    class Held:
        pass

    ended = []

    def fail():
        held = Held()
        weakref.finalize(held, ended.append, "held")
        raise ValueError("first")

    try:
        try:
            fail()
        except ValueError as first:
            raise ExceptionGroup("group", [first]) from None
    except ExceptionGroup as error:
        found = error
    assert not ended
    leaving.clear_frames(found)
    assert ended == ["held"]
    assert found.__traceback__ is None


# --- threads and loaders


def test_a_native_thread_that_waits_for_work_is_a_pool_s():
    started, go_on = threading.Event(), threading.Event()

    def run():
        started.set()
        go_on.wait()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        deadline_s = time.monotonic() + 60
        while not residue._waits_for_work(thread.native_id):
            assert time.monotonic() < deadline_s
    finally:
        go_on.set()
        thread.join()


def test_loaders_that_are_abandoned_wait_less(monkeypatch):
    class Utils:
        MP_STATUS_CHECK_INTERVAL = 5.0

    seen = []

    class _MultiProcessingDataLoaderIter:
        def __del__(self):
            seen.append(Utils.MP_STATUS_CHECK_INTERVAL)

    class Loaders:
        pass

    Loaders._MultiProcessingDataLoaderIter = _MultiProcessingDataLoaderIter
    monkeypatch.setitem(sys.modules, loaders._UTILS, Utils)
    monkeypatch.setitem(sys.modules, loaders._LOADERS, Loaders)
    for _ in range(2):
        loaders.end_quickly()
        _MultiProcessingDataLoaderIter()
    assert seen == [loaders.JOIN_S] * 2
    assert Utils.MP_STATUS_CHECK_INTERVAL == 5.0


# --- threads of gloo


def test_the_waits_of_gloo_s_threads_end_while_groups_are_destroyed():
    libc, ended, begun, signum = ctypes.CDLL(None), queue.Queue(), threading.Barrier(3), signal.SIGRTMAX - 9

    def wait(name):
        libc.prctl(PR_SET_NAME, name)
        begun.wait()
        ended.put((name, libc.poll(None, 0, -1)))

    threads = [threading.Thread(target=wait, args=[name], daemon=True) for name in (b"gloo_tcp_loop", b"another")]
    before = signal.signal(signum, lambda *_: None)
    try:
        for thread in threads:
            thread.start()
        begun.wait()
        with groups.woken(signum):
            assert ended.get(timeout=patience(20)) == (b"gloo_tcp_loop", -1)  # it was interrupted
        assert threads[1].is_alive()
        while ended.empty():  # it may be just about to wait
            signal.pthread_kill(threads[1].ident, signum)
            threads[1].join(0.01)
    finally:
        signal.signal(signum, before)
