"""The held port: nobody else's, and the worker's at any time."""

import socket
import subprocess
import sys

import pytest

from elastic_core.agent import port as port_module
from elastic_core.agent.port import HeldPort, is_this_host
from elastic_core.errors import ConfigError, RendezvousError

WILDCARDS = [(socket.AF_INET, "0.0.0.0")]
if socket.has_ipv6:
    WILDCARDS.append((socket.AF_INET6, "::"))


@pytest.fixture
def held():
    port = HeldPort.reserve()
    yield port
    port.close()


def listening(family, address, port, *options):
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((address, port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


@pytest.mark.parametrize(("family", "address"), WILDCARDS)
def test_a_plain_bind_of_others_fails_and_a_workers_works(held, family, address):
    with pytest.raises(OSError, match="in use"):
        listening(family, address, held.port)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listening(family, address, held.port, option).close()


def test_the_kernel_gives_it_to_nobody_else(held):
    others = []
    try:
        for _ in range(300):
            sock = socket.socket()
            others.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("", 0))
        assert held.port not in {sock.getsockname()[1] for sock in others}
    finally:
        for sock in others:
            sock.close()


def test_twenty_agents_hold_twenty_ports():
    ports = [HeldPort.reserve() for _ in range(20)]
    assert len({port.port for port in ports}) == 20
    for port in ports:
        port.close()
        port.close()


def test_a_connection_is_refused_until_the_worker_listens(held):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.port), timeout=5)
    with listening(socket.AF_INET, "0.0.0.0", held.port, socket.SO_REUSEADDR):
        socket.create_connection(("127.0.0.1", held.port), timeout=5).close()


def test_the_port_is_free_for_others_once_given_back(held):
    held.close()
    listening(socket.AF_INET, "0.0.0.0", held.port).close()


def test_a_given_port_in_use_is_one_line_that_names_it(held):
    with listening(socket.AF_INET, "127.0.0.1", held.port, socket.SO_REUSEADDR), pytest.raises(ConfigError) as caught:
        HeldPort.hold(held.port)
    text = str(caught.value)
    assert text.startswith(f"--master-port {held.port} is in use on this host. Try: ")
    assert "\n" not in text


@pytest.mark.parametrize("first_is_chosen", [True, False])
def test_a_given_port_that_another_agent_holds_is_refused_before_anything_listens_on_it(held, first_is_chosen):
    if first_is_chosen:
        held.close()
        held = HeldPort.hold(held.port)
    with pytest.raises(ConfigError, match=rf"--master-port {held.port} is in use on this host\. Try: .*elastic status"):
        HeldPort.hold(held.port)
    with listening(socket.AF_INET, "0.0.0.0", held.port, socket.SO_REUSEADDR):  # its worker still can
        held.close()
    HeldPort.hold(held.port).close()


def test_a_launcher_in_the_worker_with_rank_0_holds_that_workers_own_port(held, monkeypatch):
    inherited = {"ELASTIC_INCARNATION": "outer", "RANK": "0", "MASTER_PORT": str(held.port)}
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    inner = HeldPort.hold(held.port)
    with listening(socket.AF_INET, "0.0.0.0", held.port, socket.SO_REUSEADDR):  # its worker can
        pass
    inner.close()
    for name, other in (("RANK", "1"), ("MASTER_PORT", "1"), ("ELASTIC_INCARNATION", None)):
        with monkeypatch.context() as patch:
            patch.setenv(name, other) if other else patch.delenv(name)
            with pytest.raises(ConfigError, match="is in use on this host"):
                HeldPort.hold(held.port)


def test_a_fresh_port_is_held_though_somebody_has_its_name(held, monkeypatch):
    held._socket.close()  # the name is left
    monkeypatch.setattr(port_module, "_bind", lambda port, *, reuse: listening(socket.AF_INET, "127.0.0.1", held.port))
    HeldPort.reserve().close()


def test_where_names_of_sockets_cannot_be_had_the_bound_port_has_to_do(held, monkeypatch):
    real = port_module.socket.socket

    class Refused(real):
        def bind(self, address):
            if self.family == socket.AF_UNIX:
                raise PermissionError(13, "Permission denied")
            super().bind(address)

    monkeypatch.setattr(port_module.socket, "socket", Refused)
    port = HeldPort.hold(held.port)
    port.close()


OWN = ["localhost", "LocalHost.", "127.0.0.1", "127.0.0.2", "0.0.0.0", socket.gethostname()]
if socket.has_ipv6:
    OWN.append("::1")
ELSEWHERE = ["192.0.2.7", "2001:db8::7"]


@pytest.mark.parametrize("host", OWN)
def test_an_address_that_can_be_bound_is_this_hosts(host):
    assert is_this_host(host) is is_this_host(host, look_up=False) is True


@pytest.mark.parametrize("host", ELSEWHERE)
def test_an_address_of_another_host_is_not(host):
    assert is_this_host(host) is is_this_host(host, look_up=False) is False


@pytest.mark.parametrize(
    ("found", "own"), [(["127.0.0.1"], True), (["192.0.2.7"], False), (["192.0.2.7", "127.0.0.1"], True), ([], False)]
)
def test_a_name_is_this_hosts_if_it_leads_here_and_is_not_looked_up_unasked(monkeypatch, found, own):
    def look_up(host, port, *, type, flags):
        if flags & socket.AI_NUMERICHOST or not found:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(port_module.socket, "getaddrinfo", look_up)
    assert is_this_host("node0.example", look_up=False) is None
    assert is_this_host("node0.example") is own


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "[::1]"])
def test_what_is_no_name_is_not_this_host(host):
    assert is_this_host(host) is False


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_one_line(port):
    with pytest.raises(ConfigError, match=rf"--master-port: {port}; expected a TCP port, 1 to 65535"):
        HeldPort.hold(port)


def test_port_zero_lets_the_kernel_choose():
    port = HeldPort.hold(0)
    assert port.port > 0
    port.close()


def test_without_ipv6_it_is_held_on_ipv4(monkeypatch):
    real = port_module.socket.socket

    def no_ipv6(family, kind):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(port_module.socket, "socket", no_ipv6)
    port = HeldPort.reserve()
    monkeypatch.undo()
    with pytest.raises(OSError, match="in use"):
        listening(socket.AF_INET, "0.0.0.0", port.port)
    listening(socket.AF_INET, "0.0.0.0", port.port, socket.SO_REUSEADDR).close()
    port.close()


def test_no_port_left_is_one_line(monkeypatch):
    def exhausted(port, *, reuse):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(port_module, "_bind", exhausted)
    with pytest.raises(
        RendezvousError, match=r"no TCP port could be reserved for MASTER_PORT \(Address already in use\)"
    ):
        HeldPort.reserve()


SERVER = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen()
print("up", flush=True)
peer, _ = server.accept()
print("accepted", flush=True)
peer.recv(1)
"""


def crash_a_server(port):
    """Leave behind what a killed server leaves: a connection in TIME_WAIT or FIN_WAIT on its side."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "up\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    assert server.stdout.readline() == "accepted\n"
    server.kill()
    server.wait()
    server.stdout.close()
    return client


def test_a_crashed_worker_does_not_keep_the_next_from_its_port(held):
    for _ in range(3):
        client = crash_a_server(held.port)
        listening(socket.AF_INET, "0.0.0.0", held.port, socket.SO_REUSEADDR).close()
        client.close()


def test_a_given_port_can_be_held_again_after_a_crash():
    first = HeldPort.reserve()
    client = crash_a_server(first.port)
    client.close()
    first.close()
    second = HeldPort.hold(first.port)
    assert second.port == first.port
    listening(socket.AF_INET, "0.0.0.0", second.port, socket.SO_REUSEADDR).close()
    second.close()
