"""The agent's socket for workers, and its connections: one JSON object a line, with descriptors beside a place."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from elastic_core.api import RunTimer
from elastic_core.api.starters import AgentLoop

SOCKET: Final = "warm.sock"
"""The socket's name in the run directory."""
MOST_MESSAGE_BYTES: Final = 1 << 20
MOST_PATH_BYTES: Final = 107
"""The longest name of a Unix socket. Source: unix(7)."""
_READ_BYTES: Final = 1 << 16
_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 1024
_OWNER_ONLY: Final = 0o600
_OTHERS_WRITE: Final = 0o022
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_REMOVE_S: Final = 0.5
"""How long the end waits for the removal of the socket's name."""
_PAUSE_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a worker. Fields of other kinds, and unknown ones, are left out."""

    kind: str
    version: int = 0
    round: int = -1
    reason: str = ""
    error: str = ""
    ms: dict[str, float] = {}
    commit_ms: float = 0.0
    bytes: int = 0
    step: int | None = None


class Connection:
    """One connected process of this user.

    Args:
        loop: The agent's.
        sock: The connected socket.
        pid: The process that has connected.
        take: Receives the connection and each message; `None` once, when it has ended or its content is invalid.
    """

    def __init__(
        self,
        loop: AgentLoop,
        sock: socket.socket,
        pid: int,
        take: "Callable[[Connection, Message | None], None]",
    ) -> None:
        self.pid = pid
        self._loop = loop
        self._sock = sock
        self._take = take
        self._rest = b""
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self.read)

    def send(self, message: dict[str, object], fds: Sequence[int] = ()) -> bool:
        """Send a message with descriptors; return whether that was possible at once. If not, it must be closed."""
        data = msgspec.json.encode(message) + b"\n"
        try:
            return socket.send_fds(self._sock, [data], list(fds)) == len(data)
        except OSError:  # the process has ended, or does not read
            return False

    def read(self) -> None:
        """Pass on what has arrived. Called: whenever the socket is readable."""
        if self._sock.fileno() < 0:
            return
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                message = msgspec.json.decode(line, type=Message)
            except (msgspec.MsgspecError, RecursionError):
                self._end()
            else:
                self._take(self, message)
            if self._sock.fileno() < 0:
                return
        if not data or len(self._rest) > MOST_MESSAGE_BYTES:
            self._end()

    def _end(self) -> None:
        self.close()
        self._take(self, None)

    def close(self) -> None:
        """Close it; idempotent."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class Listener:
    """The socket in the run directory, which only this user can use.

    Args:
        loop: The agent's.
        folder: The run directory.
        take: As for `Connection`.

    Raises:
        OSError: It could not be made.
    """

    def __init__(self, loop: AgentLoop, folder: str, take: "Callable[[Connection, Message | None], None]") -> None:
        self._loop = loop
        self._take = take
        self._own_folder, self._folder_fd = "", -1
        self._pause: RunTimer | None = None
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not _is_private(folder) or Path(folder, SOCKET).exists():
                # Others could replace the socket, or another agent has one here, or had one and was killed.
                made = Path(folder) / f"warm-{os.urandom(4).hex()}"
                made.mkdir(0o700)
                self._own_folder = folder = str(made)
            self._name = self.path = str(Path(folder) / SOCKET)
            if self._own_folder or len(os.fsencode(self._name)) > MOST_PATH_BYTES:
                # A name by which workers of this user reach it while this process lives, whatever the folder is called.
                self._folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                self.path = f"/proc/{os.getpid()}/fd/{self._folder_fd}/{SOCKET}"
            os.fchmod(self._sock.fileno(), _OWNER_ONLY)  # the mode with which `bind` makes the file
            self._sock.bind(self.path)
            self._sock.listen(_BACKLOG)
            self._sock.setblocking(False)
        except BaseException:
            self._close_socket()
            self._remove()
            raise
        self.connections: set[Connection] = set()
        loop.add_reader(self._sock.fileno(), self._on_readable)

    def _close_socket(self) -> None:
        self._sock.close()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1

    def _remove(self, name: str = "") -> None:
        with suppress(OSError):
            if name:
                Path(name).unlink()
            if self._own_folder:
                Path(self._own_folder).rmdir()

    def _on_readable(self) -> None:
        self._accept()

    def _accept(self) -> bool:
        """Accept a connection; return whether there may be another."""
        try:
            sock, _ = self._sock.accept()
        except OSError as error:  # there is none, or it is gone again
            if error.errno in _NO_DESCRIPTOR and self._pause is None:  # the socket would wake the loop without end
                self._loop.remove_reader(self._sock.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._go_on)
            return False
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.geteuid() or len(self.connections) >= _MOST_CONNECTIONS:
            sock.close()
        else:
            self.connections.add(Connection(self._loop, sock, pid, self._pass_on))
        return True

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _pass_on(self, connection: Connection, message: Message | None) -> None:
        if message is None:
            self.connections.discard(connection)
        self._take(connection, message)

    def catch_up(self, pid: int) -> None:
        """Pass on what a process has sent already: its last messages may be as late as the end of its peer."""
        while self._accept():
            pass
        for connection in tuple(self.connections):
            if connection.pid == pid:
                connection.read()

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        self.connections.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close the socket and all connections, and remove the name; idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._close_socket()
            # On a thread: the loop never waits for a file system, which may be stalled.
            with suppress(RuntimeError):  # no thread is left
                remover = threading.Thread(target=self._remove, args=(self._name,), name="elastic-warm", daemon=True)
                remover.start()
                remover.join(_REMOVE_S)
        for connection in tuple(self.connections):
            self.drop(connection)


def _is_private(folder: str) -> bool:
    """Return whether only this user can replace files in a folder."""
    found = Path(folder).stat()
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
