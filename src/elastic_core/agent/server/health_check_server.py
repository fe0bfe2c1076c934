"""Tells a prober over HTTP whether the agent is alive: 200 while it makes progress, 503 when it has stopped to."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from elastic_core.clock import SYSTEM_CLOCK, Clock

HOST_VARIABLE: Final = "ELASTIC_HEALTH_CHECK_HOST"
LOOPBACK: Final = "127.0.0.1"
PATHS: Final = frozenset({"/", "/health", "/healthz"})
REQUEST_LIMIT_S: Final = 5.0
"""How long a client may take over its request: a silent one must not hold a thread for ever."""


class HealthCheckServer:
    """An HTTP server in a thread of its own.

    GET / and /health give a JSON object: `alive`, `age_s` (seconds since the agent's last progress) and `timeout_s`.
    Subclass it, or put another function in the place of `create_healthcheck_server` of this module, to answer in
    another way.

    Args:
        alive_callback: Gives when the agent last made progress, in seconds since the epoch.
        port: Where to listen; 0: any free port (see `port`).
        timeout: Seconds without progress after which the agent counts as dead.
        host: The address to listen on; None: `ELASTIC_HEALTH_CHECK_HOST`, else this host only.
        clock: For the age.

    Threading: `alive_callback` is called in the server's threads, and must not block.
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
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """What says when the agent last made progress."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """Where it listens, once it was started."""
        return self._port if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer; no effect if it does.

        Raises:
            OSError: the port can't be had.
        """
        if self._server is not None:
            return
        self._server = _Server((self._host, self._port), _handler(self._answer))
        self._thread = threading.Thread(target=self._server.serve_forever, name="elastic-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; idempotent."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        server.shutdown()
        server.server_close()
        thread.join()

    def _answer(self) -> tuple[int, dict[str, object]]:
        age_s = max(0.0, self._clock.wall_ns() / 1e9 - self._alive_callback())
        alive = age_s <= self._timeout
        return (200 if alive else 503), {"alive": alive, "age_s": round(age_s, 3), "timeout_s": self._timeout}


def create_healthcheck_server(alive_callback: Callable[[], int], port: int, timeout: int) -> HealthCheckServer:
    """Return a server that is not started yet. Agents look this function up in its module when they need it."""
    return HealthCheckServer(alive_callback, port, timeout)


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a client that keeps its connection must not keep the agent
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Without HTTPServer's own: it asks the name service who we are, which takes seconds where there is none.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as in the base class
        # A probe that only connects is no error, and would be a traceback in the workers' output every few seconds.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(answer: Callable[[], tuple[int, dict[str, object]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_LIMIT_S
        server_version = "elastic"
        sys_version = ""

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def _reply(self, *, with_body: bool) -> None:
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(404)
                return
            code, told = answer()
            body = json.dumps(told).encode() + b"\n"
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: probes come every few seconds."""

    return Handler
