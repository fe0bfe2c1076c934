"""Commands as bytes, and the replies in what a connection receives, by hiredis.

hiredis is the parser in C that redis-py uses, too. redis-py itself is not used: a store needs only what is here, and
the import of its connection (with asyncio, ssl, metrics and the handling of maintenance) took a third of an agent's
memory. See docs/decisions/0061.
"""

from collections.abc import Callable
from typing import Any, Final

import hiredis


class NotRedisError(Exception):
    """The other side does not speak this protocol."""


class ErrorReply(Exception):  # it is a reply, which the caller translates
    """An error that the server has replied, for example `WRONGTYPE Operation against a key …`."""

    def __init__(self, text: str) -> None:
        """Use the reply's text."""
        super().__init__(text.removeprefix("ERR "))


class LoginError(ErrorReply):
    """The server does not accept the login, or wants one."""


class NoScriptError(ErrorReply):
    """The server does not know a script; nothing was run."""


class MovedError(ErrorReply):
    """Another node of a cluster has the keys; nothing was run. An empty `host` means the host of this node."""

    def __init__(self, text: str) -> None:
        """Read the node from `MOVED SLOT HOST:PORT`."""
        super().__init__(text)
        self.host, _, port = text.rpartition(" ")[2].rpartition(":")
        if not port.isdecimal():
            raise NotRedisError(f"no node in {text!r}")
        self.port = int(port)


_ERRORS: Final[dict[str, type[ErrorReply]]] = {
    "MOVED": MovedError,
    "NOAUTH": LoginError,
    "NOSCRIPT": NoScriptError,
    "WRONGPASS": LoginError,
}


_NOT_YET: Final = object()
"""The mark for a reply that is not complete."""


def packed(words: tuple[str | bytes | int, ...]) -> bytes:
    """Return a command as a server reads it."""
    return bytes(hiredis.pack_command(words))  # type: ignore[arg-type]  # its stub knows tuples of one word only


class Replies:
    """Reads the replies of one connection.

    Args:
        receive: Returns the next bytes of the connection; it blocks until there are some, and raises if there are none.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._reader = hiredis.Reader(protocolError=NotRedisError, replyError=_error, notEnoughData=_NOT_YET)
        self.buffered = False
        """Whether bytes of the next reply were received."""

    def add(self, piece: bytes) -> None:
        """Add bytes that the connection has received."""
        self._reader.feed(piece)
        self.buffered = True

    def next(self) -> Any:  # noqa: ANN401  # whatever the server replies
        """Return the next reply: `None`, a number, bytes, or a list of replies, in which an error is an `ErrorReply`.

        Raises:
            ErrorReply: the whole reply is an error.
            NotRedisError: it is no reply.
            Exception: from `receive`; no other reply can be read then.
        """
        while (reply := self._reader.gets()) is _NOT_YET:
            self.add(self._receive())
        self.buffered = self._reader.has_data()
        if isinstance(reply, ErrorReply | NotRedisError):
            raise reply
        return reply


def _error(text: str) -> Exception:
    """Return the exception for an error in a reply. hiredis does not expect that one is raised."""
    try:
        return _ERRORS.get(text.partition(" ")[0], ErrorReply)(text)
    except NotRedisError as error:
        return error
