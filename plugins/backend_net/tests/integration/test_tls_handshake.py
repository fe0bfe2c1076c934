"""A TLS handshake with servers that are not there any more, or were never TLS."""

import socket
import struct
import time

import pytest

from elastic_backend_net.interrupt import Interrupt
from elastic_backend_net.tls import Tls, start_tls
from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendError, BackendUnavailableError
from patience import kept
from support import wait_for

AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: to close is to reset."""


@pytest.fixture
def interrupt():
    made = Interrupt()
    yield made
    made.close()


@pytest.fixture
def ends():
    """Both ends of a connection, the client's first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    yield client, theirs
    client.close()
    theirs.close()


def begin(sock, interrupt):
    return start_tls(
        sock,
        Tls(insecure=True),
        host="localhost",
        peer="server:1",
        plain="without TLS",
        timeout_s=1.0,
        interrupt=interrupt,
        wait=WaitBudget.lasting(5),
    )


def test_a_server_that_has_died_since_it_was_reached(ends, interrupt):
    client, theirs = ends
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    theirs.close()
    wait_for(lambda: gone(client), within_s=5, what="the reset to arrive")
    with pytest.raises(BackendUnavailableError, match="server:1 closed the connection during the TLS handshake"):
        begin(client, interrupt)
    assert client.fileno() == -1


def gone(sock):
    """Return whether the other end has reset the connection."""
    try:
        sock.getpeername()
    except OSError:
        return True
    return False


def test_a_server_that_has_spoken_and_died(ends, interrupt):
    client, theirs = ends
    theirs.sendall(b"-ERR not for you")
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    theirs.close()
    wait_for(lambda: gone(client), within_s=5, what="the reset to arrive")
    with pytest.raises(BackendError, match="server:1"):
        begin(client, interrupt)


def test_a_server_that_says_nothing(ends, interrupt):
    client, _ = ends
    began_s = time.monotonic()
    with pytest.raises(BackendUnavailableError, match="no answer from server:1 in time"):
        begin(client, interrupt)
    took_s = time.monotonic() - began_s
    assert took_s > 0.9
    kept(took_s, 3)
