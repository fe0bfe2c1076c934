"""Logs that are asked for over the network: who may ask, who answers, and nodes that come, go and lie."""

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core.api import ElasticError, RunningWorker, decode_json, encode_json
from elastic_core.api.feed import AgentChannel
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_ops.control_plane import proved, server
from elastic_ops.control_plane.handlers import Offer
from elastic_ops.control_plane.http import serve
from elastic_ops.control_plane.proved import ANSWER_HEADER, SCHEME, BatchCodes, Refused, Session
from elastic_ops.control_plane.timed import STRANGERS, TimedSocket
from elastic_ops.logs import over_nodes, serving, wire
from elastic_ops.logs.follow import HostLogs, LogLine
from elastic_ops.logs.index import IndexWriter
from elastic_ops.logs.over_nodes import NodesLogs, Place
from elastic_ops.logs.serving import LogServer
from elastic_ops.logs.wire import Over, Sent, Wanted, ask, sent
from support import wait_for

SECRET, AGENT = "of the run", "i0"
WANTED = Wanted(streams=("stdout",))
PATH = "/handler/logs"


class Watched(TimedSocket):
    """A connection that keeps what is sent."""

    said = b""

    def sendall(self, data, flags=0):
        type(self).said += data
        super().sendall(data, flags)


@contextmanager
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def played(theirs, play):
    """Have a peer play its part on a thread, with a descriptor of its own: a reader that refuses it ends the test."""
    connection = theirs.dup()

    def run():
        with connection, suppress(ConnectionError):
            play(connection)
            connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=run, daemon=True).start()


class Agent(Offer):
    """An agent that sends what a test gives it, and keeps what was asked."""

    def __init__(self, *batches):
        self.wanted, self.batches = [], batches

    def find(self, name):
        return self.answer if name == "logs" else None

    def answer(self, request, response):
        self.wanted.append(decode_json(request.body_bytes(), Wanted))
        response.set_stream(each for each in self.batches)


def served(connection, agent=None, secret=SECRET, incarnation=AGENT):
    """Have an agent answer a reader on a thread; return what was asked."""
    agent = Agent() if agent is None else agent
    channel = AgentChannel(secret=secret, incarnation=incarnation, port=0)
    timed = TimedSocket.of(connection)
    threading.Thread(
        target=serve, args=(timed, agent), kwargs={"bounds": STRANGERS, "channel": lambda: channel}, daemon=True
    ).start()
    return agent.wanted


def raw(connection, request):
    """Send a request, and return all that comes, to the end of the connection."""
    connection.sendall(request)
    connection.shutdown(socket.SHUT_WR)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def http(body, proof="", path=PATH):
    proved = f"Authorization: {proof}\r\n" if proof else ""
    return f"POST {path} HTTP/1.1\r\n{proved}Content-Length: {len(body)}\r\n\r\n".encode() + body


def session_on(connection, body):
    """Return what a reader would prove on a connection."""
    nonce = challenge(connection)
    return Session(secret=SECRET, incarnation=AGENT, nonce=nonce, client_nonce="c", path=PATH, body=body)


def challenge(connection):
    """Return the nonce that an agent gives to a request without proof."""
    connection.sendall(http(b""))
    return connection.recv(1 << 16).partition(f"{SCHEME} ".encode())[2].partition(b"\r\n")[0].decode()


# --- who may ask, and who may answer


@pytest.fixture
def watched(monkeypatch):
    """Have all noted that is sent."""
    monkeypatch.setattr(Watched, "said", b"")
    monkeypatch.setattr(proved, "TimedSocket", Watched)
    monkeypatch.setitem(globals(), "TimedSocket", Watched)
    return Watched


def test_both_sides_know_each_other_and_the_secret_is_never_sent(watched):
    with pair() as (ours, theirs):
        found = served(theirs)
        with closing(ask(ours, SECRET, AGENT, Wanted(ranks="3", streams=("stderr",)))):
            ((wanted),) = wait_for(lambda: found)
        assert (wanted.ranks, wanted.streams) == ("3", ("stderr",))
    assert len(watched.said) > 100
    assert SECRET.encode() not in watched.said


@pytest.mark.parametrize(
    ("asks", "answers"),
    [
        (("other", AGENT), (SECRET, AGENT)),
        ((SECRET, AGENT), ("other", AGENT)),
        ((SECRET, AGENT), ("", AGENT)),
        (("", AGENT), ("", AGENT)),
        ((SECRET, "i1"), (SECRET, AGENT)),  # a request for another agent, which this one was handed
        ((SECRET, ""), (SECRET, "")),
    ],
)
def test_a_request_with_another_secret_or_for_another_agent_is_rejected(asks, answers):
    with pair() as (ours, theirs):
        found = served(theirs, None, *answers)
        with pytest.raises((Refused, OSError)):
            ask(ours, *asks, WANTED)
        assert found == []


@pytest.mark.parametrize("path", [PATH, "/handler/ping", "/handler/", "/", "//handler/logs"])
def test_a_request_without_proof_learns_nothing(path):
    with pair() as (ours, theirs):
        found = served(theirs)
        answer = raw(
            ours, http(encode_json(WANTED), path=path) + http(encode_json(WANTED), f"{SCHEME} n {'0' * 64}", path)
        )
    nothing, first, second = answer.split(b"HTTP/1.1 401 Unauthorized\r\n")
    assert nothing == b""
    fields = [line.partition(b":")[0] for line in (first + second).split(b"\r\n") if line]
    assert {*fields} == {
        b"Server", b"Date", b"WWW-Authenticate", b"Content-Type", b"Content-Length", b"Connection"
    }  # fmt: skip
    assert found == []


@pytest.mark.parametrize("purpose", [proved.REQUEST, proved.ANSWER, proved.BATCHES])
def test_each_purpose_and_each_part_has_a_code_of_its_own(purpose):
    session = Session(secret=SECRET, incarnation=AGENT, nonce="n", client_nonce="c", path=PATH, body=b"r")
    others = [each for each in (proved.REQUEST, proved.ANSWER, proved.BATCHES) if each != purpose]
    assert session.key(purpose) not in [session.key(other) for other in others]
    with pytest.raises(Refused):
        session.check(session.proof(others[0]), purpose)
    session.check(session.proof(purpose), purpose)
    for part in ("secret", "incarnation", "nonce", "client_nonce", "path", "body"):
        changed = replace(session, **{part: getattr(session, part) * 2})
        assert changed.proof(purpose) != session.proof(purpose)
        assert changed.batches().next(b"") != session.batches().next(b"")
    assert SECRET.encode() not in session.key(purpose) + session.proof(purpose).encode()


def test_a_proof_is_good_for_one_request_on_its_own_connection():
    body = encode_json(WANTED)
    with pair() as (ours, theirs):
        found = served(theirs)
        session = Session(
            secret=SECRET, incarnation=AGENT, nonce=challenge(ours), client_nonce="c", path=PATH, body=body
        )
        request = http(body, session.header())
        answer = raw(ours, request + request)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == len(found) == 1
    with pair() as (ours, theirs):
        found = served(theirs)
        challenge(ours)
        assert raw(ours, request).startswith(b"HTTP/1.1 401 ")  # again, to another nonce
        assert found == []


def test_a_proof_is_of_no_use_for_another_request():
    with pair() as (ours, theirs):
        found = served(theirs)
        session = Session(
            secret=SECRET,
            incarnation=AGENT,
            nonce=challenge(ours),
            client_nonce="c",
            path=PATH,
            body=encode_json(WANTED),
        )
        other = encode_json(replace(WANTED, ranks="7"))
        assert raw(ours, http(other, session.header())).startswith(b"HTTP/1.1 401 ")
        assert found == []


def test_a_second_try_is_the_last():
    with pair() as (ours, theirs):
        served(theirs)
        nonce = challenge(ours)
        assert len(nonce) == 32
        assert challenge(ours) != nonce
        assert ours.recv(1) == b""


def answered_by(theirs, *answers):
    """Answer each request with given bytes."""

    def answer_each(connection):
        for answer in answers:
            connection.recv(1 << 16)
            connection.sendall(answer)

    played(theirs, answer_each)


CHALLENGE = f"HTTP/1.1 401 x\r\nWWW-Authenticate: {SCHEME} n\r\nContent-Length: 0\r\n\r\n".encode()
ANSWER = f"HTTP/1.1 200 OK\r\n{ANSWER_HEADER}: %s\r\n\r\n"


def test_an_agent_that_says_again_what_another_has_said_is_refused(watched):
    with pair() as (ours, theirs):
        served(theirs)
        ask(ours, SECRET, AGENT, WANTED).close()
    said = [part for part in watched.said.split(b"HTTP/1.1 ") if part[:3] in (b"401", b"200")]
    with pair() as (ours, theirs):
        answered_by(theirs, *(b"HTTP/1.1 " + part.partition(b"POST")[0] for part in said))
        with pytest.raises(Refused, match="does not know the run's secret"):
            ask(ours, SECRET, AGENT, WANTED)
    assert len(said) == 2


def test_an_agent_that_returns_the_asker_s_own_proof_is_refused():
    with pair() as (ours, theirs):

        def mirror(connection):
            connection.recv(4096)
            connection.sendall(CHALLENGE)
            proof = connection.recv(4096).partition(f"{SCHEME} ".encode())[2].partition(b"\r\n")[0].split()[1]
            connection.sendall((ANSWER % proof.decode()).encode())

        played(theirs, mirror)
        with pytest.raises(Refused, match="does not know the run's secret"):
            ask(ours, SECRET, AGENT, WANTED)


@pytest.mark.parametrize("noise", [b"\n\n", b"\xff\x00\n\n", b"{}\nx\n", b"x" * 200_000, b"GET / HT"])
def test_noise_ends_the_connection(noise):
    with pair() as (ours, theirs):
        found = served(theirs)
        with suppress(OSError):
            raw(ours, noise)
        assert found == []


@pytest.mark.parametrize(
    "answers",
    [
        [b"SSH-2.0\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 401 x\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 401 x\r\nWWW-Authenticate: Basic n\r\nContent-Length: 0\r\n\r\n"],
        [b"x" * 200_000],
        [CHALLENGE.replace(b"Content-Length: 0", b"Connection: close")],
        [CHALLENGE, CHALLENGE],
        [CHALLENGE, b"HTTP/1.1 200 OK\r\n\r\n"],
    ],
)
def test_what_is_no_agent_is_refused(answers):
    with pair() as (ours, theirs):
        answered_by(theirs, *answers)
        with pytest.raises((Refused, ConnectionError)):
            ask(ours, SECRET, AGENT, WANTED)


def test_an_agent_that_says_nothing_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(wire, "HANDSHAKE_S", 0.05)
    with pair() as (ours, _), pytest.raises(TimeoutError):
        ask(ours, SECRET, AGENT, WANTED)


# --- what follows


HELLO, AGAIN = (Sent(line=LogLine(global_rank=0, stream="stdout", text=text)) for text in ("hello", "again"))
OVER = Sent(over=Over(found="0"))


def lines_of(*parts):
    return [encode_json(part) + b"\n" for part in parts]


def test_lines_come_in_batches_to_the_last_word():
    with pair() as (ours, theirs):
        served(theirs, Agent(*lines_of(HELLO, AGAIN, OVER)))
        with closing(ask(ours, SECRET, AGENT, WANTED)) as batches:
            assert list(sent(batches, silence_s=20)) == [HELLO, AGAIN, OVER]


@pytest.mark.parametrize(
    "tampered",
    [
        lambda one, two: one.replace(b"hello", b"HELLO"),
        lambda one, two: two,  # the first was held back
        lambda one, two: one + one,  # sent again
        lambda one, two: b'{"line":{"global_rank":0,"stream":"stdout","text":"forged"}}\n{"over":{}}\n',
        lambda one, two: one.partition(b"\n")[2],
        lambda one, two: b"0" * 64 + b" 99999999999\n",
        lambda one, two: b"0" * 64 + b" -1\n",
        lambda one, two: b"x" * 1000,
        lambda one, two: BatchCodes(b"another connection's").sealed(encode_json(HELLO) + b"\n"),
    ],
)
def test_a_line_that_is_not_the_agent_s_is_not_shown(tampered):
    with pair() as (ours, theirs):

        def serve_tampered(connection):
            connection.recv(1 << 16)
            connection.sendall(CHALLENGE)
            request = connection.recv(1 << 16)
            body = request.partition(b"\r\n\r\n")[2] or connection.recv(1 << 16)
            client_nonce, _ = proved.words_of(request.partition(b"Authorization: ")[2].partition(b"\r\n")[0].decode())
            session = Session(
                secret=SECRET, incarnation=AGENT, nonce="n", client_nonce=client_nonce, path=PATH, body=body
            )
            codes = session.batches()
            connection.sendall((ANSWER % session.proof(proved.ANSWER)).encode())
            connection.sendall(tampered(*map(codes.sealed, lines_of(HELLO, AGAIN))))

        played(theirs, serve_tampered)
        shown = []
        with closing(ask(ours, SECRET, AGENT, WANTED)) as batches, pytest.raises(Refused):
            shown.extend(sent(batches, silence_s=20))
        assert shown in ([], [HELLO])


# --- nodes


class Node:
    """An agent's run directory with a rank, and its server."""

    def __init__(self, folder, rank, *, secret=SECRET):
        self.rank, self.path = rank, folder / f"{rank}.log"
        folder.mkdir(exist_ok=True)
        self.path.touch()
        worker = RunningWorker(local_rank=0, global_rank=rank, pid=1, stdout=str(self.path))
        IndexWriter().add(folder, [(0, [worker])])
        channel = AgentChannel(secret=secret, incarnation=f"i{rank}", port=0)
        self.server = LogServer(0, channel=lambda: channel, run_dir=lambda: str(folder))

    def write(self, text):
        with self.path.open("a") as file:
            file.write(text)

    def place(self, **changes):
        values = {
            "node_id": f"n{self.rank}", "incarnation": f"i{self.rank}", "address": "127.0.0.1",
            "port": self.server.port, "first_rank": self.rank, "worker_count": 1, "lost": False,
        }  # fmt: skip
        return Place(**(values | changes))


class Places:
    """A run as its store has it, which tests change."""

    secret, over = SECRET, False

    def __init__(self, *places):
        self.places, self.looks = places, 0

    def look(self):
        self.looks += 1
        if self.looks == 1:
            raise RendezvousConnectionError("the store is away")


@pytest.fixture
def node(tmp_path):
    nodes = []

    def make(rank, **given):
        nodes.append(Node(tmp_path / str(rank), rank, **given))
        return nodes[-1]

    yield make
    for each in nodes:
        each.server.shutdown()


def logs_of(places, *, ranks=None, here=(), wanted=WANTED):
    return NodesLogs(places, ranks=ranks, here=here, wanted=wanted)


def texts(lines):
    return [f"{line.global_rank}:{line.text}" for line in lines if line is not None]


def until(lines, *wanted):
    """Take lines until these have come."""
    found = []

    def all_there():
        for line in lines:
            if line is None:
                break
            found.append(f"{line.global_rank}:{line.text}")
        return set(wanted) <= set(found)

    wait_for(all_there, what=str(wanted))
    return found


def test_lines_of_the_ranks_that_are_wanted(node):
    nodes = [node(rank) for rank in range(3)]
    for each in nodes:
        each.write("one\ntwo\n")
    places = Places(*(each.place() for each in nodes))
    assert texts(logs_of(places).once()) == [f"{rank}:{text}" for rank in range(3) for text in ("one", "two")]
    assert texts(logs_of(places, ranks={2}).once()) == ["2:one", "2:two"]
    assert texts(logs_of(places, here=("n0", "n1"), wanted=Wanted(streams=("stdout",), last=1)).once()) == ["2:two"]
    assert texts(logs_of(places, wanted=Wanted(streams=("stderr",))).once()) == []


def test_a_line_longer_than_what_is_sent_at_once_arrives_whole(node):
    one = node(0)
    text = "\x01é" * 150_000
    one.write(text + "\n")
    assert texts(logs_of(Places(one.place())).once()) == [f"0:{text}"]


def test_a_node_that_can_not_be_asked_is_one_line_and_the_others_are_shown(node):
    one, two, three = node(0), node(1, secret="of another run"), node(2)
    one.server.shutdown()
    three.write("here\n")
    logs = logs_of(Places(one.place(), two.place(), three.place(), one.place(node_id="gone", first_rank=7, lost=True)))
    assert texts(logs.once()) == ["2:here"]
    refused, foreign, gone = logs.notes
    assert refused.startswith(
        f"rank 0 is on node n0 (127.0.0.1), which can't be asked at TCP port {one.place().port} (Conn"
    )
    assert foreign.startswith("rank 1 is on node n1 (127.0.0.1), which can't be asked")
    assert gone == "rank 7 is on node gone (127.0.0.1): the node is lost. Try: on that host, elastic logs"


def test_a_process_at_the_port_of_one_agent_can_not_pass_the_request_on_to_another(node):
    one, two = node(0), node(1)
    two.write("secret line\n")
    read = []

    def relay(listening):
        theirs, _ = listening.accept()
        with theirs, socket.create_connection(("127.0.0.1", two.server.port)) as real:
            for _ in range(2):  # the request without proof, and the one with it
                request = theirs.recv(1 << 16)
                if b"Content-Length: 0" not in request and request.endswith(b"\r\n\r\n"):
                    request += theirs.recv(1 << 16)
                real.sendall(request)
                answer = real.recv(1 << 16)
                theirs.sendall(answer)
            read.append(answer.partition(b"\r\n")[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=relay, args=(listening,), daemon=True).start()
        logs = logs_of(Places(one.place(port=listening.getsockname()[1])))
        assert texts(logs.once()) == []
        assert wait_for(lambda: read) == [b"HTTP/1.1 401 Unauthorized"]
    (note,) = logs.notes
    assert note.startswith("rank 0 is on node n0 (127.0.0.1), which can't be asked at TCP port")


def test_who_follows_is_told_at_once_which_ranks_have_no_file(node, tmp_path):
    one = node(0)
    IndexWriter().add(tmp_path / "0", [(0, [RunningWorker(local_rank=0, global_rank=0, pid=1)])])
    logs = logs_of(Places(one.place()), wanted=Wanted(streams=("stdout",), follow=True))
    with closing(logs.follow()) as lines:
        wait_for(lambda: next(lines) is None and logs.without_file == {0})


@pytest.mark.parametrize("path", ["/", "/handler/", PATH, "/metrics"])
def test_the_port_of_the_logs_has_no_page(node, path):
    with socket.create_connection(("127.0.0.1", node(0).server.port)) as connection:
        assert raw(connection, f"GET {path} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 404 ")


def test_output_that_goes_to_the_console_is_noted(node, tmp_path):
    one = node(0)
    IndexWriter().add(tmp_path / "0", [(0, [RunningWorker(local_rank=0, global_rank=0, pid=1)])])
    logs = logs_of(Places(one.place()))
    assert texts(logs.once()) == []
    assert logs.without_file == {0}


def test_followed_over_a_store_that_is_away_and_nodes_that_come_and_go(node, monkeypatch):
    monkeypatch.setattr(over_nodes, "LOOK_EVERY_S", 0.02)
    at_the_end = threading.Event()

    class Looked(HostLogs):
        def follow(self):
            for line in super().follow():
                if line is None:
                    at_the_end.set()
                yield line

    monkeypatch.setattr(serving, "HostLogs", Looked)
    one, two = node(0), node(1)
    one.write("before\n")
    places = Places(one.place())
    with closing(logs_of(places, wanted=Wanted(streams=("stdout",), last=0, follow=True)).follow()) as lines:
        # What is written before its agent has found the end of the file is before the end, too.
        wait_for(lambda: next(lines) is None and places.looks > 3 and at_the_end.is_set())
        one.write("after\n")
        assert until(lines, "0:after") == ["0:after"]
        two.write("from its beginning\n")
        places.places = (*places.places, two.place())
        assert until(lines, "1:from its beginning") == ["1:from its beginning"]
        one.write("its last word")  # without an end
        one.server.shutdown()
        assert until(lines, "0:its last word") == ["0:its last word"]
        two.write("the end\n")
        places.over = True
        two.server.shutdown()
        assert texts(lines)[-1] == "1:the end"


def test_a_connection_that_breaks_is_made_anew_and_nothing_is_shown_twice(node, monkeypatch):
    monkeypatch.setattr(over_nodes, "LOOK_EVERY_S", 0.02)
    one = node(0)
    made = []

    class Kept(TimedSocket):
        @classmethod
        def of(cls, connection):
            made.append(super().of(connection))
            return made[-1]

    monkeypatch.setattr(proved, "TimedSocket", Kept)
    one.write("first\n")
    wanted = Wanted(streams=("stdout",), last=10, follow=True)
    logs = logs_of(Places(one.place()), wanted=wanted)
    with closing(logs.follow()) as lines:
        assert until(lines, "0:first") == ["0:first"]
        made[0].shutdown(socket.SHUT_RDWR)
        wait_for(lambda: next(lines) is None and len(made) > 1)
        found = []
        while "0:second" not in found:
            one.write("second\n")  # again, as what comes while nobody is connected is not seen
            found += until(lines)
        assert "0:first" not in found
    (note,) = logs.notes
    assert "broke, and is made anew: its lines from in between are not shown" in note


def test_a_node_that_can_not_be_followed_is_named_once(node, monkeypatch):
    monkeypatch.setattr(over_nodes, "LOOK_EVERY_S", 0.02)
    one = node(0)
    one.server.shutdown()
    places = Places(one.place())
    logs = logs_of(places)
    with closing(logs.follow()) as lines:
        wait_for(lambda: next(lines) is None and logs.notes)
        looks = places.looks
        wait_for(lambda: next(lines) is None and places.looks > looks + 5)
    assert len(logs.notes) == 1


def test_who_goes_away_leaves_no_file_open(node):
    one = node(0)
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", one.server.port))
        with closing(ask(connection, SECRET, AGENT, Wanted(streams=("stdout",), follow=True))) as batches:
            one.write("x\n")
            assert next(sent(batches, silence_s=20)).line.text == "x"

    def left():
        one.write("x\n")  # who has gone is missed when something is sent
        return len(list(folder.iterdir())) <= before

    wait_for(left)


def test_too_many_nodes_are_refused(node):
    places = Places(*(node(0).place(node_id=f"n{each}", incarnation=str(each)) for each in range(2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over_nodes, "MOST_FOLLOWED", 1)
        with pytest.raises(ElasticError, match=r"2 nodes to follow; expected 1 at most\. Try: --rank RANKS"):
            list(logs_of(places).follow())


def test_who_connects_again_and_again_is_slowed_down(node, monkeypatch):
    times = []

    def end_of(self, connection):
        times.append(time.monotonic())
        real(self, connection)

    real = server.HttpServer._end_of
    monkeypatch.setattr(server.HttpServer, "_end_of", end_of)
    one = node(0)
    one.server._bounds = replace(STRANGERS, connections_per_s=2)
    for _ in range(9):
        socket.create_connection(("127.0.0.1", one.server.port)).close()
    wait_for(lambda: len(times) == 9)
    assert max(times) - min(times) > 1.0


def test_an_agent_ends_although_somebody_follows_and_reads_nothing(node):
    one = node(0)
    connection = socket.create_connection(("127.0.0.1", one.server.port))
    with closing(ask(connection, SECRET, AGENT, Wanted(streams=("stdout",), follow=True))):
        for _ in range(40):
            one.write(("y" * 1000 + "\n") * 1000)
        one.server.shutdown()  # returns
