"""The HTTP server for health checks of the agent: 200 while the agent makes progress, else 503."""

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
    """An HTTP health check server on a thread of its own, with the limits of `TcpServer` on clients.

    GET / and /health return a JSON object: `alive`, `age_s` (seconds since the agent's last progress) and `timeout_s`.
    For other responses, subclass it, or replace the function `create_healthcheck_server` of this module.

    Args:
        alive_callback: Returns the time of the agent's last progress, in seconds since the epoch.
        port: The port to listen on; 0 means any free port (see `port`).
        timeout: Seconds without progress after which the agent is reported as dead.
        host: The address to listen on. `None` means `ELASTIC_HEALTH_CHECK_HOST`, else this host only.
        clock: Clock for the age.

    Threading: `alive_callback` is called on the server's thread, and must not block.
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
        """The function that returns the time of the agent's last progress."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port on which the server listens, after `start`."""
        return self._port if self._server is None else self._server.port

    def start(self) -> None:
        """Start to serve; no effect if it serves already.

        Raises:
            OSError: the port can't be opened.
        """
        if self._server is None:
            self._server = TcpServer(self._host, self._port, Pages(self._answer), name="elastic-health")

    def stop(self) -> None:
        """Stop serving; idempotent."""
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
