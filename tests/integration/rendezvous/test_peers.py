"""Members of a round ask each other by datagrams, with codes that only those can make who know the run's secret."""

import os
import random
import shutil
import socket
import subprocess
import sys
import threading

import pytest
from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import RosterEntry, RoundDocument
from elastic_core.rendezvous.member.state import LONG_AGO_S
from elastic_core.rendezvous.shell import peers
from elastic_core.rendezvous.shell.grants import PeerAnswer, PeerExchange, PeerView
from elastic_core.rendezvous.shell.peers import PeerEndpoint, PeerNames, opened, sealed
from elastic_core.system.clock import SYSTEM_CLOCK
from patience import patience
from support import lacks, wait_for

SECRET = "s3cret"
VIEW = PeerView(incarnation="i", secret=SECRET, lease_s=5.0)


class Member:
    """An endpoint, and what it has told its member."""

    def __init__(self, name, **view):
        self.heard = []
        self.view = replace(VIEW, incarnation=name, **view)
        self.endpoint = PeerEndpoint(view=self.view, on_event=self.heard.append)

    def tell(self, **changes):
        self.view = replace(self.view, **changes)
        self.endpoint.update(self.view)

    def entry(self, host="127.0.0.1"):
        return RosterEntry(self.view.incarnation, self.view.incarnation, host, self.endpoint.port)

    @property
    def evidence_s(self):
        return max((e.oldest_s for e in self.heard if isinstance(e, protocol.PeersAnswered)), default=LONG_AGO_S)


@pytest.fixture
def member():
    started = []

    def start(name, **view):
        started.append(Member(name, **view))
        return started[-1]

    yield start
    for one in started:
        one.endpoint.close()


def round_of(*entries):
    return RoundDocument(
        epoch="e", token=1, nonce="x", index=0, master_addr="", master_port=1, roster=entries, lease_s=5.0
    )


def in_trouble(*members, hosts=()):
    """Have members run one round, and be unable to reach the store."""
    hosts = hosts or ("127.0.0.1",) * len(members)
    round_ = round_of(*(one.entry(host) for one, host in zip(members, hosts, strict=True)))
    now_s = SYSTEM_CLOCK.monotonic_s()
    for one in members:
        one.tell(mine=round_, runs=True, troubled_s=now_s, granted_s=now_s)
    return now_s


def gathered(*members, since_s):
    def all_have():
        return all(one.evidence_s >= since_s - 1 for one in members)

    wait_for(all_have, what="the grants of all")


def test_members_gather_each_others_grants(member):
    members = [member(name) for name in "abc"]
    gathered(*members, since_s=in_trouble(*members))


def test_each_address_and_name_of_a_host_will_do(member):
    members = [member(name) for name in "abcd"]
    gathered(*members, since_s=in_trouble(*members, hosts=("127.0.0.1", "127.0.0.5", "::1", "localhost")))


def test_a_member_that_reaches_the_store_tries_it_again_and_grants_nothing(member):
    one, well = member("a"), member("b")
    in_trouble(one, well)
    well.tell(troubled_s=None, granted_s=LONG_AGO_S, reached_s=SYSTEM_CLOCK.monotonic_s())
    wait_for(lambda: protocol.PeerAsked(token=1, nonce="x", needs=True) in well.heard, what="the question")
    wait_for(lambda: any(getattr(e, "reaching", 0) == 1 for e in one.heard), what="the answer")


def test_who_does_not_know_the_secret_is_neither_answered_nor_believed(member):
    one, other = member("a"), member("b")
    other.tell(secret="guess")
    in_trouble(one, other)
    wait_for(lambda: len(one.heard) > 5, what="several questions")
    assert (one.evidence_s, other.evidence_s) == (LONG_AGO_S, LONG_AGO_S)
    assert not any(isinstance(e, protocol.PeerAsked) for e in (*one.heard, *other.heard))


def question(to="b", **changes):
    round_ = round_of(RosterEntry("a", "a", "127.0.0.1", 1), RosterEntry("b", "b", "127.0.0.1", 1))
    asker = PeerExchange(replace(VIEW, incarnation="a", mine=round_, runs=True, troubled_s=1.0), random.Random(1))
    asker.update(replace(VIEW, incarnation="a", mine=round_, runs=True, troubled_s=1.0), 1.0)
    ((_, asked),) = asker.ask(1.0)
    return replace(asked, addressee=to, **changes)


def test_a_datagram_never_has_the_secret_in_it_and_can_not_be_turned_into_another_one():
    asked = question()
    raw = sealed(asked, SECRET)
    assert SECRET.encode() not in raw
    assert opened(raw, SECRET) == asked
    for at in range(len(raw)):
        assert opened(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], SECRET) is None
    assert opened(raw, "another") is None
    assert opened(raw, "") is None
    answer = PeerAnswer(asker="a", addressee="b", serial=1, ages=b"", reached_age_s=1.0, runs=True)
    code = sealed(answer, SECRET)[:32]
    assert opened(code + raw[32:], SECRET) is None  # a question's body with an answer's code


def test_what_was_asked_of_one_is_not_answered_by_another(member):
    other = member("c")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(10)
        sock.sendto(sealed(question(to="b"), SECRET), ("127.0.0.1", other.endpoint.port))
        sock.sendto(sealed(question(to="c"), SECRET), ("127.0.0.1", other.endpoint.port))
        found = opened(sock.recvfrom(2000)[0], SECRET)
    assert found.addressee == "c"


def test_junk_is_not_answered_and_does_no_harm(member):
    members = [member(name) for name in "ab"]
    code = b"x" * 32
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for junk in (b"", b"\xff" * 2000, code, code + b"\x91" * 60000, sealed(question(), SECRET)[:-1]):
            sock.sendto(junk, ("127.0.0.1", members[0].endpoint.port))
    gathered(*members, since_s=in_trouble(*members))


@pytest.mark.parametrize(
    ("family", "source", "asked"),
    [
        (socket.AF_INET, "127.0.0.9", "127.0.0.5"),
        (socket.AF_INET, "127.0.0.1", "127.0.0.7"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "::ffff:127.0.0.5"),
    ],
)
def test_the_answer_comes_from_the_address_that_was_asked(member, family, source, asked):
    port = member("b").endpoint.port
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        sock.settimeout(10)
        sock.sendto(sealed(question(), SECRET), (asked, port))
        _, sender = sock.recvfrom(512)
    assert sender[:2] == (asked, port)


def test_a_host_without_ipv6_asks_and_answers(member, monkeypatch):
    def refused(family, *rest):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return made(family, *rest)

    made = socket.socket
    monkeypatch.setattr(peers.socket, "socket", refused)
    members = [member(name) for name in "ab"]
    monkeypatch.undo()
    gathered(*members, since_s=in_trouble(*members, hosts=("127.0.0.5", "127.0.0.7")))


def test_a_name_that_takes_long_keeps_nobody_waiting(member, monkeypatch):
    answers, looks = threading.Event(), []
    look_up = socket.getaddrinfo

    def slow(host, *rest, **more):
        if host != "gpu-7.example":
            return look_up(host, *rest, **more)
        looks.append(host)
        assert answers.wait(20)
        if len(looks) == 1:
            raise OSError("no name server")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.5", 0))]

    monkeypatch.setattr(peers.socket, "getaddrinfo", slow)
    names = PeerNames()
    assert names.addresses("gpu-7.example") == ()
    members = [member(name) for name in "abc"]
    in_trouble(*members, hosts=("127.0.0.1", "gpu-7.example", "127.0.0.1"))
    wait_for(lambda: any(getattr(e, "granted", 0) >= 1 for e in members[0].heard), what="what the others answer")
    answers.set()
    gathered(*members, since_s=SYSTEM_CLOCK.monotonic_s() - 60)


MANY_CONNECTIONS = """
import pathlib, socket
from elastic_core.rendezvous.shell.grants import PeerView
from elastic_core.rendezvous.shell.peers import PeerEndpoint

pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40199")
with socket.create_server(("127.0.0.1", 7000), backlog=128) as server:
    held = [socket.create_connection(server.getsockname()) for _ in range(60)]
    for _ in range(30):
        peer = PeerEndpoint(view=PeerView(incarnation="i", secret="", lease_s=5.0), on_event=print)
        socket.create_server(("", peer.port)).close()
        peer.close()
"""


def test_a_tcp_server_can_have_the_port_of_a_host_with_many_connections():
    words = [*("unshare", "--net"), *(() if os.geteuid() == 0 else ("--map-root-user",))]
    words += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        lacks(
            "a network namespace of its own", install="apt-get install util-linux iproute2, and root or user namespaces"
        )
    words += [sys.executable, "-c", MANY_CONNECTIONS]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stderr


def test_a_port_that_is_taken_or_forbidden_is_one_line():
    def made(port):
        return PeerEndpoint(port, view=VIEW, on_event=lambda event: None)

    first = made(0)
    try:
        with pytest.raises(ConfigError) as caught:
            made(first.port)
    finally:
        first.close()
    assert str(caught.value) == (
        f"--agent-port {first.port} is in use on this host. Try: end what uses it (ss -lunp 'sport = :{first.port}'), "
        "or choose another: each agent of a host has its own"
    )
    again = made(first.port)
    assert again.port == first.port
    again.close()
