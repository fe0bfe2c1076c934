"""The content of one run on a v2 server: the reads, the start, and the cleanup that all operations share."""

import math
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import BackendError, BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_etcd.streak import Streak
from elastic_rdzv_etcd.v2.content import DEFAULT_KEEP_S, Content, Paths, SeatKey, State, seat_key, seconds
from elastic_rdzv_etcd.v2.errors import ConflictError, MissingError

if TYPE_CHECKING:
    from elastic_rdzv_etcd.v2.session import Session

TRIES: Final = 16
"""How often an operation is retried after conflicts with other clients, before the store counts as unavailable."""
_KEEP_SHARE: Final = 0.25
"""How much longer content is kept than needed, so that the keep time need not be extended at each call."""
_EXTENDED: Final = 8
"""How many keys one read extends; later reads extend the others."""
_TIDIED: Final = 8
"""The number of other runs whose empty directories are deleted when one begins."""
_JUDGES: Final = 3
"""The number of members, from the first seat on, that remove silent ones; the others learn it from them."""


class Run:
    """Reads and changes the keys of one run.

    Threading: one thread at a time.
    """

    def __init__(self, paths: Paths, session: Callable[[], "Session"]) -> None:
        """Know nothing yet; `session` provides the connections."""
        self.paths = paths
        self.ttl_s: float | None = None
        """The lease that was asked for last, by which silence is judged."""
        self.number: int | None = None
        """The seat for which this client spoke last."""
        self._session = session
        self._streak = Streak()
        self._wrote = False
        self._last: tuple[Content, object] | None = None
        self._keep_s = DEFAULT_KEEP_S
        """As the last look has seen it."""

    # --- requests

    def begin_call(self, wait: WaitBudget) -> None:
        """Begin an operation: nothing is written yet."""
        wait.check()
        self._wrote = False

    def read(self, key: str, wait: WaitBudget, *, recursive: bool = False) -> Any:  # noqa: ANN401  # an EtcdResult
        """Return a key, or a directory with its content.

        Raises:
            MissingError: there is none.
        """
        quorum = self._session().fresh  # what one member has answered it does not forget
        return self._ask(lambda client: client.read(key, recursive=recursive, quorum=quorum), wait)

    def write(
        self, key: str, value: str | None, wait: WaitBudget, *, ttl: int | None = None, **conditions: object
    ) -> Any:  # noqa: ANN401
        """Write a key that other clients see, so that a later failure leaves the outcome unknown.

        Without `ttl` it gets the TTL of kept content, since a write without a TTL would remove that.

        Raises:
            MissingError, ConflictError: a condition does not hold.
        """
        kept = ttl or _keep_ttl(self._keep_s)
        return self._ask(lambda client: client.write(key, value, ttl=kept, **conditions), wait, writes=True)

    def delete(self, key: str, wait: WaitBudget, **conditions: object) -> None:
        """Delete a key that is no longer needed, if it exists."""
        with suppress(MissingError, ConflictError):
            self._ask(lambda client: client.delete(key, **conditions), wait, writes=True)

    def event(self, key: str, index: int, timeout_s: float, wait: WaitBudget) -> Any:  # noqa: ANN401
        """Return the first event under a key from an index on. `None` if there is none in time."""
        return self._session().event(key, index, timeout_s=timeout_s, wait=wait)

    def _ask(self, request: Callable[[Any], Any], wait: WaitBudget, *, writes: bool = False) -> Any:  # noqa: ANN401
        sent_s = SYSTEM_CLOCK.monotonic_s()
        try:
            result = self._session().ask(request, wait=wait, writes=writes)
        except (MissingError, ConflictError):
            self._answered(sent_s)
            raise
        except BackendUnavailableError as error:
            if self._wrote:
                raise OutcomeUnknownError(f"only part of it was written: {error.what}", hint=error.hint) from error
            raise
        self._wrote = self._wrote or writes
        self._answered(sent_s)
        return result

    def _answered(self, sent_s: float) -> None:
        if self.ttl_s is not None:
            self._streak.answered(sent_s=sent_s, now_s=SYSTEM_CLOCK.monotonic_s(), ttl_s=self.ttl_s)

    # --- content

    def look(self, wait: WaitBudget) -> Content:
        """Return the current content."""
        try:
            result = self.read(self.paths.head, wait, recursive=True)
        except MissingError as missing:
            return Content(self.paths, (), index=missing.index)
        leaves = [leaf for leaf in result.leaves if not leaf.dir]
        content = Content(self.paths, leaves, index=result.etcd_index)
        self._keep_s = content.keep_s
        if content.state is not None:
            self._extend(content.fading(content.keep_s)[:_EXTENDED], wait)
        self._last = content, self._session().place
        if self.ttl_s is None:  # a client of no member: the others know how long a lease is
            self.ttl_s = max(map(seconds, content.alive.values()), default=None)
        return content

    def seen(self, wait: WaitBudget) -> Content:
        """Return the content of the last read on this connection, if that is still open."""
        if self._last is not None and self._last[1] is not None and self._last[1] is self._session().place:
            return self._last[0]
        return self.look(wait)

    def _extend(self, fading: Sequence[tuple[str, ...]], wait: WaitBudget) -> None:
        """Extend the time of some keys."""
        for keys in fading:
            for key in keys:
                with suppress(MissingError):
                    self._ask(_refreshing(key, _keep_ttl(self._keep_s)), wait)

    def begun(self, content: Content, wait: WaitBudget) -> Content:
        """Return the content; make it if there is none."""
        for _ in range(TRIES):
            if content.state is not None:
                return content
            if content.leftover:
                self.delete(self.paths.head, wait, recursive=True)
            self._keep_s = DEFAULT_KEEP_S
            with suppress(ConflictError):
                state = State(birth=os.urandom(8).hex())
                self.write(self.paths.state, state.value, wait, prevExist=False)
                self._tidy(wait)
            content = self.look(wait)
        raise self.crowded()

    def _tidy(self, wait: WaitBudget) -> None:
        """Delete the directories of some ended runs; only empty ones can be deleted."""
        with suppress(ElasticError):
            others = [leaf.key for leaf in self.read(self.paths.prefix or "/", wait).leaves if leaf.dir]
            others = [key for key in others if key != self.paths.run]
            for run in random.sample(others, min(len(others), _TIDIED)):
                with suppress(ConflictError):  # something is in there: it goes on
                    self._delete_empty(run, wait)

    def _delete_empty(self, run: str, wait: WaitBudget) -> None:
        for folder in self.paths.folders:
            with suppress(MissingError):
                self._ask(_emptying(run + folder.removeprefix(self.paths.run)), wait)

    def keep_for(self, content: Content, keep_s: float, wait: WaitBudget) -> None:
        """Set how long the content is kept from now on, if it differs."""
        if content.keep_s != keep_s:
            self._keep_s = keep_s
            self.write(self.paths.keep, repr(float(keep_s)), wait)
            self.write(self.paths.since, str(_keep_ttl(keep_s)), wait)
            if keep_s < content.keep_s / 2:  # else it is not worth a request for each key
                self._extend(content.fading(math.inf), wait)

    def age_s(self, wait: WaitBudget) -> float | None:
        """Return the seconds since the keep time of the content was last set. `None` if there is no content."""
        try:
            since = self.read(self.paths.since, wait)
        except MissingError:
            return None
        return max(0.0, seconds(since) - float(since.ttl or 0))

    def seat(self, incarnation: str, number: int, wait: WaitBudget) -> SeatKey | None:
        """Return a member's seat, if it is this one and is not gone."""
        try:
            seat = seat_key(self.read(self.paths.seat(incarnation), wait))
        except MissingError:
            return None
        return seat if seat.number == number and not seat.gone else None

    # --- members that leave

    def swept(self, content: Content, wait: WaitBudget) -> Content:
        """Return the content without members that are known to be gone; a client that can't know it leaves them."""
        if not self.is_judge(content):
            return content
        silent, now_s = content.silent, SYSTEM_CLOCK.monotonic_s()
        if silent and self.ttl_s is not None and self._streak.may_judge(now_s=now_s, ttl_s=self.ttl_s):
            for key, seat in silent.items():
                self.remove(f"{self.paths.seats}/{key}", seat, wait)
            content = self.look(wait)
        return self.collected(content, wait)

    def is_judge(self, content: Content) -> bool:
        """Return whether this client removes silent members."""
        return self.number is None or content.speaking_before(self.number) < _JUDGES

    def remove(self, path: str, seat: SeatKey, wait: WaitBudget) -> bool:
        """Mark a seat as gone, unless it was written since the read. Return whether it was marked."""
        try:
            self.write(path, seat.counted(gone=True), wait, prevIndex=seat.modified)
        except (MissingError, ConflictError):
            return False
        return True

    def collected(self, content: Content, wait: WaitBudget) -> Content:
        """Return the content after the cleanup of gone seats. If the cleanup fails, the next client does it."""
        for _ in range(TRIES):
            if content.state is None or not content.gone:
                break
            after = content.collecting()
            try:
                if after is not None:
                    self.write(self.paths.state, after.value, wait, prevIndex=after.modified)
            except (MissingError, ConflictError):
                content = self.look(wait)
                continue
            for key, seat in content.gone.items():
                self.delete(self.paths.record(seat.nonce), wait)
                self.delete(self.paths.alive(seat.nonce), wait)
                self.delete(f"{self.paths.seats}/{key}", wait, prevIndex=seat.modified)
            content = self.look(wait)
        return content

    def clear_up(self, wait: WaitBudget) -> None:
        """Clean up after a change, and ignore failures."""
        with suppress(ElasticError):
            self.collected(self.look(wait), wait)

    def crowded(self) -> BackendError:
        """Return the error for an operation with repeated conflicts."""
        kind = OutcomeUnknownError if self._wrote else BackendUnavailableError
        return kind("others change the run as fast as it can be read")


def _refreshing(key: str, ttl: int) -> Callable[[Any], Any]:
    return lambda client: client.refresh(key, ttl)


def _emptying(folder: str) -> Callable[[Any], Any]:
    return lambda client: client.delete(folder, dir=True)


def _keep_ttl(keep_s: float) -> int:
    return math.ceil((1 + _KEEP_SHARE) * keep_s)
