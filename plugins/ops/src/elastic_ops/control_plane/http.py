"""HTTP on one accepted connection: torch's worker server's shape, by the standard library's parser."""

import json
import socket
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from elastic_ops.control_plane.handlers import JSON, TEXT, Handler, Request, Response

HANDLER_PATH: Final = "/handler/"
LONGEST_BODY: Final = 1 << 20
_LONGEST_LENGTH: Final = 20
"""Digits; Python refuses to read thousands of them."""
READ_TIMEOUT_S: Final = 10.0
"""How long a client may take over its request."""
_FORM: Final = "application/x-www-form-urlencoded"


class Offer(Protocol):
    """What a server has to offer."""

    @property
    def title(self) -> str:
        """Return what it calls itself."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all handlers."""
        ...

    def find(self, name: str) -> Handler | None:
        """Return one handler; None: there is none of that name."""
        ...


def serve(connection: socket.socket, offer: Offer) -> None:
    """Answer the one request of a connection, and close it. Threading: blocks; each connection has its own thread."""
    try:
        connection.settimeout(READ_TIMEOUT_S)
        _Exchange(connection, offer)
    except OSError:  # the client went away: nobody is left to tell
        return
    finally:
        connection.close()


class _Exchange(BaseHTTPRequestHandler):
    """One request. The base class reads it and calls `do_<METHOD>`, all in its constructor."""

    protocol_version = "HTTP/1.1"
    server_version = "elastic-core"
    sys_version = ""
    timeout = READ_TIMEOUT_S

    def __init__(self, connection: socket.socket, offer: Offer) -> None:
        self._offer = offer
        self._response: Response | None = None
        unused: Any = None  # the server, which the base class only keeps
        try:
            super().__init__(connection, ("", 0), unused)
        finally:
            self._finish_response()

    def _finish_response(self) -> None:
        if self._response is not None:
            self._response.finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: stderr is the training's."""

    def do_GET(self) -> None:
        address = self._address()
        if address is None:
            return
        path = address.path
        if path == "/":
            page = f'<h1>{self._offer.title}</h1>\n<a href="{HANDLER_PATH}">Handler names</a>\n'
            self._send(HTTPStatus.OK, page.encode(), "text/html")
        elif path == HANDLER_PATH:
            names = json.dumps(list(self._offer.names()), separators=(",", ":"))
            self._send(HTTPStatus.OK, names.encode(), JSON)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"", TEXT)

    def do_POST(self) -> None:
        address = self._address()
        body = None if address is None else self._body()
        if address is None or body is None:
            return
        if not address.path.startswith(HANDLER_PATH):
            self._send(HTTPStatus.NOT_FOUND, b"", TEXT)
            return
        name = unquote(address.path.removeprefix(HANDLER_PATH))
        params = dict(parse_qsl(address.query, keep_blank_values=True))
        if self.headers.get_content_type() == _FORM:
            params |= dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        self._respond(name, Request(body=body, params=params))

    def _nothing(self) -> None:
        self._send(HTTPStatus.NOT_FOUND, b"", TEXT)

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _nothing

    def _address(self) -> SplitResult | None:
        """Return what is asked for; None: it was refused."""
        try:
            return urlsplit(self.path)
        except ValueError as err:
            self._send(HTTPStatus.BAD_REQUEST, f"no address: {err}".encode(), TEXT)
            return None

    def _body(self) -> bytes | None:
        """Return the request's body; None: it was refused."""
        text = self.headers.get("Content-Length", "0")
        if not text.isdecimal() or "Transfer-Encoding" in self.headers:
            self._send(HTTPStatus.BAD_REQUEST, b"a body needs its Content-Length", TEXT)
            return None
        if len(text) > _LONGEST_LENGTH or int(text) > LONGEST_BODY:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the body is longer than 1 MiB", TEXT)
            return None
        return self.rfile.read(int(text))

    def _respond(self, name: str, request: Request) -> None:
        handler = self._offer.find(name)
        if handler is None:
            known = ", ".join(self._offer.names())
            text = f"Handler {name} not found: there are {known}"
            self._send(HTTPStatus.NOT_FOUND, text.encode(), TEXT)
            return
        response = Response()
        try:
            handler(request, response)
        except Exception as err:  # noqa: BLE001  # anybody's code: its error is the answer
            told = f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
            response = Response()
            response.set_status(HTTPStatus.INTERNAL_SERVER_ERROR)
            response.set_content(f"Handler {name} failed: {told}", TEXT)
        self._response = response
        self._send(response.status, response.content, response.content_type)

    def _send(self, status: int, content: bytes, content_type: str) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
