"""The protocol of Redis, version 2: commands as bytes, and the replies in what a connection receives.

redis-py is not used: a store needs only what is here, and the import of its connection (with asyncio, ssl, metrics and
the handling of maintenance) took a third of an agent's memory. See docs/decisions/0060.

Source: the specification of RESP, https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from collections.abc import Callable
from typing import Any, Final

_END: Final = b"\r\n"
_LONGEST_LINE: Final = 1 << 16
"""The limit of a line in bytes: of an error, a status, or a length. Values are not lines."""


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


def packed(words: tuple[str | bytes | int, ...]) -> bytes:
    """Return a command as a server reads it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


class Replies:
    """Reads the replies of one connection.

    Args:
        receive: Returns the next bytes of the connection; it blocks until there are some, and raises if there are none.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = b""
        self._at = 0

    @property
    def buffered(self) -> bool:
        """Whether bytes of the next reply were received."""
        return self._at < len(self._buffer)

    def add(self, piece: bytes) -> None:
        """Add bytes that the connection has received."""
        self._buffer, self._at = self._buffer[self._at :] + piece, 0

    def next(self) -> Any:  # noqa: ANN401  # whatever the server replies
        """Return the next reply: `None`, a number, bytes, or a list of replies, in which an error is an `ErrorReply`.

        Raises:
            ErrorReply: the whole reply is an error.
            NotRedisError: it is no reply.
            Exception: from `receive`; no other reply can be read then.
        """
        reply = self._read()
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def _read(self) -> Any:  # noqa: ANN401  # as above
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            text = rest.decode(errors="replace")
            return _ERRORS.get(text.partition(" ")[0], ErrorReply)(text)
        if kind not in (b":", b"$", b"*"):
            raise NotRedisError(f"a reply that begins with {kind!r}")
        try:
            number = int(rest)
        except ValueError:
            raise NotRedisError(f"no number: {rest[:80]!r}") from None
        if kind == b":":
            return number
        if number < 0:
            return None
        return self._value(number) if kind == b"$" else [self._read() for _ in range(number)]

    def _line(self) -> bytes:
        while (end := self._buffer.find(_END, self._at)) < 0:
            if len(self._buffer) - self._at > _LONGEST_LINE:
                raise NotRedisError("a line without an end")
            self.add(self._receive())
        line = self._buffer[self._at : end]
        self._at = end + len(_END)
        return line

    def _value(self, size: int) -> bytes:
        needed = size + len(_END)
        if len(self._buffer) - self._at < needed:
            pieces = [self._buffer[self._at :]]
            count = len(pieces[0])
            while count < needed:
                pieces.append(self._receive())
                count += len(pieces[-1])
            self._buffer, self._at = b"".join(pieces), 0
        value = self._buffer[self._at : self._at + size]
        self._at += needed
        return value
