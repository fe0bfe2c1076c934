"""What goes wrong on the way to a server, and what the core is told of it."""

import socket
import threading
import time

import pytest

from cancelled_calls import cancelled
from elastic_core.api import WaitBudget
from elastic_core.api.stores import (
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    Revisions,
    Topic,
    WaitCancelledError,
)
from elastic_rdzv_redis.failures import translated
from elastic_rdzv_redis.protocol import ErrorReply
from elastic_rdzv_redis.url import Login
from patience import kept
from ports import free_port
from redis_servers import Proxy, RedisServer
from support import wait_for
from time_limits import CANCELLED_S, OVERRUN_S

ALL = tuple(Topic)


@pytest.fixture
def proxy(redis_server):
    way = Proxy(redis_server.port)
    yield way
    way.close()


@pytest.fixture
def store(make_store, redis_server):
    return make_store(redis_server.endpoint)


def enlist(store, wait, name="a", ttl_s=30.0):
    return store.enlist(b"record", incarnation=name, ttl_s=ttl_s, wait=wait)


def until_it_works(call):
    """Return what a call gives once the server is back."""

    def attempt():
        try:
            return [call()]
        except (BackendUnavailableError, OutcomeUnknownError):
            return None

    return wait_for(attempt, within_s=15)[0]


# --- lost replies


@pytest.fixture
def taught(make_store, redis_server, wait):
    """Let the server know the scripts: the answer that is lost is not "unknown script"."""
    store = make_store(redis_server.endpoint, run="another")
    seat = enlist(store, wait)
    store.update(seat, b"", wait=wait)
    store.renew(seat, ttl_s=30, wait=wait)
    store.withdraw(seat, wait=wait)
    store.swap("round", b"", expect=None, keep_s=60, wait=wait)


def test_a_lost_reply_to_enlist_leaves_one_seat(make_store, taught, proxy, store, wait):
    behind = make_store(proxy.endpoint)
    behind.connect(wait=wait)
    proxy.lose_next_answer()
    with pytest.raises(OutcomeUnknownError):
        enlist(behind, wait)
    proxy.lost.wait(5)
    wait_for(lambda: store.members(wait=wait).members)  # it was carried out
    seat = enlist(behind, wait)
    assert [member.seat for member in store.members(wait=wait).members] == [seat.number]


def test_a_lost_reply_to_a_write_is_an_unknown_outcome(make_store, taught, proxy, store, wait):
    behind = make_store(proxy.endpoint)
    seat = enlist(behind, wait)
    for write in (
        lambda: behind.swap("round", b"1", expect=None, keep_s=60, wait=wait),
        lambda: behind.update(seat, b"x", wait=wait),
        lambda: behind.renew(seat, ttl_s=30, wait=wait),
        lambda: behind.withdraw(seat, wait=wait),
    ):
        behind.connect(wait=wait)
        proxy.lose_next_answer()
        with pytest.raises(OutcomeUnknownError, match=r"the connection to .* was lost before the answer"):
            write()
    assert store.load("round", wait=wait).value == b"1"
    assert store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions.round == 1  # once


def test_a_lost_reply_to_a_read_is_an_unavailable_store(make_store, proxy, wait):
    behind = make_store(proxy.endpoint)
    for read in (
        lambda: behind.members(wait=wait),
        lambda: behind.load("round", wait=wait),
        lambda: behind.watch(Revisions(), ALL, timeout_s=0, wait=wait),
    ):
        behind.connect(wait=wait)
        proxy.lose_next_answer()
        with pytest.raises(BackendUnavailableError):
            read()
        read()


def test_a_connection_that_was_closed_in_between_is_made_again_unseen(store, redis_server, wait):
    seat = enlist(store, wait)
    redis_server.call("CLIENT KILL TYPE normal")
    assert store.renew(seat, ttl_s=30, wait=wait).live == 1


# --- a server that is paused, or restarted


def test_a_paused_server_costs_no_more_than_the_wait(store, redis_server, wait):
    seat = enlist(store, wait)
    redis_server.pause()
    try:
        for call, error in (
            (lambda w: store.renew(seat, ttl_s=30, wait=w), OutcomeUnknownError),
            (lambda w: store.renew(seat, ttl_s=30, wait=w), BackendUnavailableError),  # no connection: nothing was sent
            (lambda w: store.members(wait=w), BackendUnavailableError),
            (lambda w: store.connect(wait=w), BackendUnavailableError),
        ):
            began_s = time.monotonic()
            with pytest.raises(error, match=r"no answer from 127\.0\.0\.1:\d+ in time"):
                call(WaitBudget.lasting(0.3))
            kept(time.monotonic() - began_s, 0.3 + OVERRUN_S)
    finally:
        redis_server.resume()
    assert store.renew(seat, ttl_s=30, wait=wait).live == 1


@pytest.mark.parametrize("what", ["renew", "connect", "watch"])
def test_cancelling_ends_a_call_to_a_paused_server(store, redis_server, wait, what):
    seat = enlist(store, wait)
    ended = WaitBudget()
    calls = {
        "renew": lambda: store.renew(seat, ttl_s=30, wait=ended),
        "connect": lambda: store.connect(wait=ended),
        "watch": lambda: store.watch(Revisions(), ALL, timeout_s=30, wait=ended),
    }
    at_s = []
    threading.Timer(0.2, lambda: (at_s.append(time.monotonic()), ended.cancel())).start()
    redis_server.pause()
    try:
        with pytest.raises(WaitCancelledError):
            calls[what]()
        kept(time.monotonic() - at_s[0], CANCELLED_S)
    finally:
        redis_server.resume()
    assert store.renew(seat, ttl_s=30, wait=wait).live == 1


def test_a_cancelled_watch_leaves_nothing_to_the_collector(store, wait):
    """Each one would hold a connection with its buffers until then."""
    enlist(store, wait)
    for asked_again in (False, True):  # what the first call imports is another matter
        now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        gone = cancelled(lambda w, now=now: store.watch(now, ALL, timeout_s=30, wait=w))
        assert gone or not asked_again


def test_a_cancelled_call_leaves_nothing_to_the_collector(store, redis_server, wait):
    seat = enlist(store, wait)
    redis_server.pause()
    try:
        assert cancelled(lambda w: store.renew(seat, ttl_s=30, wait=w))
        assert cancelled(lambda w: store.connect(wait=w))
    finally:
        redis_server.resume()


def test_a_watch_ends_when_its_server_dies(store, redis_server, wait):
    enlist(store, wait)
    now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    threading.Timer(0.3, redis_server.stop).start()
    began_s = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        store.watch(now, ALL, timeout_s=30, wait=wait)
    kept(time.monotonic() - began_s, 2)


def test_a_server_restarted_without_its_data_is_a_reset(store, redis_server, wait):
    seat = enlist(store, wait)
    now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    redis_server.stop()
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        store.renew(seat, ttl_s=30, wait=wait)
    redis_server.start()
    seen = store.watch(now, [Topic.ROUND], timeout_s=9, wait=wait)
    assert (seen.reset, seen.changed) == (True, {Topic.ROUND})
    assert store.renew(seat, ttl_s=30, wait=wait) is None


def test_a_server_restarted_with_its_data_goes_on(make_store, tmp_path, wait):
    server = RedisServer(tmp_path / "kept", keep_data=True)
    try:
        store, other = make_store(server.start().endpoint), make_store(server.endpoint)
        seat = enlist(store, wait)
        now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        other.connect(wait=wait)
        server.stop()
        server.start()
        seen = store.watch(now, ALL, timeout_s=0.1, wait=wait)
        assert (seen.reset, seen.changed) == (False, frozenset())
        assert store.renew(seat, ttl_s=30, wait=wait).live == 1
        # Pushes arrive on the new connection, too.
        threading.Timer(0.2, lambda: other.update(seat, b"x", wait=wait)).start()
        assert store.watch(now, [Topic.MEMBERS], timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
        server.empty()
        assert store.watch(now, ALL, timeout_s=9, wait=wait).reset
    finally:
        server.stop()


def test_a_lost_connection_for_pushes_is_made_again(store, make_store, redis_server, wait):
    seat = enlist(store, wait)
    now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    store.watch(now, ALL, timeout_s=0.05, wait=wait)
    redis_server.call("CLIENT KILL TYPE pubsub")
    other = make_store(redis_server.endpoint)
    timer = threading.Timer(0.2, lambda: other.update(seat, b"x", wait=wait))
    timer.start()
    assert until_it_works(lambda: store.watch(now, ALL, timeout_s=9, wait=wait)).changed == {Topic.MEMBERS}
    timer.join()


# --- no server, or another one


def test_nobody_listens(make_store, wait):
    port = free_port()
    with pytest.raises(BackendUnavailableError, match=f"127.0.0.1:{port}.*refused"):
        make_store(f"127.0.0.1:{port}").connect(wait=wait)


def test_a_name_that_does_not_resolve(make_store, wait):
    with pytest.raises(BackendUnavailableError, match=r"cannot resolve 'nosuch.invalid'"):
        make_store("nosuch.invalid").connect(wait=wait)


def test_a_port_that_never_answers(make_store):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with pytest.raises(BackendUnavailableError, match="in time"):
            make_store(f"127.0.0.1:{silent.getsockname()[1]}").connect(wait=WaitBudget.lasting(0.3))
        kept(time.monotonic() - began_s, 0.3 + OVERRUN_S)


def test_a_port_that_speaks_http(make_store, wait):
    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        with pytest.raises(BackendRefusedError, match="does not speak the protocol of Redis") as caught:
            make_store(f"127.0.0.1:{listener.getsockname()[1]}").connect(wait=wait)
    assert "the port of a Redis or Valkey server" in caught.value.hint


def test_a_unix_socket(make_store, tmp_path, wait):
    path = tmp_path / "r.sock"
    with pytest.raises(BackendUnavailableError, match=r"cannot connect to unix socket .*No such file"):
        make_store(f"unix://{path}").connect(wait=wait)
    server = RedisServer(tmp_path / "redis", unix_socket=path)
    try:
        server.start()
        store = make_store(f"unix://{path}?db=3")
        assert store.connect(wait=wait) == ""
        assert enlist(store, wait).ahead == 0
        assert "db3" in server.call("INFO keyspace")
        path.unlink()
        with pytest.raises(BackendUnavailableError, match="unix socket"):
            store.connect(wait=wait)
    finally:
        server.stop()


def test_ipv6(make_store, tmp_path, wait):
    server = RedisServer(tmp_path / "six", host="::1")
    try:
        assert make_store(server.start().endpoint).connect(wait=wait) == "::1"
    finally:
        server.stop()


def test_a_replica_is_unavailable_for_now(make_store, redis_server, store, wait):
    enlist(store, wait)
    redis_server.call("REPLICAOF 127.0.0.1 1")
    for call in (lambda: enlist(store, wait, "b"), lambda: store.members(wait=wait)):
        with pytest.raises(BackendUnavailableError, match=r"is a replica.* Try: the endpoint of the primary"):
            call()
    redis_server.call("REPLICAOF NO ONE")
    assert enlist(store, wait, "b").ahead == 1


def test_a_server_busy_with_a_script_is_unavailable_for_now(make_store, tmp_path, wait):
    server = RedisServer(tmp_path / "busy", config=("--lua-time-limit", "50"))
    try:
        store = make_store(server.start().endpoint)
        enlist(store, wait)
        looping = threading.Thread(target=server.call, args=('EVAL "while true do end" 0',), daemon=True)
        looping.start()

        def busy():
            try:
                store.members(wait=wait)
            except BackendUnavailableError as error:
                return "is busy with a script" in str(error)
            return False

        wait_for(busy, within_s=5)
        server.call("SCRIPT KILL")
        assert len(until_it_works(lambda: store.members(wait=wait)).members) == 1
        looping.join(5)
    finally:
        server.stop()


def test_a_server_that_forgot_its_scripts_learns_them_again(store, redis_server, wait):
    seat = enlist(store, wait)
    redis_server.call("SCRIPT FLUSH")
    assert store.renew(seat, ttl_s=30, wait=wait).live == 1


def test_a_full_server_is_unavailable_for_now(make_store, tmp_path, wait):
    server = RedisServer(tmp_path / "full", config=("--maxmemory", "1", "--maxmemory-policy", "noeviction"))
    try:
        with pytest.raises(BackendUnavailableError, match=r"is out of memory\. Try: raise maxmemory"):
            enlist(make_store(server.start().endpoint), wait)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", "log"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("ERR Error running script: @user_script:12: -OOM command not allowed", "maxmemory"),
        ("CLUSTERDOWN The cluster is down", "--cluster check"),
        ("MASTERDOWN Link with MASTER is down", "primary"),
        ("LOADING Redis is loading the dataset in memory", "wait"),
        ("ERR max number of clients reached", "maxclients"),
    ],
)
def test_what_helps_stands_beside_what_a_server_refuses_for_now(answer, hint):
    error = translated(ErrorReply(answer), peer="r:1", login=Login(), sent=True, writes=True)
    assert isinstance(error, BackendUnavailableError)
    assert hint in error.hint


def test_close_is_idempotent(store, wait):
    store.close()
    store.connect(wait=wait)
    store.close()
    store.close()
