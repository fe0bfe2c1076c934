"""Parts of a kept worker, without a process of its own: messages, errors of peers, and what it takes for a pool."""

import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic_warm import gloo_loops, groups, leaving, loaders, residue, torch_state
from elastic_warm.client import MAX_MESSAGE_BYTES, AgentConnection, ConnectionOverError
from patience import patience
from support import wait_for

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


class OfAClient(ConnectionResetError):
    """As libraries derive theirs."""


@pytest.mark.parametrize(
    ("error", "is_collateral"),
    [
        (ConnectionResetError(104, "reset"), True),
        (OfAClient("gone"), True),
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


def test_an_error_about_this_worker_s_own_port_has_no_cause_that_counts():
    error = RuntimeError("The server socket has failed to listen; address already in use")
    error.__cause__ = ConnectionResetError(104, "reset")
    assert leaving.collateral_text(error) == ""


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (leaving.RoundOver(), True),
        (BaseExceptionGroup("of a task group", [ValueError("own"), leaving.RoundOver()]), True),
        (BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [leaving.RoundOver()])]), True),
        (ExceptionGroup("of a task group", [ValueError("own")]), False),
    ],
)
def test_the_end_of_the_round_may_be_in_a_group(error, is_over):
    assert leaving.is_round_over(error) is is_over
    wrapped = ValueError("around it")
    wrapped.__context__ = error
    assert leaving.is_round_over(wrapped) is is_over


@pytest.mark.parametrize("sibling", [KeyError(), leaving.RoundOver()], ids=["error", "end of the round"])
def test_an_error_that_is_raised_again_from_its_group_is_looked_at_once(sibling):
    first = ValueError()
    first.__context__ = BaseExceptionGroup("tasks", [first, sibling])
    assert leaving.is_round_over(first) is isinstance(sibling, leaving.RoundOver)


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


# --- connections


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_a_connection_to_the_round_s_store_is_shut_down_by_the_second_look(monkeypatch, family):
    address = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"  # torch connects by way of IPv6
    with ExitStack() as stack:
        store = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        other = stack.enter_context(socket.socket())
        port = store.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        other.connect(("127.0.0.1", port))
        stack.enter_context(store.accept()[0])
        generation = groups.Generation()  # these were there before
        own = stack.enter_context(socket.socket(family))
        own.connect((address, port))
        assert generation.shut() == 0
        wait_for(generation.shut)
        assert own.recv(1) == b""
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.recv(1)


# --- threads and loaders


NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "NCCL_SET_THREAD_NAME": "1",
}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {}),  # a launcher's
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
        ({"TORCH_NCCL_ENABLE_MONITORING": "1"}, {"TORCH_NCCL_ENABLE_MONITORING": "1"}),
        (  # the file that the user wants takes time
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": None},
        ),
        ({"NCCL_SET_THREAD_NAME": "0"}, {"NCCL_SET_THREAD_NAME": "0"}),
        ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": ""}, {}),
    ],
)
def test_nccl_leaves_its_errors_to_the_agent_unless_the_user_says_otherwise(monkeypatch, given, kept):
    monkeypatch.setattr(os, "environ", dict(given))
    torch_state.arm_devices()
    assert os.environ == {name: value for name, value in (NCCL | kept).items() if value is not None}


def test_the_page_lists_the_variables_of_nccl():
    page = (Path(__file__).parents[4] / "docs/howto/warm-functions.md").read_text()
    listed = dict(re.findall(r"^\| `(\w*NCCL\w*)` \| `(\d+)`", page, re.MULTILINE))
    assert listed == NCCL


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


def test_a_loop_of_gloo_is_woken_and_no_other_thread():
    begun, ended = threading.Barrier(3), {name: threading.Event() for name in (gloo_loops.LOOP, "another")}
    is_over = threading.Event()

    def pause(name):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        begun.wait()
        ctypes.CDLL(None).pause()  # returns after a signal, as the wait of a loop does
        ended[name].set()
        is_over.wait()

    def another_ends():
        signal.pthread_kill(another.ident, signum)
        return ended["another"].is_set()

    signum = signal.SIGRTMAX - 1
    before = signal.signal(signum, lambda *_: None)
    loop, another = (threading.Thread(target=pause, args=[name], daemon=True) for name in ended)
    try:
        loop.start()
        another.start()
        begun.wait()
        with gloo_loops.woken(0):
            assert not ended[gloo_loops.LOOP].is_set()
        with gloo_loops.woken(signum):
            assert ended[gloo_loops.LOOP].wait(patience(30))
        assert not ended["another"].is_set()
        wait_for(another_ends)
    finally:
        is_over.set()
        for thread in (loop, another):  # with all that is still on its way to it
            thread.join(patience(30))
        signal.signal(signum, before)


@pytest.mark.parametrize(
    ("module", "is_named"), [("elastic_torchrun.store.watch", False), ("a_module_of_the_script", True)]
)
def test_threads_that_hold_nothing_of_a_round_are_not_waited_for(module, is_named):
    before, go_on = residue.Before(), threading.Event()

    def run():
        go_on.wait()

    run.__module__ = module
    thread = threading.Thread(target=run, name="by the test")
    thread.start()
    try:
        assert any("'by the test'" in line for line in before.remains()) == is_named
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
