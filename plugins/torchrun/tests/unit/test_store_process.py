"""The protocol of the process that hosts the agent store; no store here is real."""

from typing import ClassVar

import pytest

from elastic_torchrun.store.process import NoStoreError, StoreHost, one_line, serve


class FakeStore:
    """Stands for a listening store: it is open for as long as somebody refers to it."""

    listening: ClassVar[set[int]] = set()

    def __init__(self, port):
        if port in self.listening:
            raise NoStoreError(f"port {port} is in use")
        self.port = port
        self.listening.add(port)

    def __del__(self):
        if hasattr(self, "port"):
            self.listening.discard(self.port)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(FakeStore, "listening", set())
    return FakeStore


def test_a_second_open_closes_the_first_store_before_it_binds_the_same_port(store):
    host = StoreHost(store)
    assert host.answer("open 7000") == "opened"
    assert host.answer("open 7000") == "opened"
    assert store.listening == {7000}


def test_close_closes_and_is_idempotent(store):
    host = StoreHost(store)
    host.answer("open 7000")
    assert [host.answer("close"), host.answer("close")] == ["closed", "closed"]
    assert store.listening == set()


def test_a_store_that_cannot_open_leaves_none_open_and_says_why(store):
    host = StoreHost(store)
    host.answer("open 7000")
    taken = store(7001)
    assert host.answer(f"open {taken.port}") == "failed port 7001 is in use"
    assert store.listening == {7001}
    assert host.answer("open 7002") == "opened"


@pytest.mark.parametrize("line", ["", "open", "open x", "open -1", "opened 1"])
def test_a_line_that_is_no_command_is_answered_so(store, line):
    assert StoreHost(store).answer(line) == f"failed unknown command {line!r}"
    assert store.listening == set()


def test_reason_has_one_line_without_native_frames_and_is_short():
    error = RuntimeError("the server socket has failed to listen\nException raised from listen at x.cpp:1\nframe #0")
    assert one_line(error) == "RuntimeError: the server socket has failed to listen"
    told = RuntimeError(
        "failed to listen. port: 1, code: -98, name: EADDRINUSE, message: address already in use\nframe"
    )
    assert one_line(told) == "address already in use"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 5000))) <= 400


def test_every_line_gets_one_answer_in_order(store):
    answers = []
    serve(StoreHost(store), [b"open 1\n", b"\xff\n", b"close\n"], answers.append)
    assert [answer.split()[0] for answer in answers] == [b"opened", b"failed", b"closed"]
    assert all(answer.endswith(b"\n") and answer.count(b"\n") == 1 for answer in answers)


def test_nobody_left_to_hear_ends_it_quietly(store):
    asked = []

    def lines():
        for line in (b"open 1\n", b"close\n"):
            asked.append(line)
            yield line

    def write(answer):
        raise BrokenPipeError

    serve(StoreHost(store), lines(), write)
    assert asked == [b"open 1\n"]
