"""Which address of this node the others are told."""

import pytest

from elastic_core.rendezvous.address import choose_address, host_identity, is_loopback


def choose(**given):
    known = {"local_addr": None, "source": "127.0.0.1", "host": "here", "other_hosts": ["here"], "routes": ()}
    return choose_address(**(known | given))


def test_the_user_decides():
    assert choose(local_addr="node-7", source="10.0.0.7") == "node-7"


def test_the_source_of_the_connection():
    assert choose(source="10.0.0.7", other_hosts=["there"], routes=["10.9.9.9"]) == "10.0.0.7"


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_among_nodes_of_one_host(source):
    assert choose(source=source, other_hosts=["here", "here"]) == source
    assert choose(source=source, other_hosts=[]) == source


def test_a_unix_socket_on_one_host():
    assert choose(source="") == "127.0.0.1"


def test_loopback_is_no_address_for_another_host():
    assert choose(other_hosts=["here", "there"], routes=["", "127.0.0.1", "10.0.0.7"]) == "10.0.0.7"
    assert choose(other_hosts=["there"], routes=["", "::1"]) is None
    assert choose(source="", other_hosts=["there"]) is None


def test_an_unknown_host_is_not_ours():
    assert choose(host="", other_hosts=[""], routes=["10.0.0.7"]) == "10.0.0.7"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
def test_is_loopback(address, loopback):
    assert is_loopback(address) is loopback


def test_host_identity_is_the_same_each_time():
    assert host_identity() == host_identity()
    assert "\n" not in host_identity()
