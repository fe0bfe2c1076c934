"""Who answers at an endpoint: asked before a client library is let near it, whose words would not say."""

import enum
import socket
from typing import Final

from elastic_core.api import BackendUnavailableError, WaitBudget
from elastic_rdzv_redis.network import Endpoint, dial

_CHUNK_BYTES: Final = 4096
_LOOK_S: Final = 0.05


class Answer(enum.Enum):
    """Who it is."""

    OURS = "this run's store"
    OTHER_RUN = "a store that another run, or somebody else, protects with a password of its own"
    OPEN_SERVER = "a Redis or Valkey server that is not the embedded store of a run"
    STRANGER = "something that is no Redis or Valkey server"


def who_answers(host: str, port: int, password: str, *, timeout_s: float, wait: WaitBudget) -> Answer:
    """Connect, try the password and return who it is.

    Raises:
        BackendUnavailableError: nobody listens, or says a word within `timeout_s`. One that hangs up is taken for a
            host that ends, or a tunnel to one that is not there yet.
        WaitCancelledError: the agent asked the call to end.
    """
    with dial(host, port, timeout_s=timeout_s, wait=wait) as sock:
        try:
            sock.sendall(f"*2\r\n$4\r\nAUTH\r\n${len(password)}\r\n{password}\r\n".encode())
            line = _first_line(sock, timeout_s, wait)
        except ConnectionError:
            line = b""
        if not line:
            raise BackendUnavailableError(f"{Endpoint(host=host, port=port)} closed the connection without an answer")
    if line.startswith(b"+OK"):
        return Answer.OURS
    if line.startswith((b"-WRONGPASS", b"-ERR invalid password")):
        return Answer.OTHER_RUN
    if line.startswith((b"-ERR", b"-DENIED", b"-NOAUTH")):
        return Answer.OPEN_SERVER
    return Answer.STRANGER


def _first_line(sock: socket.socket, timeout_s: float, wait: WaitBudget) -> bytes:
    line = b""
    looks = max(1, round(timeout_s / _LOOK_S))
    sock.settimeout(_LOOK_S)
    for _ in range(looks):
        wait.check()
        try:
            chunk = sock.recv(_CHUNK_BYTES)
        except TimeoutError:
            continue
        line += chunk
        if not chunk or b"\n" in line or len(line) >= _CHUNK_BYTES:
            return line
    raise BackendUnavailableError(f"no answer from {sock.getpeername()[0]} within {timeout_s:g} s")
