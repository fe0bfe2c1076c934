"""Named handlers of a control-plane server, each a function of a request and a response."""

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final

from elastic_core.api import ConfigError

TEXT: Final = "text/plain"
JSON: Final = "application/json"
OK: Final = 200
HANDLER_PATH: Final = "/handler/"


class Request:
    """A client's request. `params` has the parameters of the URL, then those of a form in the body."""

    def __init__(self, *, body: bytes = b"", params: Mapping[str, str] | None = None) -> None:
        """Keep the parts."""
        self._body = body
        self._params = dict(params or {})

    def body(self) -> str:
        """Return the body as text; bytes that are not UTF-8 are replaced."""
        return self._body.decode("utf-8", "replace")

    def body_bytes(self) -> bytes:
        """Return the body as bytes."""
        return self._body

    def params(self) -> dict[str, str]:
        """Return all parameters."""
        return dict(self._params)

    def get_param(self, key: str) -> str:
        """Return one parameter, or an empty text."""
        return self._params.get(key, "")


class Response:
    """A handler's response. The default is an empty text with status 200."""

    def __init__(self) -> None:
        """Begin empty."""
        self.status = OK
        self.content = b""
        self.content_type = TEXT
        self._afterwards: list[Callable[[], None]] = []
        self._stream: Generator[bytes, None, None] | None = None

    def set_content(self, content: str | bytes, content_type: str) -> None:
        """Set the body and its MIME type."""
        self.content = content.encode() if isinstance(content, str) else bytes(content)
        self.content_type = content_type

    def set_status(self, status: int) -> None:
        """Set the HTTP status."""
        self.status = int(status)

    def set_stream(self, pieces: Generator[bytes, None, None]) -> None:
        """Set a body that comes in pieces, for clients with the run's proof."""
        self._stream = pieces

    def pieces(self) -> Iterable[bytes]:
        """Return the pieces of the body as they are sent."""
        return (self.content,) if self._stream is None else self._stream

    def afterwards(self, action: Callable[[], None]) -> None:
        """Have `action` called after the response was sent, or could not be: an action that may end this process."""
        self._afterwards.append(action)

    def finish(self) -> None:
        """Close the stream, and call the pending actions. Called: by the server."""
        if self._stream is not None:
            self._stream.close()
        for action in self._afterwards:
            action()


Handler = Callable[[Request, Response], None]


class HandlerTable:
    """Handlers by name. Threading: any; a handler runs on the thread of its connection."""

    def __init__(self, handlers: Mapping[str, Handler] | None = None) -> None:
        """Begin with these handlers."""
        self._handlers: dict[str, Handler] = dict(handlers or {})
        self._lock = threading.Lock()

    def register(self, name: str, handler: Handler) -> None:
        """Add a handler, or replace the one of that name.

        Raises:
            ConfigError: the name is not valid in a URL, or the handler is not a function.
        """
        if not name or not name.isascii() or not all(c.isalnum() or c in "_-." for c in name):
            raise ConfigError(f"a handler's name has letters, digits and '_-.', not {name!r}")
        if not callable(handler):
            raise ConfigError(f"handler {name!r} is a {type(handler).__name__}; expected a function")
        with self._lock:
            self._handlers[name] = handler

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        with self._lock:
            return tuple(sorted(self._handlers))

    def find(self, name: str) -> Handler | None:
        """Return a handler, or `None`."""
        with self._lock:
            return self._handlers.get(name)


class Offer:
    """The content of a server: pages for GET, and handlers for `POST /handler/<name>`. This class has no handler."""

    title = "elastic_core"

    def names(self) -> Sequence[str]:
        """Return the names of all handlers."""
        return ()

    def find(self, name: str) -> Handler | None:
        """Return a handler, or `None`."""
        return None

    def page(self, path: str) -> Response | None:
        """Return the page at a path without its query, or `None`. An exception becomes the response."""
        response = Response()
        if path == "/":
            page = f'<h1>{self.title}</h1>\n<a href="{HANDLER_PATH}">Handler names</a>\n'
            response.set_content(page, "text/html")
        elif path == HANDLER_PATH:
            import json  # training scripts load this module

            response.set_content(json.dumps(list(self.names()), separators=(",", ":")), JSON)
        else:
            return None
        return response


class Pages(Offer):
    """Pages only, made by one function of the path."""

    def __init__(self, page: Callable[[str], Response | None]) -> None:
        """Keep the function."""
        self._page = page

    def page(self, path: str) -> Response | None:
        """Return the function's result."""
        return self._page(path)


WORKER_HANDLERS: Final = HandlerTable()
"""Handlers of every worker server of this process, in addition to the built-in ones and torch's."""


def register_handler(name: str, handler: Handler) -> None:
    """Have this worker's server run `handler(request, response)` at `POST /handler/<name>`; it replaces an earlier one.

    The handler runs on a thread of the server while training goes on: it must not block without limit, nor use objects
    that are not thread-safe. If it raises, the response has status 500 and the error's text.

    Raises:
        ConfigError: the name is not valid in a URL, or the handler is not a function.
    """
    WORKER_HANDLERS.register(name, handler)


def handler_names(tables: Iterable[HandlerTable] = (WORKER_HANDLERS,)) -> tuple[str, ...]:
    """Return the registered names, sorted."""
    return tuple(sorted({name for table in tables for name in table.names()}))
