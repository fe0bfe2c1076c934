"""A client of control-plane servers, elastic-core's or torch's."""

import http.client
import json
import socket
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from elastic_core.api import SYSTEM_CLOCK, Record
from elastic_ops.control_plane.handlers import JSON
from elastic_ops.control_plane.paths import within_reach

DEFAULT_TIMEOUT_S: Final = 30.0
LONGEST_ANSWER: Final = 64 << 20
"""Limit in bytes: a worker may send any response, which must not fill the agent's memory."""
_PIECE: Final = 1 << 16


class AnswerTooLongError(http.client.HTTPException):
    """A server's response is longer than the limit."""

    def __init__(self, longest: int) -> None:
        """Keep the limit."""
        super().__init__(f"its answer is longer than {longest / (1 << 20):g} MiB")


class Reply(Record, frozen=True, kw_only=True):
    """A server's response."""

    status: int
    content_type: str
    content: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self.content_type.partition(";")[0].strip() == JSON


_CROWDED_S: Final = 0.02
"""The pause before the next try at a server with a full queue."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        end_s = SYSTEM_CLOCK.monotonic_s() + self._timeout_s
        with within_reach(self._path) as near:
            while True:
                try:
                    self.sock.connect(near)
                except BlockingIOError:  # so many wait to be let in that the system takes no more of them
                    if SYSTEM_CLOCK.monotonic_s() >= end_s:
                        raise
                    threading.Event().wait(_CROWDED_S)
                else:
                    return


def call(
    path: str,
    name: str,
    params: Mapping[str, str] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    longest: int = LONGEST_ANSWER,
) -> Reply:
    """Run handler `name` of the server at the socket `path`.

    Raises:
        OSError: there is no such server, it rejects this user, or it has not sent its whole response in time.
        AnswerTooLongError: the response has more than `longest` bytes.
        http.client.HTTPException: the server does not use HTTP.
    """
    query = f"?{urlencode(params)}" if params else ""
    return _ask(path, "POST", f"/handler/{quote(name, safe='')}{query}", timeout_s, longest)


def names(path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[str, ...]:
    """Return the names of a server's handlers; raises as `call` does."""
    reply = _ask(path, "GET", "/handler/", timeout_s)
    try:
        return tuple(sorted(str(name) for name in json.loads(reply.content)))
    except (ValueError, TypeError) as err:
        raise http.client.HTTPException("what answers there is no control plane") from err


def _ask(path: str, method: str, address: str, timeout_s: float, longest: int = LONGEST_ANSWER) -> Reply:
    end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    connection = _UnixConnection(path, timeout_s)
    try:
        connection.request(method, address)
        sock = connection.sock  # the response takes it over
        response = connection.getresponse()
        kind = response.headers.get("Content-Type", "")
        content = bytearray()
        while piece := response.read1(_PIECE):
            content += piece
            if len(content) > longest:
                raise AnswerTooLongError(longest)
            left_s = end_s - SYSTEM_CLOCK.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("timed out")
            sock.settimeout(left_s)
        return Reply(status=response.status, content_type=kind, content=bytes(content))
    finally:
        connection.close()
