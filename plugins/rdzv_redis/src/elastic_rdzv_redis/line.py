"""One connection to a server: each command is sent once, each call has a limit, and another thread can end it."""

import errno
import select
import socket
from contextlib import suppress
from typing import Any, Final

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import WaitCancelledError
from elastic_rdzv_redis.failures import translated
from elastic_rdzv_redis.protocol import ErrorReply, LoginError, NotRedisError, Replies, packed
from elastic_rdzv_redis.tls import would_block
from elastic_rdzv_redis.url import Login

LIMIT_S: Final = 5.0
"""The time limit of a command, within the caller's budget."""
_CHECK_AFTER_S: Final = 15.0
"""A connection that was silent for this long is checked by PING first, so that a lost one is detected before a write.
"""
_READ_BYTES: Final = 16_384
"""The most bytes of one read."""

_Command = tuple[str | bytes | int, ...]


class Line:
    """Sends commands and reads replies on a connected socket; never connects again, repeats nothing.

    Threading: one thread; another one may cancel the wait of a call.
    """

    def __init__(self, sock: socket.socket, *, peer: str, interrupt: Interrupt, login: Login, db: int = 0) -> None:
        """Use a socket. The login and the database are sent before the first command."""
        self.sock = sock
        self.peer = peer
        self._interrupt = interrupt
        self._login = login
        self._opening = _opening(login, db)
        self._replies = Replies(self._receive)
        self._replied_s = SYSTEM_CLOCK.monotonic_s()

    def ask(
        self,
        *command: str | bytes | int,
        wait: WaitBudget,
        writes: bool = False,
        pushed: bool = False,
        first: bool = False,
        untouched: tuple[type[ErrorReply], ...] = (),
    ) -> Any:  # noqa: ANN401  # whatever the server answers
        """Return the reply to a command, sent once.

        Args:
            command: Its words.
            wait: Limits and cancels the call, in addition to `LIMIT_S`.
            writes: Whether a lost reply leaves the outcome unknown.
            pushed: Whether this connection is subscribed, so that PING can't be used.
            first: Whether the server has sent nothing yet.
            untouched: Replies that are raised as they are; all other errors are translated.

        Raises:
            BackendError: as in `failures.translated`. The connection is closed, unless the server replied.
            WaitCancelledError, WaitExpiredError: from `wait`; the connection is closed if the command was sent.
        """
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(LIMIT_S)
        sent = False
        failure: Exception
        with self._interrupt.by(wait, self.wake):
            try:
                self._open(end_s)
                if not pushed and SYSTEM_CLOCK.monotonic_s() > self._replied_s + _CHECK_AFTER_S:
                    self._exchange(("PING",), end_s)
                self._send(command, end_s)
                sent = True
                return self._reply(end_s)
            except untouched:
                raise
            except (ErrorReply, NotRedisError, OSError) as error:
                failure = error
        try:
            raise self._ended(failure, wait, sent=sent, writes=writes, first=first) from self._shown(failure)
        finally:
            del failure  # its traceback has this frame: the garbage collector would have to free its objects

    def next_push(self, wait: WaitBudget) -> Any:  # noqa: ANN401  # whatever the server pushes
        """Return the next message of a subscribed connection; errors as in `ask`."""
        with self._interrupt.by(wait, self.wake):
            try:
                message = self._reply(SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(LIMIT_S))
            except (ErrorReply, NotRedisError, OSError) as error:
                raise self._ended(error, wait, sent=True, writes=False) from self._shown(error)
        if wait.cancelled:  # that has ended the connection, though it had this to give
            self.end()
            raise WaitCancelledError
        return message

    def pushes(self, timeout_s: float, wait: WaitBudget) -> bool:
        """Block until there are pushes, discard all of them, and return whether there were any.

        Raises:
            BackendUnavailableError: the connection is lost, and closed.
            WaitCancelledError: from `wait`; the connection stays open.
        """
        if not self._interrupt.poll(self.sock, timeout_s, wait):
            return False
        failure: Exception | None = None
        while failure is None:
            try:
                if not self._has_begun():
                    return True
            except OSError as error:
                failure = error
            else:
                self.next_push(wait)
        try:
            raise self._ended(failure, wait, sent=True, writes=False) from self._shown(failure)
        finally:
            del failure  # as in `ask`

    # --- commands and replies

    def _open(self, end_s: float) -> None:
        """Send the login and the database, unless that was done."""
        opening, self._opening = self._opening, ()
        try:
            for command in opening:
                self._exchange(command, end_s)
        except ErrorReply as error:  # without a login, no other command may be sent
            self.end()
            raise (LoginError(str(error)) if command[0] == "AUTH" else error) from None

    def _exchange(self, command: _Command, end_s: float) -> None:
        self._send(command, end_s)
        self._reply(end_s)

    def _send(self, command: _Command, end_s: float) -> None:
        self._block_until(end_s)
        self.sock.sendall(packed(command))

    def _reply(self, end_s: float) -> Any:  # noqa: ANN401  # whatever the server replies
        self._block_until(end_s)
        return self._replies.next()

    def _has_begun(self) -> bool:
        """Return whether a push has arrived, or a part of it. Never blocks."""
        if not self._replies.buffered:
            self.sock.settimeout(0)
            try:
                self._replies.add(self._receive())
            except OSError as error:
                if would_block(error):
                    return False
                raise
        return True

    def _receive(self) -> bytes:
        piece = self.sock.recv(_READ_BYTES)
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        self._replied_s = SYSTEM_CLOCK.monotonic_s()
        return piece

    def _block_until(self, end_s: float) -> None:
        # Zero would mean not to block at all.
        self.sock.settimeout(max(0.001, end_s - SYSTEM_CLOCK.monotonic_s()))

    def _ended(
        self, error: Exception, wait: WaitBudget, *, sent: bool, writes: bool, first: bool = False
    ) -> ElasticError:
        """Return the core's error, and close the connection unless it is still valid."""
        if not isinstance(error, ErrorReply):
            self.end()
        if wait.cancelled:
            self.end()
            return WaitCancelledError()
        return translated(error, peer=self.peer, login=self._login, sent=sent, writes=writes, first=first)

    def _shown(self, error: Exception) -> Exception | None:
        """Return a cause that may be printed; `None` if the server may have repeated the password."""
        return None if self._login.password and isinstance(error, ErrorReply) else error

    def idle(self) -> bool:
        """Return whether the server has neither closed the connection nor sent unrequested data."""
        if self.sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)

    def wake(self) -> None:
        """End any blocked call on the socket; called from another thread."""
        with suppress(OSError):  # it is over already
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the connection; idempotent."""
        self.sock.close()

    @property
    def local_address(self) -> str:
        """This host's address on the connection; empty for a unix socket."""
        name = self.sock.getsockname()
        return str(name[0]).partition("%")[0] if isinstance(name, tuple) else ""


def _opening(login: Login, db: int) -> tuple[_Command, ...]:
    """Return the commands that a connection begins with."""
    commands: list[_Command] = []
    if login.username:
        commands.append(("AUTH", login.username, login.password))
    elif login.password:  # with a user's name, a server without a password would accept any
        commands.append(("AUTH", login.password))
    if db:
        commands.append(("SELECT", db))
    return tuple(commands)
