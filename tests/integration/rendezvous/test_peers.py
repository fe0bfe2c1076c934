"""Agents ask each other whether they reach the store."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from elastic_core.clock import SYSTEM_CLOCK
from elastic_core.errors import ConfigError
from elastic_core.rendezvous.member.documents import RosterEntry
from elastic_core.rendezvous.net import peers
from elastic_core.rendezvous.net.peers import PeerEndpoint, PeerNames, ask_peers
from patience import patience
from support import lacks, wait_for


@pytest.fixture
def endpoint():
    started = []

    def start(address="127.0.0.1", *, secret="s3cret", reached=lambda: None, away=False, asked=lambda: None):
        peer = PeerEndpoint(secret=lambda: secret, reached_s=reached, away=lambda: away, asked=asked)
        started.append(peer)
        return RosterEntry("i", "n", address, peer.port)

    yield start
    for peer in started:
        peer.close()


def ask(*peers, secret="s3cret", within_s=5.0):
    return ask_peers(peers, secret, until_s=SYSTEM_CLOCK.monotonic_s() + within_s)


def test_a_peer_that_has_reached_the_store_since_says_so(endpoint):
    assert ask(endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s())) == (1, 1)


def test_a_peer_that_tried_in_vain_says_so(endpoint):
    assert ask(endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s() - 5, away=True)) == (1, 0)


def test_a_peer_that_has_not_tried_since_is_asked_again_until_it_has(endpoint):
    tries = []
    peer = endpoint(
        reached=lambda: SYSTEM_CLOCK.monotonic_s() if len(tries) > 2 else SYSTEM_CLOCK.monotonic_s() - 5,
        asked=lambda: tries.append(1),
    )
    assert ask(peer) == (1, 1)
    never = endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s() - 5)
    assert ask(never, within_s=0.3) == (0, 0)


def test_several_answer_for_themselves(endpoint):
    now = SYSTEM_CLOCK.monotonic_s
    assert ask(endpoint(away=True), endpoint(reached=now), endpoint("::1", reached=now)) == (3, 2)


def test_who_does_not_know_the_secret_gets_no_answer(endpoint):
    asked = []
    peer = endpoint(reached=SYSTEM_CLOCK.monotonic_s, asked=lambda: asked.append(1))
    assert ask(peer, secret="guess", within_s=0.3) == (0, 0)
    assert asked == []
    assert ask(peer) == (1, 1)


def test_nobody_there_is_no_answer():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        silent = RosterEntry("i", "n", "127.0.0.1", sock.getsockname()[1])
        assert ask(silent, within_s=0.3) == (0, 0)
    assert ask(silent, within_s=0.3) == (0, 0)


def test_junk_is_not_answered_and_does_no_harm(endpoint):
    peer = endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for junk in (b"", b"\xff" * 2000, b"[]", b'{"v":1}', b"{" * 400):
            sock.sendto(junk, (peer.host, peer.agent_port))
    assert ask(peer) == (1, 1)


@pytest.mark.parametrize(
    ("family", "source", "asked"),
    [
        (socket.AF_INET, "127.0.0.9", "127.0.0.5"),
        (socket.AF_INET, "127.0.0.1", "127.0.0.7"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "::ffff:127.0.0.5"),
    ],
)
def test_the_answer_comes_from_the_address_that_was_asked(endpoint, family, source, asked):
    peer = endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s())
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        sock.settimeout(10)
        sock.sendto(json.dumps({"secret": "s3cret", "serial": "1"}).encode(), (asked, peer.agent_port))
        _, sender = sock.recvfrom(512)
    assert sender[:2] == (asked, peer.agent_port)


def test_a_host_without_ipv6_answers_from_the_address_that_was_asked(endpoint, monkeypatch):
    def refused(family, kind):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return made(family, kind)

    made = socket.socket
    monkeypatch.setattr(peers.socket, "socket", refused)
    entry = endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s())
    monkeypatch.undo()
    assert [ask(RosterEntry("i", "n", f"127.0.0.{at}", entry.agent_port)) for at in (5, 7)] == [(1, 1), (1, 1)]
    assert ask(RosterEntry("i", "n", "::1", entry.agent_port), within_s=0.3) == (0, 0)


def test_one_endpoint_answers_at_each_address_and_name_of_its_host(endpoint):
    port = endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s()).agent_port
    hosts = ("127.0.0.1", "127.0.0.5", "::1", "localhost")
    assert ask(*(RosterEntry("i", "n", host, port) for host in hosts)) == (4, 4)


def test_a_name_that_takes_long_keeps_nobody_waiting(endpoint, monkeypatch):
    answers, looks = threading.Event(), []

    def look_up(host, *_, **__):
        looks.append(host)
        assert answers.wait(20)
        if len(looks) == 1:
            raise OSError("no name server")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.5", 0))]

    monkeypatch.setattr(peers.socket, "getaddrinfo", look_up)
    entry = RosterEntry("i", "n", "gpu-7.example", endpoint(reached=lambda: SYSTEM_CLOCK.monotonic_s()).agent_port)
    names = PeerNames()
    began_s = SYSTEM_CLOCK.monotonic_s()
    assert ask_peers([entry], "s3cret", until_s=began_s + 0.3, names=names) == (0, 0)
    assert SYSTEM_CLOCK.monotonic_s() - began_s < 10
    answers.set()
    wait_for(lambda: names.addresses("gpu-7.example"), what="the answer of the second try")
    assert ask_peers([entry], "s3cret", until_s=SYSTEM_CLOCK.monotonic_s() + 5, names=names) == (1, 1)
    assert looks == ["gpu-7.example"] * 2


MANY_CONNECTIONS = """
import pathlib, socket
from elastic_core.rendezvous.net.peers import PeerEndpoint

pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40199")
with socket.create_server(("127.0.0.1", 7000), backlog=128) as server:
    held = [socket.create_connection(server.getsockname()) for _ in range(60)]
    for _ in range(30):
        peer = PeerEndpoint(secret=str, reached_s=lambda: None, away=bool, asked=lambda: None)
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
        return PeerEndpoint(port, secret=str, reached_s=lambda: None, away=bool, asked=lambda: None)

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
