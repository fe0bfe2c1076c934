"""One connection with redis-py's protocol; the socket and all settings are this module's.

This module and its users import redis; `store` imports them when a connection is needed.
"""

import functools
import inspect
import select
import socket
from contextlib import suppress
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import WaitCancelledError
from elastic_rdzv_redis.failures import answered, translated
from elastic_rdzv_redis.url import Login

LIMIT_S: Final = 5.0
"""The time limit of a command, within the caller's budget."""
_HEALTH_CHECK_S: Final = 15
"""A connection that was silent for this long is checked by PING first, so that a lost one is detected before a write.
"""
_READ_BYTES: Final = 8192
"""Bytes of one read. A parser refers to itself, so its buffer of this size is freed by the garbage collector."""


@functools.cache
def _quiet() -> dict[str, None]:
    """Return the arguments that keep redis-py from sending its name to the server, in two round trips.

    They changed their names in redis-py 7.
    """
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None}


class Line(AbstractConnection):
    """Sends commands and reads replies on a connected socket; never connects again, repeats nothing.

    Threading: one thread; another one may cancel the wait of a call.
    """

    def __init__(self, sock: socket.socket, *, peer: str, interrupt: Interrupt, login: Login, db: int = 0) -> None:
        """Use a socket. The login and the database are sent with the first command."""
        self.sock = sock
        self.peer = peer
        self._interrupt = interrupt
        self._login = login
        self._unused: socket.socket | None = sock
        super().__init__(
            db=db,
            username=login.username or None,
            password=login.password or None,
            credential_provider=None,
            socket_timeout=LIMIT_S,
            socket_connect_timeout=LIMIT_S,
            retry_on_timeout=False,
            retry_on_error=[],
            retry=Retry(NoBackoff(), 0),
            encoding="utf-8",
            encoding_errors="strict",
            decode_responses=False,
            socket_read_size=_READ_BYTES,
            health_check_interval=_HEALTH_CHECK_S,
            client_name=None,
            redis_connect_func=None,
            protocol=2,
            **_quiet(),  # type: ignore[arg-type]  # None is what turns them off
        )

    # --- what redis-py asks of a kind of connection

    host = "server"  # for its metrics, which are off
    port = 0

    def _connect(self) -> socket.socket:
        sock, self._unused = self._unused, None
        if sock is None:
            raise RedisConnectionError("this connection is over")
        return sock

    def _host_error(self) -> str:
        return self.peer

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """Return the fields that may be shown."""
        return [("peer", self.peer)]

    # --- what we ask of one

    def ask(
        self,
        *command: str | bytes | int,
        wait: WaitBudget,
        writes: bool = False,
        pushed: bool = False,
        first: bool = False,
        untouched: tuple[type[Exception], ...] = (),
    ) -> Any:  # noqa: ANN401  # whatever the server answers
        """Return the reply to a command, sent once.

        Args:
            command: Its words.
            wait: Limits and cancels the call, in addition to `LIMIT_S`.
            writes: Whether a lost reply leaves the outcome unknown.
            pushed: Whether this connection is subscribed, so that PING can't be used.
            first: Whether the server has sent nothing yet.
            untouched: Replies that are raised as redis-py raises them; all other errors are translated.

        Raises:
            BackendError: as in `failures.translated`. The connection is closed, unless the server replied.
            WaitCancelledError, WaitExpiredError: from `wait`; the connection is closed if the command was sent.
        """
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(LIMIT_S)
        sent = False
        with self._interrupt.by(wait, self.wake):
            try:
                self._block_until(end_s)
                self.send_command(*command, check_health=not pushed)  # type: ignore[no-untyped-call]
                sent = True
                self._block_until(end_s)
                return self.read_response()
            except untouched:
                raise
            except (RedisError, OSError) as error:
                failure = error
        try:
            raise self._ended(failure, wait, sent=sent, writes=writes, first=first) from self._shown(failure)
        finally:
            del failure  # its traceback has this frame: the garbage collector would have to free its objects

    def next_push(self, wait: WaitBudget) -> Any:  # noqa: ANN401  # whatever the server pushes
        """Return the next message of a subscribed connection; errors as in `ask`."""
        with self._interrupt.by(wait, self.wake):
            try:
                self._block_until(SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(LIMIT_S))
                message = self.read_response()
            except (RedisError, OSError) as error:
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
        try:
            while self.can_read(0):
                self.next_push(wait)
        except (RedisError, OSError) as error:
            failure = error
        else:
            return True
        try:
            raise self._ended(failure, wait, sent=True, writes=False) from self._shown(failure)
        finally:
            del failure  # as in `ask`

    def _block_until(self, end_s: float) -> None:
        # Zero would mean not to block at all; redis-py sets its own timeout again after `can_read`.
        self.sock.settimeout(max(0.001, end_s - SYSTEM_CLOCK.monotonic_s()))

    def _ended(
        self, error: Exception, wait: WaitBudget, *, sent: bool, writes: bool, first: bool = False
    ) -> ElasticError:
        """Return the core's error, and close the connection unless it is still valid."""
        if not answered(error):
            self.end()
        if wait.cancelled:
            self.end()
            return WaitCancelledError()
        return translated(error, peer=self.peer, login=self._login, sent=sent, writes=writes, first=first)

    def _shown(self, error: Exception) -> Exception | None:
        """Return a cause that may be printed; `None` if the server may have repeated the password."""
        return None if self._login.password and isinstance(error, (AuthenticationError, ResponseError)) else error

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
        self.disconnect()  # type: ignore[no-untyped-call]
        self.sock.close()

    @property
    def local_address(self) -> str:
        """This host's address on the connection; empty for a unix socket."""
        name = self.sock.getsockname()
        return str(name[0]).partition("%")[0] if isinstance(name, tuple) else ""
