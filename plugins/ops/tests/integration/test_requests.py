"""The control plane's requests and sockets: no agent, no torch."""

import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError, ElasticError
from elastic_ops.control_plane import Request, Response, handlers, paths, sockets
from elastic_ops.control_plane.http import LONGEST_BODY, serve
from elastic_ops.control_plane.timed import TimedSocket
from elastic_ops.control_plane.torch_handlers import TorchHandlers
from elastic_ops.ctl.target import Target, worker_of


class Offer(handlers.Offer):
    title = "elastic_core.Test"

    def __init__(self, **found):
        self.table = handlers.HandlerTable(found)

    def names(self):
        return self.table.names()

    def find(self, name):
        return self.table.find(name)


def exchange(offer, request):
    """Send bytes over a connected pair; return status, headers and body of the answer."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=serve, args=(TimedSocket.of(theirs), offer))
        thread.start()
        answer = b""
        while part := ours.recv(65536):
            answer += part
        thread.join(10)
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), fields, body


def ask(offer, method, path, body=b"", content_type=""):
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
    return exchange(offer, head.encode() + body)


def ping(request, response):
    response.set_content("pong", "text/plain")


def echo(request, response):
    response.set_status(201)
    response.set_content(json.dumps([request.params(), request.body()]), "application/json")


def broken(request, response):
    response.set_content("half", "text/html")
    raise ValueError("boom")


OFFER = Offer(ping=ping, echo=echo, broken=broken)


def test_index_and_names_have_torchs_shape():
    status, fields, body = ask(OFFER, "GET", "/")
    assert (status, fields["Content-Type"]) == (200, "text/html")
    assert b'<a href="/handler/">' in body
    status, fields, body = ask(OFFER, "GET", "/handler/")
    assert (status, fields["Content-Type"], json.loads(body)) == (200, "application/json", ["broken", "echo", "ping"])


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/handler/ping", 200, "pong"),
        ("GET", "/handler/ping", 404, ""),
        ("PUT", "/handler/ping", 404, ""),
        ("GET", "/handler", 404, ""),
        ("GET", "/nothing", 404, ""),
        ("POST", "/nothing", 404, ""),
        ("POST", "/handler/nope", 404, "Handler nope not found: there are broken, echo, ping"),
        ("POST", "/handler/broken", 500, "Handler broken failed: ValueError: boom"),
        ("BREW", "/handler/ping", 501, None),
    ],
)
def test_answers(method, path, status, text):
    found, fields, body = ask(OFFER, method, path)
    assert found == status
    if text is not None:
        assert (body.decode(), fields["Content-Length"]) == (text, str(len(text)))
        assert fields["Connection"] == "close"


def test_head_has_no_body():
    assert ask(OFFER, "HEAD", "/handler/ping")[2] == b""


@pytest.mark.parametrize(
    ("path", "body", "kind", "params"),
    [
        ("/handler/echo?a=1%202&b=", b"xyz", "", {"a": "1 2", "b": ""}),
        ("/handler/echo?a=1", b"b=2", "application/x-www-form-urlencoded", {"a": "1", "b": "2"}),
        ("/handler/ech%6f", b"b=2", "text/plain", {}),
    ],
)
def test_parameters_are_of_the_address_and_of_a_form(path, body, kind, params):
    status, _, answer = ask(OFFER, "POST", path, body, kind)
    assert (status, json.loads(answer)) == (201, [params, body.decode()])


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"Content-Length: {LONGEST_BODY + 1}", 413),
        (f"Content-Length: {'9' * 5000}", 413),
        ("Content-Length: -1", 400),
        ("Transfer-Encoding: chunked", 400),
    ],
)
def test_bodies_without_a_bound_are_refused(head, status):
    assert exchange(OFFER, f"POST /handler/ping HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())[0] == status


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_no_address_is_refused(method):
    status, _, body = ask(OFFER, method, "http://[/handler/ping")
    assert (status, body) == (400, b"no address: Invalid IPv6 URL")


def test_agent_that_refuses_to_tell_its_workers_is_one_line(folder):
    path = str(folder / "agent.sock")
    with sockets.listen(path) as listening:
        thread = threading.Thread(target=lambda: serve(TimedSocket.of(listening.accept()[0]), Offer(workers=broken)))
        thread.start()
        with pytest.raises(ElasticError, match=r"^the agent refused 'workers' \(status 500\): .*ValueError: boom$"):
            worker_of(Target(name="the agent", path=path), 0, timeout_s=10)
        thread.join(10)


@pytest.mark.parametrize("noise", [b"", b"\r\n", b"\x00\xff\x80 nonsense\r\n\r\n", b"POST /handler/ping"])
def test_noise_ends_the_connection_and_nothing_else(noise):
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(noise)
        ours.shutdown(socket.SHUT_WR)
        serve(TimedSocket.of(theirs), OFFER)  # returns


def test_what_follows_an_answer_follows_it_also_when_the_client_has_gone():
    done = []

    def last(request, response):
        response.set_content("x" * (1 << 20), "text/plain")
        response.afterwards(lambda: done.append(1))

    ours, theirs = socket.socketpair()
    ours.sendall(b"POST /handler/last HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    ours.close()
    serve(TimedSocket.of(theirs), Offer(last=last))
    assert done == [1]


def test_request_and_response_have_torchs_methods():
    request = Request(body="äöü".encode() + b"\xff", params={"a": "1"})
    assert (request.get_param("a"), request.get_param("b")) == ("1", "")
    assert request.body() == "äöü\ufffd"
    response = Response()
    response.set_content(b"\x00", "application/octet-stream")
    response.set_status(418)
    assert (response.status, response.content, response.content_type) == (418, b"\x00", "application/octet-stream")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a?b"])
def test_names_that_can_not_stand_in_an_address_are_refused(name):
    with pytest.raises(ConfigError, match="a handler's name has letters"):
        handlers.HandlerTable().register(name, ping)


def test_only_functions_can_be_registered():
    with pytest.raises(ConfigError, match="expected a function"):
        handlers.HandlerTable().register("x", "pong")


# --- sockets


@pytest.fixture
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("s")
    made.chmod(0o700)
    return made


def test_socket_is_its_owners_whatever_the_umask(folder):
    old = os.umask(0)
    try:
        with sockets.listen(str(folder / "a")):
            mode = (folder / "a").stat().st_mode
    finally:
        os.umask(old)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_what_a_dead_server_left_is_replaced_and_a_living_one_is_not(folder):
    path = str(folder / "a")
    sockets.listen(path).close()
    with sockets.listen(path), pytest.raises(ConfigError, match="another process listens at"):
        sockets.listen(path)
    (folder / "b").write_text("x")
    with pytest.raises(ConfigError, match="is no socket"):
        sockets.listen(str(folder / "b"))
    assert (folder / "b").read_text() == "x"


def test_a_socket_that_is_seen_answers(folder, monkeypatch):
    path = str(folder / "a")
    seen = []

    class Watched(socket.socket):
        def listen(self, *backlog):
            seen.append(os.path.lexists(path))
            super().listen(*backlog)

    monkeypatch.setattr(socket, "socket", Watched)
    with sockets.listen(path), Watched(socket.AF_UNIX) as client:
        client.connect(path)
    assert seen == [False]
    assert [each.name for each in folder.iterdir()] == ["a"]


def test_directory_that_others_can_write_to_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"can be written by others \(mode 777\). Try: "):
        sockets.listen(str(folder / "a"))
    folder.chmod(0o1777)  # as the temp directory: nobody else can take our socket away
    sockets.listen(str(folder / "a")).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_a_stranger_is_refused(folder):
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345, not to user 0"):
        sockets.listen(str(folder / "a"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket away")
def test_socket_of_a_stranger_is_refused(folder):
    sockets.listen(str(folder / "a")).close()
    os.chown(folder / "a", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        sockets.listen(str(folder / "a"))


def test_directory_for_torchs_socket_that_was_there_is_refused(folder):
    (folder / "elsewhere").mkdir(0o700)
    (folder / "a.torch").symlink_to(folder / "elsewhere")
    (folder / "b.torch").mkdir()
    (folder / "b.torch").chmod(0o755)
    for name in ("a", "b"):
        with pytest.raises(ConfigError, match=r"expected one of user .* with mode 0700\. Try: remove it"):
            TorchHandlers(str(folder / name))._begin()


def test_name_that_is_too_long_is_refused(folder):
    with pytest.raises(ConfigError, match="longer than the kernel takes"):
        sockets.listen(str(folder / ("x" * 108)))


def test_sockets_of_a_deep_directory_are_in_it_all_the_same(tmp_path):
    near = paths.SocketPaths(Path("/usr"), 8)
    assert (near.agent, near.worker(7)) == ("/usr/agent.sock", "/usr/worker_7.sock")
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    far = paths.SocketPaths(deep, 8)
    assert far.agent == str(deep / "agent.sock")
    assert len(far.worker(7) + paths.TORCH_SUFFIX) <= paths.LONGEST_PATH
    with sockets.listen(far.agent), sockets.listen(far.worker(3)):
        assert {path.name for path in deep.iterdir()} == {"agent.sock", "worker_3.sock"}
        with pytest.raises(ConfigError, match="another process listens at"):
            sockets.listen(far.agent)
    sockets.listen(far.agent).close()
    far.close()
    assert [path.name for path in deep.iterdir()] == ["agent.sock"]


def test_run_directory_that_others_can_write_to_has_one_of_our_own_in_it(folder):
    folder.chmod(0o775)
    own = paths.SocketPaths(folder, 1)
    assert own.agent == str(folder / "control" / "agent.sock")
    assert stat.S_IMODE((folder / "control").stat().st_mode) == 0o700
    own.close()
    assert list(folder.iterdir()) == []
    (folder / "control").mkdir()
    (folder / "control").chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others"):
        paths.SocketPaths(folder, 1)
