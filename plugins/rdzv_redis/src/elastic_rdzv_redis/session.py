"""The connections to a run's server: one for commands, one for pushes; made when needed, closed when in doubt."""

from collections.abc import Callable
from math import inf
from typing import Any, Final

from elastic_backend_net.endpoint import Endpoint
from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_redis.connector import Connector, Sentinels
from elastic_rdzv_redis.line import Line
from elastic_rdzv_redis.protocol import MovedError, NoScriptError
from elastic_rdzv_redis.scripts import Script
from elastic_rdzv_redis.url import Login, Target, Tls

POLL_S: Final = 0.5
"""The interval in which revisions are read if pushes are not permitted."""


class Session:
    """Runs scripts on the server of a target, each once, and receives its pushes.

    Threading: one thread at a time.
    """

    def __init__(
        self, target: Target, *, login: Callable[[], Login], tls: Tls, sentinels: Sentinels | None = None
    ) -> None:
        """Keep the server's settings. `login` is called for each connection, so that passwords may change."""
        self.notices: list[str] = []
        self._target = target
        self._login = login
        self._sentinels = sentinels
        self._interrupt = Interrupt()
        self._connector = Connector(tls if target.tls else None, self._interrupt)
        self._line: Line | None = None
        self._place: Endpoint | str = ""
        self._moved: Endpoint | None = None
        self._pushes: Line | None = None
        self._channels: frozenset[str] = frozenset()
        self._no_pushes = False

    # --- connections

    def open(self, wait: WaitBudget) -> str:
        """Make a new connection for commands, and return this host's address on it.

        Raises:
            BackendUnavailableError, BackendRefusedError: there is none.
        """
        self.drop()
        wait.check()
        place = self._where(wait)
        try:
            self._line = self._connector.reach(place, login=self._login(), db=self._target.db, wait=wait)
        except BackendUnavailableError:
            self._moved = None  # a cluster may have put another node in charge: ask where we began
            raise
        self._place = place
        return self._line.local_address

    def _where(self, wait: WaitBudget) -> Endpoint | str:
        """Return the address of the server in charge."""
        if self._moved is not None:
            return self._moved
        if self._sentinels is not None:
            return self._sentinels.master(self._connector, wait)
        return self._target.path or self._target.hosts[0]

    def drop(self) -> None:
        """Close all connections. The next call makes new ones, perhaps to another server."""
        if self._line is not None:
            self._line.end()
        self._line = None
        self._drop_pushes()

    def _drop_pushes(self) -> None:
        if self._pushes is not None:
            self._pushes.end()
        self._pushes = None
        self._channels = frozenset()
        self._no_pushes = False

    def close(self) -> None:
        """Close all connections for good."""
        self.drop()
        self._interrupt.close()

    def _ready(self, wait: WaitBudget) -> Line:
        """Return a connection that the server has not closed."""
        if self._line is None or not self._line.idle():
            self.open(wait)
        assert self._line is not None  # for the type checker
        return self._line

    # --- commands

    def run(
        self, script: Script, keys: tuple[str, ...], *args: str | bytes | int, wait: WaitBudget, writes: bool = True
    ) -> Any:  # noqa: ANN401  # what the script returns
        """Return the result of a script, executed once at most.

        Raises:
            BackendError: as in `Line.ask`.
        """
        words = (len(keys), *keys, *args)
        for _ in range(2):
            line = self._ready(wait)
            try:
                return self._run(line, script, words, wait, writes)
            except MovedError as moved:  # not executed there
                self._moved = Endpoint(host=moved.host or _host(self._place), port=moved.port)
                self.drop()
            except (BackendUnavailableError, OutcomeUnknownError):
                self.drop()
                raise
        raise BackendUnavailableError("the nodes of the cluster disagree on which has the run's keys")

    @staticmethod
    def _run(line: Line, script: Script, words: tuple[str | bytes | int, ...], wait: WaitBudget, writes: bool) -> Any:  # noqa: ANN401
        try:
            return line.ask(
                "EVALSHA", script.digest, *words, wait=wait, writes=writes, untouched=(NoScriptError, MovedError)
            )
        except NoScriptError:  # not executed: the server has not seen it since its start
            return line.ask("EVAL", script.text, *words, wait=wait, writes=writes, untouched=(MovedError,))

    # --- pushes

    def subscribe(self, channels: frozenset[str], wait: WaitBudget) -> None:
        """Receive pushes on these channels only, from now on.

        Raises:
            BackendUnavailableError: the server can't be reached.
        """
        self._ready(wait)  # first: a new connection for commands may be to another server
        if self._no_pushes:
            return
        if self._pushes is None or self._pushes.sock.fileno() < 0:
            self._drop_pushes()
            self._pushes = self._connector.reach(self._place, login=self._login(), db=self._target.db, wait=wait)
        try:
            for verb, names in (
                ("SUBSCRIBE", channels - self._channels),
                ("UNSUBSCRIBE", self._channels - channels),
            ):
                if names:
                    _confirm(self._pushes, verb, sorted(names), wait)
        except BackendRefusedError as error:
            self._drop_pushes()
            self._no_pushes = True
            notice = f"pushes are not permitted, changes are polled for every {POLL_S:g} s: {error}"
            if not self.notices:
                self.notices.append(notice)
            return
        except BaseException:
            self._drop_pushes()
            raise
        self._channels = channels

    def listening(self, channels: frozenset[str]) -> Line | None:
        """Return the connection for pushes, if it is subscribed to these channels and is open."""
        there = self._pushes is not None and self._pushes.sock.fileno() >= 0 and channels <= self._channels
        return self._pushes if there else None

    def pushed(self, timeout_s: float, wait: WaitBudget, *, polled: bool) -> bool:
        """Block until there may be changes, at most `timeout_s`. Return whether the revisions must be read again.

        Args:
            timeout_s: Time limit.
            wait: Cancels the call.
            polled: Whether a member may not publish, so that pushes are not reliable.

        Raises:
            BackendUnavailableError: the connection is lost.
        """
        timeout_s = wait.remaining_s(timeout_s)
        if self._pushes is None:
            wait.sleep(min(timeout_s, POLL_S))
            return True
        try:
            return self._pushes.pushes(min(timeout_s, POLL_S if polled else inf), wait) or polled
        except BackendUnavailableError:
            self.drop()
            raise


def _confirm(line: Line, verb: str, names: list[str], wait: WaitBudget) -> None:
    """Change the subscriptions of a connection, and wait until the server has confirmed the change."""
    kind = verb.lower().encode()
    message = line.ask(verb, *names, wait=wait, pushed=True)
    left = len(names)
    while left := left - (message[0] == kind):
        message = line.next_push(wait)  # messages in between are of changes that will be read anyway


def _host(place: Endpoint | str) -> str:
    return place.host if isinstance(place, Endpoint) else "localhost"
