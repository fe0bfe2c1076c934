"""The client: what is sent once, what is tried elsewhere, what every answer means, and that nothing blocks for long."""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from elastic_core.api import (
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    WaitBudget,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_rdzv_etcd import connection, stream
from elastic_rdzv_etcd.coding import b64, prefix_end, unb64
from elastic_rdzv_etcd.errors import CompactedError, LeaseGoneError
from elastic_rdzv_etcd.failures import Said, answered
from elastic_rdzv_etcd.url import Login
from patience import kept, promised
from ports import free_port, free_ports
from promises import CANCELLED_S, OVERRUN_S
from redis_servers import Proxy
from support import wait_for


@pytest.fixture
def key(run_id):
    return f"/elastic/{run_id}/key".encode()


def put(gateway, key, wait, value=b"v", **more):
    return gateway.ask("kv/put", {"key": b64(key), "value": b64(value)} | more, wait=wait, writes=True)


def get(gateway, key, wait):
    kvs = gateway.ask("kv/range", {"key": b64(key)}, wait=wait, writes=False).get("kvs", [])
    return [(unb64(kv["value"]), int(kv["version"])) for kv in kvs]


def watching(gateway, wait, *prefixes, **more):
    creates = [{"key": b64(prefix), "range_end": b64(prefix_end(prefix))} | more for prefix in prefixes]
    return gateway.stream(creates, wait=wait)


@contextmanager
def cancelled_soon(seconds=0.2):
    """A budget that is cancelled after a moment; what is blocked on it must end at once."""
    wait = WaitBudget.lasting(20)
    times = []

    def cancel():
        times.append(time.monotonic())
        wait.cancel()

    timer = threading.Timer(seconds, cancel)
    timer.start()
    with pytest.raises(WaitCancelledError):
        yield wait
    ended_s = time.monotonic()
    timer.join()
    kept(ended_s - times[0], CANCELLED_S)


# --- requests


def test_a_key_is_written_and_read(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    assert gateway.open(wait) == "127.0.0.1"
    assert int(put(gateway, key, wait)["header"]["revision"]) > 1
    assert get(gateway, key, wait) == [(b"v", 1)]
    assert gateway.notices == []


def test_a_request_needs_no_open_and_survives_one(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(f"http://{etcd_server.endpoint}/")
    put(gateway, key, wait)
    gateway.open(wait)
    gateway.drop()
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_name_is_resolved(make_gateway, etcd_server, wait):
    assert make_gateway(f"localhost:{etcd_server.port}").open(wait) in ("127.0.0.1", "::1")


def test_leases_are_kept_alive_and_gone(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    lease = gateway.ask("lease/grant", {"TTL": "30"}, wait=wait, writes=True)["ID"]
    put(gateway, key, wait, lease=lease)
    assert gateway.ask("lease/keepalive", {"ID": lease}, wait=wait, writes=True)["TTL"] == "30"
    gateway.ask("lease/revoke", {"ID": lease}, wait=wait, writes=True)
    assert get(gateway, key, wait) == []
    assert "TTL" not in gateway.ask("lease/keepalive", {"ID": lease}, wait=wait, writes=True)
    with pytest.raises(LeaseGoneError, match="no such lease"):
        put(gateway, key, wait, lease=lease)
    with pytest.raises(LeaseGoneError):
        gateway.ask("lease/revoke", {"ID": lease}, wait=wait, writes=True)


def test_a_request_that_is_not_understood_is_refused(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    with pytest.raises(BackendRefusedError, match="no request of that size"):
        put(gateway, key, wait, b"x" * 2_000_000)
    with pytest.raises(BackendRefusedError, match="answered"):
        gateway.ask("kv/range", {"key": 7}, wait=wait, writes=False)
    assert get(gateway, key, wait) == []


def test_proxies_of_the_environment_are_ignored(make_gateway, etcd_server, wait, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert make_gateway(etcd_server.endpoint).open(wait)


# --- lost answers


@pytest.fixture
def proxy(etcd_server):
    proxy = Proxy(etcd_server.port)
    yield proxy
    proxy.close()


def test_a_write_whose_answer_was_lost_is_not_repeated(make_gateway, etcd_server, proxy, wait, key):
    gateway = make_gateway(f"{proxy.endpoint},{etcd_server.endpoint}")
    put(gateway, key, wait)
    proxy.lose_next_answer()
    with pytest.raises(OutcomeUnknownError, match=f"connection to {proxy.endpoint} was lost before the answer"):
        put(gateway, key, wait)
    assert proxy.lost.is_set()
    assert get(gateway, key, wait) == [(b"v", 2)]  # once, and not twice


def test_a_read_whose_answer_was_lost_is_asked_of_the_next_member(make_gateway, etcd_server, proxy, wait, key):
    gateway = make_gateway(f"{proxy.endpoint},{etcd_server.endpoint}")
    put(gateway, key, wait)
    proxy.lose_next_answer()
    assert get(gateway, key, wait) == [(b"v", 1)]
    assert proxy.lost.is_set()


def test_a_read_whose_answer_was_lost_fails_where_there_is_one_member(make_gateway, proxy, wait, key):
    gateway = make_gateway(proxy.endpoint)
    put(gateway, key, wait)
    proxy.lose_next_answer()
    with pytest.raises(BackendUnavailableError, match="was lost"):
        get(gateway, key, wait)
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_connection_that_is_closed_while_idle_is_noticed_before_a_write(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    put(gateway, key, wait)
    etcd_private.restart()
    put(gateway, key, wait)
    assert get(gateway, key, wait) == [(b"v", 2)]


# --- servers that do not answer


def test_where_nobody_listens(make_gateway, wait, key):
    port, other = free_ports(2)
    gateway = make_gateway(f"127.0.0.1:{port}")
    for call in (gateway.open, lambda wait: put(gateway, key, wait), lambda wait: watching(gateway, wait, key)):
        with promised(1), pytest.raises(BackendUnavailableError, match="Connection refused"):
            call(wait)
    several = make_gateway(f"127.0.0.1:{port},127.0.0.1:{other}")
    with pytest.raises(BackendUnavailableError, match=f"no member of the cluster serves us: .*{port}.*; .*{other}"):
        put(several, key, wait)


def test_a_name_that_does_not_resolve(make_gateway, wait):
    with pytest.raises(BackendUnavailableError, match=r"cannot resolve 'nowhere\.invalid'"):
        make_gateway("nowhere.invalid").open(wait)


def test_the_next_member_is_asked_where_nobody_listens(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(f"127.0.0.1:{free_port()},{etcd_server.endpoint}")
    put(gateway, key, wait)
    assert gateway.open(wait) == "127.0.0.1"
    gateway.drop()  # to the first again
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_paused_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    put(gateway, key, wait)
    etcd_private.pause()
    short = 0.4
    with promised(short + OVERRUN_S), pytest.raises(OutcomeUnknownError, match="no answer"):
        put(gateway, key, WaitBudget.lasting(short))
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        get(gateway, key, WaitBudget.lasting(short))
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        watching(gateway, WaitBudget.lasting(short), key)
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        gateway.open(WaitBudget.lasting(short))
    etcd_private.resume()
    assert get(gateway, key, wait)[0][0] == b"v"


def test_no_call_outlasts_five_seconds(make_gateway, etcd_private, key):
    gateway = make_gateway(etcd_private.endpoint)
    etcd_private.pause()
    with promised(5.5), pytest.raises(OutcomeUnknownError):
        put(gateway, key, WaitBudget.lasting(60))


def test_a_cancelled_wait_ends_every_call_at_once(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    with cancelled_soon() as budget:
        stream.events(9, budget)
    etcd_private.pause()
    with cancelled_soon() as budget:
        stream.events(9, budget)
    with cancelled_soon() as budget:
        put(gateway, key, budget)
    with cancelled_soon() as budget:
        get(gateway, key, budget)
    with cancelled_soon() as budget:
        watching(gateway, budget, key)
    with cancelled_soon() as budget:
        gateway.open(budget)
    etcd_private.resume()
    put(gateway, key, wait)


def test_a_budget_that_is_over_sends_nothing(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    for call in (gateway.open, lambda wait: put(gateway, key, wait), lambda wait: watching(gateway, wait, key)):
        with pytest.raises(WaitExpiredError):
            call(WaitBudget.lasting(0))
    assert get(gateway, key, wait) == []


# --- watches


def test_events_of_several_watches(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    put(gateway, key + b"/a/1", wait, b"old")
    stream = watching(gateway, wait, key + b"/a/", key + b"/b/", prev_kv=True)
    began = stream.revision
    assert stream.events(0, wait) == []
    put(gateway, key + b"/b/1", wait, b"new")
    put(gateway, key + b"/c/1", wait, b"not watched")
    gateway.ask("kv/deleterange", {"key": b64(key + b"/a/1")}, wait=wait, writes=True)
    events = []
    while len(events) < 2:
        events += stream.events(5, wait)
    added, removed = sorted(events, key=lambda event: event["mod_revision"])
    assert (added["type"], added["key"], added["value"]) == ("PUT", key + b"/b/1", b"new")
    assert added["prev_value"] is None
    assert (removed["type"], removed["key"], removed["value"]) == ("DELETE", key + b"/a/1", b"")
    assert removed["prev_value"] == b"old"
    assert began < added["mod_revision"] < removed["mod_revision"] <= stream.revision


def test_a_watch_blocks_until_there_is_something(make_gateway, etcd_server, wait, key):
    gateway, other = make_gateway(etcd_server.endpoint), make_gateway(etcd_server.endpoint)
    stream = watching(gateway, wait, key)
    began_s = time.monotonic()
    assert stream.events(0.2, wait) == []
    took_s = time.monotonic() - began_s
    assert took_s > 0.15
    kept(took_s, 1)
    assert stream.events(5, WaitBudget.lasting(0.1)) == []
    timer = threading.Timer(0.2, put, (other, key, wait))
    timer.start()
    with promised(2):
        assert [event["value"] for event in stream.events(5, wait)] == [b"v"]
    timer.join()


def test_many_and_large_events_lose_nothing(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    stream = watching(gateway, wait, key)
    sizes = [1, 100_000, 2_047, 2_048, 2_049, *range(50), 300_000]
    for size in sizes:
        put(gateway, key, wait, b"x" * size)
    seen = []
    while len(seen) < len(sizes):
        new = stream.events(5, wait)
        assert new
        seen += [len(event["value"]) for event in new]
    assert seen == sizes
    assert stream.events(0, wait) == []


def test_a_watch_begins_at_a_revision(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    first = int(put(gateway, key, wait, b"1")["header"]["revision"])
    put(gateway, key, wait, b"2")
    stream = watching(gateway, wait, key, start_revision=str(first + 1))
    assert [event["value"] for event in stream.events(5, wait)] == [b"2"]


def test_a_deletion_by_the_end_of_a_lease_is_seen(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    lease = gateway.ask("lease/grant", {"TTL": 1}, wait=wait, writes=True)["ID"]
    put(gateway, key, wait, lease=lease)
    stream = watching(gateway, wait, key)
    (event,) = stream.events(9, wait)
    assert event["type"] == "DELETE"


def test_a_watch_from_a_forgotten_revision(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    for _ in range(3):
        put(gateway, key, wait)
    etcd_private.compact()
    with pytest.raises(CompactedError, match="forgotten"):
        watching(gateway, wait, key, start_revision="2").events(5, wait)
    with pytest.raises(CompactedError):
        gateway.ask("kv/range", {"key": b64(key), "revision": "2"}, wait=wait, writes=False)
    assert get(gateway, key, wait) == [(b"v", 3)]


def test_a_watch_is_over_with_its_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    etcd_private.stop()
    for _ in range(2):
        with promised(1), pytest.raises(BackendUnavailableError):
            stream.events(5, wait)
    etcd_private.start()
    again = watching(gateway, wait, key)
    put(gateway, key, wait)
    assert again.events(5, wait)


def test_watches_end_with_the_connections(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    for end in (gateway.drop, lambda: gateway.open(wait), gateway.close):
        stream = watching(gateway, wait, key)
        end()
        with pytest.raises(BackendUnavailableError, match="is over"):
            stream.events(5, wait)
        stream.close()


def test_a_failed_request_ends_the_watches_of_the_same_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    etcd_private.pause()
    with pytest.raises(OutcomeUnknownError):
        put(gateway, key, WaitBudget.lasting(0.2))
    with promised(CANCELLED_S), pytest.raises(BackendUnavailableError):
        stream.events(5, wait)


# --- what is not etcd


class Fake:
    """A server that answers every connection with the same bytes, in pieces."""

    def __init__(self, *pieces, pause_s=0.0, listen=True):
        self._pieces, self._pause_s, self._listen = pieces, pause_s, listen
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.endpoint = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with suppress(OSError), client:
            if self._listen:
                client.recv(65536)
            for piece in self._pieces:
                client.sendall(piece)
                if self._over.wait(self._pause_s):
                    return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def response(status, body, kind=b"text/html"):
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
    return head + body


@pytest.mark.parametrize(
    ("answer", "kind", "seen"),
    [
        (b"-ERR unknown command\r\n", BackendRefusedError, "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", BackendRefusedError, "does not speak HTTP"),
        (b"", BackendUnavailableError, "closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", BackendUnavailableError, "closed the connection before"),
        (response(b"404 Not Found", b"404 page not found\n"), BackendRefusedError, "no JSON gateway"),
        (response(b"200 OK", b"<html></html>"), BackendRefusedError, "does not answer as etcd does"),
        (response(b"200 OK", b"[1]"), BackendRefusedError, "does not answer as etcd does"),
        (response(b"302 Found", b""), BackendRefusedError, "does not answer as etcd does"),
        (response(b"502 Bad Gateway", b"<html></html>"), BackendUnavailableError, "HTTP status 502"),
        (
            response(b"400 Bad Request", b"Client sent an HTTP request to an HTTPS server.\n"),
            BackendRefusedError,
            "speaks TLS only",
        ),
        (b"\x15\x03\x01\x00\x02\x02\x46", BackendRefusedError, "does not speak HTTP"),
    ],
)
def test_what_answers_is_not_etcd(make_gateway, wait, answer, kind, seen):
    with Fake(answer) as server, pytest.raises(kind, match=seen) as caught:
        make_gateway(server.endpoint).open(wait)
    assert "\n" not in str(caught.value)
    if kind is BackendRefusedError:
        assert caught.value.hint


CONTENT = b'{"header":{"revision":"7"}}'


@pytest.mark.parametrize(
    "answer",
    [
        response(b"200 OK", CONTENT),
        response(b"200", CONTENT),
        b"HTTP/1.1 100 Continue\r\n\r\n" + response(b"200 OK", CONTENT),
        b"HTTP/1.0 200 OK\r\n\r\n" + CONTENT,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + CONTENT,
        b"HTTP/1.1 200 OK\nContent-Length:%d\n\n%s" % (len(CONTENT), CONTENT),
        b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\n5;x=y\r\n%s\r\n%X\r\n%s\r\n0\r\nX: y\r\n\r\n"
        % (CONTENT[:5], len(CONTENT) - 5, CONTENT[5:]),
    ],
)
def test_an_answer_in_any_of_the_forms_of_http(make_gateway, wait, answer):
    with Fake(answer) as server:
        gateway = make_gateway(server.endpoint)
        gateway.open(wait)
        for _ in range(2):  # each connection has one answer: it is over, and another one is made
            wait_for(lambda: not gateway._line.usable())
            assert gateway.ask("kv/put", {}, wait=wait, writes=True)["header"] == {"revision": "7"}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nConte",
    ],
)
def test_a_write_whose_answer_is_broken_leaves_a_doubt(make_gateway, wait, answer):
    with Fake(answer) as server, pytest.raises((OutcomeUnknownError, BackendRefusedError)):
        make_gateway(server.endpoint).ask("kv/put", {}, wait=wait, writes=True)


def test_a_member_that_is_not_etcd_is_passed_by(make_gateway, etcd_server, wait, key):
    with Fake(b"-ERR\r\n") as server:
        gateway = make_gateway(f"{server.endpoint},{etcd_server.endpoint}")
        gateway.open(wait)
        gateway.drop()
        put(gateway, key, wait)
        assert get(gateway, key, wait) == [(b"v", 1)]


def test_an_answer_that_drips_does_not_outlast_the_budget(make_gateway):
    drops = [b"HTTP/1.1 200 OK\r\n", *(b"X-%d: 1\r\n" % at for at in range(100))]
    with Fake(*drops, pause_s=0.05) as server, promised(1.0), pytest.raises(BackendUnavailableError, match="no answer"):
        make_gateway(server.endpoint).open(WaitBudget.lasting(0.5))


def test_a_watch_whose_message_never_ends(make_gateway, wait, key):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    begun = b'{"result":{"header":{"revision":"7"},"created":true}}\n'
    with Fake(head, b"%x\r\n%s\r\n" % (len(begun), begun), b'50\r\n{"result', pause_s=0.2) as server:
        stream = watching(make_gateway(server.endpoint), wait, key)
        assert stream.revision == 7
        with promised(2), pytest.raises(BackendUnavailableError):
            stream.events(5, wait)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BEGUN = b'{"result":{"header":{"revision":"7"},"created":true}}\n'
PIECE = b"10000\r\n" + b"y" * 65536 + b"\r\n"


@pytest.fixture
def short_answers(monkeypatch):
    monkeypatch.setattr(connection, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 20)


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize("answer", [[HEAD, *[PIECE] * 64], [b"HTTP/1.1 200 OK\r\n\r\n", b"z" * (4 << 20)]])
def test_of_an_answer_without_end_a_bounded_part_is_read(make_gateway, wait, answer):
    with Fake(*answer) as server, pytest.raises(BackendUnavailableError, match="answers with more than is read"):
        make_gateway(server.endpoint).open(wait)


@pytest.mark.usefixtures("short_answers")
def test_a_watch_whose_message_grows_is_over(make_gateway, wait, key):
    begun = b"%x\r\n%s\r\n" % (len(BEGUN), BEGUN)
    with Fake(HEAD, begun, *[PIECE] * 64, pause_s=0.001) as server:
        pushed = watching(make_gateway(server.endpoint), wait, key)
        with pytest.raises(BackendUnavailableError, match="answers with more than is read"):
            pushed.events(30, wait)


NESTED = b'{"result":' + b"[" * 100_000
FOREIGN = [b"no JSON", NESTED, b"[]", b'{"result":7}', b'{"result":{"header":{},"events":[{}]}}', b"{}"]


@pytest.mark.parametrize("line", FOREIGN)
def test_a_watch_of_what_is_not_etcd(make_gateway, wait, key, line):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Fake(head, b"%x\r\n%s\n\r\n" % (len(line) + 1, line)) as server:
        with pytest.raises((BackendUnavailableError, BackendRefusedError)) as caught:
            watching(make_gateway(server.endpoint), wait, key)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (b'{"result":{"header":{},"canceled":true,"cancel_reason":"permission denied"}}', BackendUnavailableError),
        (b'{"result":{"header":{},"canceled":true,"compact_revision":"9"}}', CompactedError),
        (b'{"result":{"header":{},"canceled":true}}', BackendUnavailableError),
        (b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}', BackendUnavailableError),
        (b'{"error":{"grpc_code":16,"http_code":401,"message":"invalid auth token"}}', BackendUnavailableError),
    ],
)
def test_a_watch_that_the_server_ends(make_gateway, wait, key, ending, kind):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    begun = b'{"result":{"header":{"revision":"7"},"created":true}}'
    chunks = [b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in (begun, ending)]
    with Fake(head, *chunks, pause_s=0.1) as server:
        stream = watching(make_gateway(server.endpoint), wait, key)
        with pytest.raises(kind) as caught:
            stream.events(5, wait)
        assert type(caught.value) is kind


# --- what etcd's errors mean


def told(code, text, *, writes=False, status=400):
    return answered(
        status,
        f'{{"error":"{text}","code":{code},"message":"{text}"}}',
        peer="h:1",
        login=Login(username="me", password="hunter2"),
        writes=writes,
        path="kv/txn",
    )


@pytest.mark.parametrize(
    ("code", "text", "read", "write"),
    [
        (14, "etcdserver: no leader", BackendUnavailableError, BackendUnavailableError),
        (14, "etcdserver: leader changed", BackendUnavailableError, OutcomeUnknownError),
        (14, "etcdserver: request timed out", BackendUnavailableError, OutcomeUnknownError),
        (14, "etcdserver: server stopped", BackendUnavailableError, OutcomeUnknownError),
        (14, "etcdserver: something new", BackendUnavailableError, OutcomeUnknownError),
        (8, "etcdserver: too many requests", BackendUnavailableError, BackendUnavailableError),
        (8, "etcdserver: mvcc: database space exceeded", BackendUnavailableError, BackendUnavailableError),
        (13, "something broke", BackendUnavailableError, OutcomeUnknownError),
        (5, "etcdserver: requested lease not found", LeaseGoneError, LeaseGoneError),
        (11, "etcdserver: mvcc: required revision has been compacted", CompactedError, CompactedError),
        (11, "etcdserver: mvcc: required revision is a future revision", BackendRefusedError, BackendRefusedError),
        (7, "etcdserver: permission denied", BackendRefusedError, BackendRefusedError),
        (3, "etcdserver: user name is empty", BackendRefusedError, BackendRefusedError),
        (3, "etcdserver: authentication failed, invalid user ID or password", BackendRefusedError, BackendRefusedError),
        (9, "etcdserver: authentication is not enabled", BackendRefusedError, BackendRefusedError),
        (3, "etcdserver: duplicate key given in txn request", BackendRefusedError, BackendRefusedError),
    ],
)
def test_what_an_error_means_to_a_read_and_to_a_write(code, text, read, write):
    for writes, kind in ((False, read), (True, write)):
        error = told(code, text, writes=writes)
        assert isinstance(error, kind)
        assert isinstance(error, OutcomeUnknownError) == (kind is OutcomeUnknownError)
        assert "h:1" in str(error)


@pytest.mark.parametrize("text", ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old"])
def test_what_a_new_token_mends(text):
    assert told(3, text) is Said.TOKEN
    assert told(16, "anything") is Said.TOKEN


def test_an_error_does_not_show_the_password():
    error = told(13, "could not do hunter2\\nat all")
    assert "hunter2" not in str(error)
    assert "\n" not in str(error)


def test_the_error_of_a_stream_is_read_too():
    text = '{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"x"}}\n'
    error = answered(503, text, peer="h:1", login=Login(), writes=False, path="watch")
    assert "has no leader" in str(error)
