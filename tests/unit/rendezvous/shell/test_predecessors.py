"""An agent of this host that has ended is known to be dead: nobody has its port any more."""

import socket

import pytest

from elastic_core.rendezvous.address import host_identity
from elastic_core.rendezvous.member.documents import MemberRecord
from elastic_core.rendezvous.shell.node import proves_dead


@pytest.fixture
def agent():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::", 0))
        yield sock


def record(port, boot):
    return MemberRecord(epoch="e", node="n", state="running", agent_port=port, boot=boot)


def test_an_agent_of_this_host_is_dead_when_its_port_is_free(agent):
    port = agent.getsockname()[1]
    assert not proves_dead(record(port, host_identity()))
    agent.close()
    assert proves_dead(record(port, host_identity()))


def test_nothing_is_known_of_another_host_or_of_an_agent_without_a_port(agent):
    port = agent.getsockname()[1]
    agent.close()
    for boot, at in (("another boot/1", port), ("", port), (host_identity(), 0)):
        assert not proves_dead(record(at, boot))
