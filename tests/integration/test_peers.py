"""Agents ask each other whether they reach the store."""

import socket

import pytest

from elastic_core.clock import SYSTEM_CLOCK
from elastic_core.rendezvous.documents import RosterEntry
from elastic_core.rendezvous.peers import PeerEndpoint, ask_peers


@pytest.fixture
def endpoint():
    started = []

    def start(address="127.0.0.1", *, secret="s3cret", reached=lambda: None, away=False, asked=lambda: None):
        peer = PeerEndpoint(address, secret=lambda: secret, reached_s=reached, away=lambda: away, asked=asked)
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
    assert ask(endpoint(), secret="guess", within_s=0.3) == (0, 0)


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
