"""What the gateway makes of answers: of servers that are not etcd, of broken ones, of errors."""

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_etcd import connection, stream
from elastic_rdzv_etcd.errors import CompactedError, LeaseGoneError
from elastic_rdzv_etcd.failures import Said, answered
from elastic_rdzv_etcd.url import Login
from gateway_kit import Fake, put, watching
from patience import promised
from ports import free_ports
from support import wait_for


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


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
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
        HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT),
    ],
)
def test_an_answer_in_any_of_the_forms_of_http(make_gateway, wait, answer):
    with Fake(answer) as server:
        gateway = make_gateway(server.endpoint)
        gateway.open(wait)
        for _ in range(2):  # each connection has one answer: it is over, and another one is made
            wait_for(lambda: not gateway._line.usable())
            assert gateway.ask("kv/put", {}, wait=wait, writes=True)["header"] == {"revision": "7"}


@pytest.mark.parametrize("cut", [0, 1, 9, len(CONTENT) + 3, len(CONTENT) + 6, len(CONTENT) + 9])
def test_an_answer_of_one_chunk_that_comes_in_two_parts(make_gateway, wait, cut):
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    with Fake(HEAD + body[:cut], body[cut:], pause_s=0.05) as server:
        answer = make_gateway(server.endpoint).ask("kv/range", {}, wait=wait, writes=False)
    assert answer == {"header": {"revision": "7"}}


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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("etcdserver: mvcc: database space exceeded", "alarm disarm"),
        ("etcdserver: corrupt cluster", "alarm disarm"),
        ("etcdserver: rpc not supported for learner", "members that vote"),
        ("etcdserver: no leader", "start the members"),
    ],
)
def test_what_helps_stands_beside_what_a_server_refuses_for_now(text, hint):
    assert hint in told(8, text, writes=True).hint


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
