"""What is known of this host's addresses."""

import pytest

from elastic_core.rendezvous.address import host_identity, is_ip, is_ipv6, is_loopback
from elastic_core.rendezvous.member.documents import MemberRecord
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.shell import node
from elastic_plugin_kit import MemoryServer, MemoryStore, rendezvous_settings


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


def test_tells_addresses_from_names():
    assert is_ipv6("::1")
    assert not is_ipv6("1.2.3.4")
    assert not is_ipv6("::1%")
    assert is_ip("1.2.3.4")
    assert is_ip("fe80::1%eth0")
    assert not is_ip("localhost")
    assert not is_ip("1.2.3")


def test_host_identity_is_the_same_each_time():
    assert host_identity() == host_identity()
    assert "\n" not in host_identity()


@pytest.fixture
def placed(monkeypatch):
    """Returns what a node gives to others as its address, and as its other one; None: no route."""

    def place(source, *, route="10.0.0.7", members=(), **settings):
        def route_source(address):
            return {"10.1.1.9": "10.1.1.1"}.get(address, route or "")

        monkeypatch.setattr(node, "route_source", route_source)
        monkeypatch.setattr(node, "full_name", lambda wait: "gpu-7.example")
        given = rendezvous_settings(run_id="r", **settings)
        this = node.MemberNode(MemoryStore(given, server=MemoryServer()), given)
        connected = this.place(source, 29600)
        assert connected.agent_port == 29600
        return connected.address, this.route(tuple(members)) or connected.alternative

    return place


def member(address, boot="another"):
    return Candidate(
        seat=1, incarnation="i", record=MemberRecord(epoch="", node="n", state="ready", address=address, boot=boot)
    )


def test_the_address_is_the_source_of_the_connection_to_the_store(placed):
    assert placed("10.0.0.1") == ("10.0.0.1", "")
    assert placed("fd00::1", members=[member("10.1.1.9")]) == ("fd00::1", "")


def test_the_users_word_is_the_address(placed):
    assert placed("10.0.0.1", local_addr="gpu-7.train") == ("gpu-7.train", "")
    assert placed("127.0.0.1", local_addr="127.0.0.5", members=[member("10.1.1.9")]) == ("127.0.0.5", "")


def test_beside_a_loopback_address_stands_the_way_to_another_member_or_out_or_the_name(placed):
    assert placed("127.0.0.1", members=[member("127.0.0.1", host_identity()), member("10.1.1.9")]) == (
        "127.0.0.1",
        "10.1.1.1",
    )
    assert placed("127.0.0.1", members=[member("127.0.0.1", host_identity())]) == ("127.0.0.1", "10.0.0.7")
    assert placed("::1") == ("::1", "10.0.0.7")
    assert placed("", route=None) == ("127.0.0.1", "gpu-7.example")
