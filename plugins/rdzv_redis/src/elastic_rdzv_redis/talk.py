"""One connection to a server for a few commands, used before a client library with less precise errors."""

from typing import Final

from elastic_backend_net.endpoint import Endpoint, dial
from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendUnavailableError

_CHUNK_BYTES: Final = 4096
_MOST: Final = 64
"""The limit of strings in a reply."""
_LOOK_S: Final = 0.05


class Talk:
    """One connection for a few commands, with simple replies and lists of strings.

    Raises:
        BackendUnavailableError: there is no listener.
        WaitCancelledError: the agent cancelled the call.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float, wait: WaitBudget) -> None:
        """Connect."""
        self._place = Endpoint(host=host, port=port)
        self._looks = max(1, round(timeout_s / _LOOK_S))
        self._limit_s = timeout_s
        self._wait = wait
        self._socket = dial(host, port, timeout_s=timeout_s, wait=wait)
        self._come = b""

    def __enter__(self) -> "Talk":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, *words: str) -> bytes | list[bytes]:
        """Return the reply to a command: a line without its end, or a list's strings.

        Raises:
            BackendUnavailableError: there is none in time, or the connection is closed.
            WaitCancelledError: the agent cancelled the call.
        """
        parts = [f"*{len(words)}\r\n".encode()]
        parts += [b"$%d\r\n%s\r\n" % (len(raw), raw) for raw in (word.encode() for word in words)]
        try:
            self._socket.settimeout(self._limit_s)
            self._socket.sendall(b"".join(parts))
            self._socket.settimeout(_LOOK_S)
            line = self._line()
            if not line.startswith(b"*") or not line[1:].isdigit() or int(line[1:]) > _MOST:
                return line
            return [self._string() for _ in range(int(line[1:]))]
        except ConnectionError as error:
            raise BackendUnavailableError(f"{self._place} closed the connection without an answer") from error

    def _line(self) -> bytes:
        while b"\n" not in self._come and len(self._come) < _CHUNK_BYTES:
            if not self._receive() and self._come:
                break
        line, _, self._come = self._come.partition(b"\n")
        return line.removesuffix(b"\r")

    def _string(self) -> bytes:
        head = self._line()
        size = int(head[1:]) if head[:1] == b"$" and head[1:].isdigit() else -1
        if not 0 <= size <= _CHUNK_BYTES:
            raise ConnectionError
        while len(self._come) < size + 2:
            if not self._receive():
                raise ConnectionError
        text, self._come = self._come[:size], self._come[size + 2 :]
        return text

    def _receive(self) -> bool:
        """Receive data. Return whether the connection is still open."""
        while self._looks:
            self._wait.check()
            try:
                piece = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                self._looks -= 1
                continue
            self._come += piece
            if not (piece or self._come):
                raise ConnectionError
            return bool(piece)
        raise BackendUnavailableError(f"no answer from {self._socket.getpeername()[0]} within {self._limit_s:g} s")
