"""The kind of server at a port of this host, checked by hand since it may not be an etcd."""

import json
import socket
from typing import Final

from elastic_backend_net.endpoint import dial
from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import BackendUnavailableError

LOOPBACK: Final = "127.0.0.1"

_CHUNK_BYTES: Final = 65536
_MOST_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.05
_QUESTION: Final = (
    b"POST /v3/cluster/member/list HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


def member_names(port: int, *, timeout_s: float, wait: WaitBudget) -> tuple[str, ...] | None:
    """Return the names of the members of the etcd at a port. `None` if it is not an etcd with the v3 API.

    Raises:
        BackendUnavailableError: there is no listener, no response in time, or an etcd that is still starting.
        WaitCancelledError: the agent cancelled the call.
    """
    end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    with dial(LOOPBACK, port, timeout_s=timeout_s, wait=wait) as sock:
        try:
            sock.sendall(_QUESTION)
            answer = _until_closed(sock, end_s, wait)
        except ConnectionError:
            answer = b""
    if not answer:
        raise BackendUnavailableError(f"{LOOPBACK}:{port} closed the connection without an answer")
    names = _names(answer)
    if names is not None and not all(names):
        raise BackendUnavailableError(f"the etcd at {LOOPBACK}:{port} is just starting")
    return names


def _until_closed(sock: socket.socket, end_s: float, wait: WaitBudget) -> bytes:
    answer = b""
    sock.settimeout(_LOOK_S)  # short looks: `wait` may be cancelled meanwhile
    while SYSTEM_CLOCK.monotonic_s() < end_s:
        wait.check()
        try:
            chunk = sock.recv(_CHUNK_BYTES)
        except TimeoutError:
            continue
        answer += chunk
        if not chunk or len(answer) > _MOST_BYTES:
            return answer
    raise BackendUnavailableError(f"no answer from {LOOPBACK}:{sock.getpeername()[1]} in time")


def _names(answer: bytes) -> tuple[str, ...] | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not head.startswith(b"HTTP/1.") or not status:
        return None
    if status == [b"503"]:
        return ("",)  # its gateway is there before its server
    try:
        members = json.loads(body)["members"]
        return tuple(str(member.get("name", "")) for member in members) or ("",)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
