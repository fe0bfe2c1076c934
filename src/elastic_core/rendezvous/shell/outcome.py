"""A member's announcements in the form for its agent: its place, the error of a join, and the changes of its round."""

from collections import deque
from collections.abc import Callable

from elastic_core.errors import ElasticError, RendezvousClosedError, RendezvousError, RendezvousStateError
from elastic_core.plugin_faults import text_of
from elastic_core.rendezvous.member.protocol import JoinFailed
from elastic_core.rendezvous.shell.driver import StoreFault
from elastic_core.types import RoundChange, StopOrdered, Undecided


class Changes:
    """The changes of a round in order, and the error of a driver that ended early.

    `fault_line` returns the line about a store call that raised an undeclared error.
    """

    def __init__(self, run_id: str, fault_line: Callable[[str, BaseException], str]) -> None:
        self._run_id = run_id
        self._fault_line = fault_line
        self._queue: deque[RoundChange] = deque()
        self.ended = False
        """Whether the driver has ended."""
        self._failure: Exception | None = None
        self.awaits = False
        """Whether the round was stopped and the node waits for the run's decision."""

    def clear(self) -> None:
        """Drop the changes of the previous round."""
        self._queue.clear()

    def begin(self) -> None:
        """Start a join."""
        self.clear()
        self.awaits = False

    def add(self, change: RoundChange) -> None:
        """Add a change."""
        self._queue.append(change)

    def end(self, failure: Exception | None) -> None:
        """Record the end of the driver."""
        self.ended, self._failure = True, failure
        if isinstance(failure, StoreFault) and failure.__cause__ is not None:
            text = self._fault_line(failure.operation, failure.__cause__)
            self._failure = RendezvousStateError(text)
            self._failure.__cause__ = failure.__cause__

    def next(self) -> RoundChange | None:
        """Return the next change; `None` if there is none yet.

        Raises:
            ElasticError: the driver has ended, so there will be no change; the error is that of `error`.
        """
        if self._queue:
            change = self._queue.popleft()
            self.awaits = isinstance(change, StopOrdered)
            return change
        # The node waits for a decision that it can no longer read: its agent decides alone, and does not fail with the
        # driver.
        if self.ended and self.awaits:
            self.awaits = False
            return Undecided(reason=f"this node no longer hears of run {self._run_id!r}", final=True)
        if not self.ended:
            return None
        error = self.error()
        if error is self._failure:
            raise error
        raise error from self._failure

    def error(self) -> ElasticError:
        """Return the error that explains why there are no more changes."""
        if isinstance(self._failure, ElasticError):
            return self._failure
        if self._failure is not None:
            return RendezvousStateError(f"this node's part in run {self._run_id!r} broke: {text_of(self._failure)}")
        return RendezvousClosedError(f"this node has left run {self._run_id!r}")


def error_of(failed: JoinFailed) -> RendezvousError:
    """Return the error of a node without a place in a round."""
    if issubclass(failed.error, RendezvousClosedError):
        return failed.error(failed.what, hint=failed.hint, exit_code=failed.exit_code)
    return failed.error(failed.what, hint=failed.hint)
