"""Commands and replies as bytes, in every division into pieces."""

import subprocess
import sys
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_rdzv_redis.protocol import (
    ErrorReply,
    LoginError,
    MovedError,
    NoScriptError,
    NotRedisError,
    Replies,
    packed,
)

VALUES = st.recursive(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=50),
    lambda below: st.lists(below, max_size=4),
    max_leaves=20,
)


def written(value):
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(written, value))


def replies(*pieces):
    waiting = deque(pieces)

    def receive():
        if not waiting:
            raise TimeoutError
        return waiting.popleft()

    return Replies(receive)


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_replies_are_read_however_they_are_divided(values, data):
    raw = b"".join(map(written, values))
    cuts = data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=8).map(sorted))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True) if begin < end]
    read = replies(*pieces)
    assert [read.next() for _ in values] == values
    assert not read.buffered
    with pytest.raises(TimeoutError):
        read.next()


def test_a_command_is_a_list_of_byte_strings():
    assert packed(("SET", b"\xff\r\n", 12)) == b"*3\r\n$3\r\nSET\r\n$3\r\n\xff\r\n\r\n$2\r\n12\r\n"
    assert packed(("ä",)) == b"*1\r\n$2\r\n\xc3\xa4\r\n"


def test_a_status_is_bytes_and_a_missing_list_is_none():
    read = replies(b"+OK\r\n*-1\r\n")
    assert [read.next(), read.next()] == [b"OK", None]


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("ERR no such key", ErrorReply, "no such key"),
        ("WRONGTYPE Operation against", ErrorReply, "WRONGTYPE Operation against"),
        ("NOSCRIPT No matching script.", NoScriptError, "NOSCRIPT No matching script."),
        ("NOAUTH Authentication required.", LoginError, "NOAUTH Authentication required."),
        ("WRONGPASS invalid username-password pair", LoginError, "WRONGPASS invalid username-password pair"),
    ],
)
def test_an_error_is_raised_with_its_text(line, kind, text):
    with pytest.raises(ErrorReply) as caught:
        replies(f"-{line}\r\n".encode()).next()
    assert (type(caught.value), str(caught.value)) == (kind, text)


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [("1 10.0.0.7:6381", "10.0.0.7", 6381), ("9 ::1:7000", "::1", 7000), ("9 :7000", "", 7000)],
)
def test_a_moved_key_names_its_node(line, host, port):
    with pytest.raises(MovedError) as caught:
        replies(f"-MOVED {line}\r\n".encode()).next()
    assert (caught.value.host, caught.value.port) == (host, port)


def test_the_replies_after_an_error_can_be_read():
    read = replies(b"*2\r\n-ERR in a list\r\n:1\r\n-ERR alone\r\n:2\r\n")
    error, one = read.next()
    assert (str(error), one) == ("in a list", 1)
    with pytest.raises(ErrorReply, match="alone"):
        read.next()
    assert read.next() == 2


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b"*\r\n", b"\r\n", b"-MOVED 1 nowhere\r\n"],
)
def test_what_is_no_reply_is_not_read(raw):
    with pytest.raises(NotRedisError):
        replies(raw).next()


def test_a_connection_without_tls_does_not_import_what_takes_memory(redis_server):
    code = f"""
import sys
from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_rdzv_redis.store import RedisStore
settings = RendezvousSettings(
    backend="redis", run_id="r", endpoint="{redis_server.endpoint}", min_nodes=1, max_nodes=2, local_world_size=1
)
store, wait = RedisStore(settings), WaitBudget.lasting(60)
store.connect(wait=wait)
seat = store.enlist(b"", incarnation="a", ttl_s=5, wait=wait)
print(store.renew(seat, ttl_s=5, wait=wait).live, *sys.modules)
store.close()
"""
    command = [sys.executable, "-c", code]
    live, *loaded = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert live == "1"
    assert {"redis", "ssl", "asyncio", "logging"}.isdisjoint(loaded)
