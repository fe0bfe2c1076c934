"""HTTP on one accepted connection, in the form of torch's worker server, with the standard library's parser."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from elastic_core.api.feed import AgentChannel
from elastic_ops.control_plane.handlers import HANDLER_PATH, TEXT, Offer, Request, Response
from elastic_ops.control_plane.proved import (
    ANSWER,
    ANSWER_HEADER,
    REQUEST,
    SCHEME,
    Refused,
    Session,
    new_nonce,
    words_of,
)
from elastic_ops.control_plane.timed import OWNERS, Bounds, TimedSocket

LONGEST_BODY: Final = 1 << 20
STREAM_SEND_S: Final = 30.0
"""How long the server waits for a stream's client that reads nothing."""
_LONGEST_LENGTH: Final = 20
"""The limit of digits in a number; Python rejects thousands of digits."""
_FORM: Final = "application/x-www-form-urlencoded"


def serve(
    connection: TimedSocket,
    offer: Offer,
    *,
    bounds: Bounds = OWNERS,
    channel: Callable[[], AgentChannel | None] | None = None,
    on_proof: Callable[[], object] = lambda: None,
) -> None:
    """Serve the request of a connection, and close it. Threading: blocks; each connection has its own thread.

    Args:
        connection: The client's.
        offer: Pages and handlers.
        bounds: Limits of the client.
        channel: As in `HttpServer`.
        on_proof: Called after the client has proved that it knows the run's secret.
    """
    connection.keep_to(bounds)
    try:
        _Exchange(connection, offer, channel, on_proof)
    except OSError:  # the client has disconnected
        return
    finally:
        connection.close()


class _Exchange(BaseHTTPRequestHandler):
    """One request, or two if the first has no proof. The base class reads them in its constructor."""

    protocol_version = "HTTP/1.1"
    server_version = "elastic-core"
    sys_version = ""

    def __init__(
        self,
        connection: TimedSocket,
        offer: Offer,
        channel: Callable[[], AgentChannel | None] | None,
        on_proof: Callable[[], object],
    ) -> None:
        self._offer = offer
        self._channel = channel
        self._on_proof = on_proof
        self._nonce = ""
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
        """Log nothing: stderr is the training's."""

    def do_GET(self) -> None:
        address = self._address()
        if address is None:
            return
        try:
            page = self._offer.page(address.path)
        except Exception as err:  # noqa: BLE001  # anybody's code: its error is the answer
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{_named(err)}\n".encode(errors="replace"), TEXT)
            return
        if page is None:
            self._send(HTTPStatus.NOT_FOUND, b"", TEXT)
        else:
            self._send(page.status, page.content, page.content_type)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        address = self._address()
        body = None if address is None else self._body()
        if address is None or body is None:
            return
        session = None
        if self._channel is not None:
            session = self._session(self._channel(), body)
            if session is None:
                return
        if not address.path.startswith(HANDLER_PATH):
            self._send(HTTPStatus.NOT_FOUND, b"", TEXT)
            return
        name = unquote(address.path.removeprefix(HANDLER_PATH))
        params = dict(parse_qsl(address.query, keep_blank_values=True))
        if self.headers.get_content_type() == _FORM:
            params |= dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        self._respond(name, Request(body=body, params=params), session)

    def _nothing(self) -> None:
        self._send(HTTPStatus.NOT_FOUND, b"", TEXT)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _nothing

    def _session(self, channel: AgentChannel | None, body: bytes) -> Session | None:
        """Return the session that the client has proved.

        `None` without a proof; the client then got a nonce for one try.
        """
        nonce, self._nonce = self._nonce, new_nonce()
        if channel is not None:
            client_nonce, proof = words_of(self.headers.get("Authorization"))
            session = Session(
                secret=channel.secret,
                incarnation=channel.incarnation,
                nonce=nonce,
                client_nonce=client_nonce,
                path=self.path,
                body=body,
            )
            try:
                session.check(proof, REQUEST)
            except Refused:
                pass
            else:
                self._on_proof()
                return session
        challenge = {"WWW-Authenticate": f"{SCHEME} {self._nonce}"}
        self._send(HTTPStatus.UNAUTHORIZED, b"", TEXT, headers=challenge, close=bool(nonce))
        return None

    def _address(self) -> SplitResult | None:
        """Return the request's URL. `None` means that the request was rejected."""
        try:
            return urlsplit(self.path)
        except ValueError as err:
            self._send(HTTPStatus.BAD_REQUEST, f"no address: {err}".encode(), TEXT)
            return None

    def _body(self) -> bytes | None:
        """Return the request's body. `None` means that the request was rejected."""
        text = self.headers.get("Content-Length", "0")
        if not text.isdecimal() or "Transfer-Encoding" in self.headers:
            self._send(HTTPStatus.BAD_REQUEST, b"a body needs its Content-Length", TEXT)
            return None
        if len(text) > _LONGEST_LENGTH or int(text) > LONGEST_BODY:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the body is longer than 1 MiB", TEXT)
            return None
        return self.rfile.read(int(text))

    def _respond(self, name: str, request: Request, session: Session | None) -> None:
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
            response = Response()
            response.set_status(HTTPStatus.INTERNAL_SERVER_ERROR)
            response.set_content(f"Handler {name} failed: {_named(err)}", TEXT)
        self._response = response
        if session is not None and response.status == HTTPStatus.OK:
            self._send_sealed(session, response.pieces())
        else:
            self._send(response.status, response.content, response.content_type)

    def _send_sealed(self, session: Session, pieces: Iterable[bytes]) -> None:
        """Send the server's proof, and each piece with a code."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header(ANSWER_HEADER, session.proof(ANSWER))
        self.send_header("Connection", "close")
        self.end_headers()
        self.request.send_s = STREAM_SEND_S
        codes = session.batches()
        for piece in pieces:
            self.wfile.write(codes.sealed(piece))

    def _send(
        self,
        status: int,
        content: bytes,
        content_type: str,
        *,
        headers: dict[str, str] | None = None,
        close: bool = True,
    ) -> None:
        self.close_connection = close
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _named(err: Exception) -> str:
    return f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
