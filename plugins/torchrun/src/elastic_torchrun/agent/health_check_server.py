"""The HTTP server that answers probes of the agent: 200 while it makes progress, 503 when it has stopped to."""

import json
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock
from elastic_ops.control_plane.handlers import JSON, TEXT, Pages, Response
from elastic_ops.control_plane.listeners import TcpServer

HOST_VARIABLE: Final = "ELASTIC_HEALTH_CHECK_HOST"
LOOPBACK: Final = "127.0.0.1"
PATHS: Final = frozenset({"/", "/health", "/healthz"})


class HealthCheckServer:
    """An HTTP server in a thread of its own, with the bounds of `TcpServer` on what clients can use up.

    GET / and /health give a JSON object: `alive`, `age_s` (seconds since the agent's last progress) and `timeout_s`.
    Subclass it, or put another function in the place of `create_healthcheck_server` of this module, to answer in
    another way.

    Args:
        alive_callback: Gives when the agent last made progress, in seconds since the epoch.
        port: Where to listen; 0: any free port (see `port`).
        timeout: Seconds without progress after which the agent counts as dead.
        host: The address to listen on; None: `ELASTIC_HEALTH_CHECK_HOST`, else this host only.
        clock: For the age.

    Threading: `alive_callback` is called in the server's thread, and must not block.
    """

    def __init__(
        self,
        alive_callback: Callable[[], int],
        port: int,
        timeout: int,
        *,
        host: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Listen on nothing yet."""
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._host = host or os.environ.get(HOST_VARIABLE) or LOOPBACK
        self._clock = clock
        self._server: TcpServer | None = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """What says when the agent last made progress."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """Where it listens, once it was started."""
        return self._port if self._server is None else self._server.port

    def start(self) -> None:
        """Begin to answer; no effect if it does.

        Raises:
            OSError: the port can't be had.
        """
        if self._server is None:
            self._server = TcpServer(self._host, self._port, Pages(self._answer), name="elastic-health")

    def stop(self) -> None:
        """Stop answering; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()

    def _answer(self, path: str) -> Response:
        response = Response()
        if path not in PATHS:
            response.set_status(HTTPStatus.NOT_FOUND)
            response.set_content("not found: /health is answered\n", TEXT)
            return response
        age_s = max(0.0, self._clock.wall_ns() / 1e9 - self._alive_callback())
        alive = age_s <= self._timeout
        content = {"alive": alive, "age_s": round(age_s, 3), "timeout_s": self._timeout}
        response.set_status(HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE)
        response.set_content(json.dumps(content) + "\n", JSON)
        return response


def create_healthcheck_server(alive_callback: Callable[[], int], port: int, timeout: int) -> HealthCheckServer:
    """Return a server that is not started yet. Agents look this function up in its module when they need it."""
    return HealthCheckServer(alive_callback, port, timeout)
