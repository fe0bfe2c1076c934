"""A server in this process: what `MemoryStore` clients share, with faults on demand."""

import enum
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

from elastic_core.api import SYSTEM_CLOCK, Clock, WaitBudget
from elastic_core.api.stores import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    Revisions,
    Topic,
    Watched,
    compare,
)
from elastic_plugin_kit.store_model import StoreModel

T = TypeVar("T")

WRITES: Final = frozenset({"enlist", "update", "renew", "withdraw", "swap"})
"""The calls whose outcome can be unknown."""

ANSWER_S: Final = 1.0
"""How long after its timeout a watch waits for a server that is paused."""


class Fault(enum.StrEnum):
    """What can happen to one call."""

    UNAVAILABLE = "unavailable"
    """The server is not reached; nothing is written."""
    REFUSED = "refused"
    """The server answers and will not serve us."""
    UNKNOWN_BEFORE = "unknown, lost on the way there"
    """The request is lost, and the client can't know; a call that only reads is merely unavailable."""
    UNKNOWN_AFTER = "unknown, lost on the way back"
    """The request is carried out and its answer lost; as above."""


class _Planned:
    """A fault that waits for its call."""

    def __init__(self, fault: Fault, calls: frozenset[str], count: int) -> None:
        self.fault = fault
        self.calls = calls
        self.count = count


class MemoryServer:
    """Holds the content of any number of runs and serves `MemoryStore` clients of this process.

    Args:
        clock: The server's: it judges leases. A clock that a test moves is fine; clients wait by their own.
        birth: Makes a random text for content that is new.

    Threading: everything may be called from any thread.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, birth: Callable[[], str] = lambda: os.urandom(8).hex()) -> None:
        self._clock = clock
        self._birth = birth
        self._changed = threading.Condition()  # guards all that follows; told of every change, fault and cancellation
        self._runs: dict[str, StoreModel] = {}
        self._planned: list[_Planned] = []
        self._stuck: deque[Callable[[], None]] = deque()  # requests that a paused server has not read yet
        self._paused = False
        self._stopped = False
        self._served: dict[str, int] = {}

    # --- for tests ---

    def fail_next(self, fault: Fault, *calls: str, count: int = 1) -> None:
        """Let the next `count` calls fail, of all or of those named (`enlist`, `swap`, `connect` …)."""
        with self._changed:
            self._planned.append(_Planned(fault, frozenset(calls), count))
            self._changed.notify_all()

    def pause(self) -> None:
        """Send no replies until `resume`; requests arrive, and time passes."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Go on; what has arrived during the pause is carried out first, also where its client has given up."""
        with self._changed:
            self._paused = False
            while self._stuck:
                self._stuck.popleft()()
            self._changed.notify_all()

    def stop(self) -> None:
        """Be unreachable, also for calls that are under way, until `start`."""
        with self._changed:
            self._stopped = True
            self._stuck.clear()
            self._changed.notify_all()

    def start(self) -> None:
        """Be reachable again, with the content that there was."""
        with self._changed:
            self._stopped = False

    def empty(self) -> None:
        """Lose all content of all runs."""
        with self._changed:
            for run in self._runs.values():
                run.empty(self._birth())
            self._changed.notify_all()

    def snapshot(self) -> dict[str, StoreModel]:
        """Return all content as it is now, for `restore`."""
        with self._changed:
            return {run_id: run.copy() for run_id, run in self._runs.items()}

    def restore(self, past: dict[str, StoreModel]) -> None:
        """Go back in time, as a failover does that loses writes."""
        with self._changed:
            self._runs = {run_id: run.copy() for run_id, run in past.items()}
            self._changed.notify_all()

    def wake(self) -> None:
        """Let every waiting call look again: after a clock of yours was moved, or a budget cancelled."""
        with self._changed:
            self._changed.notify_all()

    @property
    def served(self) -> dict[str, int]:
        """How many calls of each name were begun."""
        with self._changed:
            return dict(self._served)

    # --- for clients ---

    def reach(self, *, wait: WaitBudget) -> None:
        """Answer a client that connects."""
        with self._changed:
            self._admit("connect", wait)
            request = _Request(lambda: None)
            self._carry_out(request, "connect", wait)

    def call(self, name: str, run_id: str, work: Callable[[StoreModel, float], T], *, wait: WaitBudget) -> T:
        """Carry out one request and return its answer; raises what `CoordinationStore` allows."""
        with self._changed:
            fault = self._admit(name, wait)
            if fault is Fault.UNKNOWN_BEFORE:
                raise _lost(name)
            request = _Request(lambda: work(self._run(run_id), self._clock.monotonic_s()))
            self._carry_out(request, name, wait)
            self._changed.notify_all()
            if fault is Fault.UNKNOWN_AFTER:
                raise _lost(name)
            return request.answer

    def watch(
        self,
        run_id: str,
        since: Revisions,
        topics: Collection[Topic],
        *,
        timeout_s: float,
        wait: WaitBudget,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Watched:
        """Block as `CoordinationStore.watch` does; `clock` is the client's, which measures the timeout."""
        end_s = clock.monotonic_s() + timeout_s
        with self._changed:
            if self._admit("watch", wait):
                raise _lost("watch")
            while True:
                self._refuse_if_stopped()
                left_s = end_s - clock.monotonic_s()
                if not self._paused:
                    seen = compare(since, self._run(run_id).revisions(now_s=self._clock.monotonic_s()), topics)
                    if seen.changed or seen.reset or left_s <= 0:
                        return seen
                elif left_s <= -ANSWER_S:
                    raise BackendUnavailableError("the memory server does not answer")
                else:
                    left_s += ANSWER_S
                wait.check()
                self._changed.wait(_timeout(wait.remaining_s(left_s)))

    # --- behind them ---

    def _admit(self, name: str, wait: WaitBudget) -> Fault | None:
        """Count a call; return the fault that happens to it later, raise one that happens at once."""
        wait.check()
        self._served[name] = self._served.get(name, 0) + 1
        self._refuse_if_stopped()
        planned = next((p for p in self._planned if not p.calls or name in p.calls), None)
        if planned is None:
            return None
        planned.count -= 1
        if planned.count <= 0:
            self._planned.remove(planned)
        if planned.fault is Fault.REFUSED:
            raise BackendRefusedError("the memory server refuses to serve this client", hint="another server")
        if planned.fault is Fault.UNAVAILABLE or name not in WRITES:
            raise BackendUnavailableError("the memory server can't be reached")
        return planned.fault

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise BackendUnavailableError("the memory server can't be reached: it was stopped")

    def _run(self, run_id: str) -> StoreModel:
        if run_id not in self._runs:
            self._runs[run_id] = StoreModel(self._birth())
        return self._runs[run_id]

    def _carry_out(self, request: "_Request[T]", name: str, wait: WaitBudget) -> None:
        """Do the request; while the server is paused, wait until it was done at its end."""
        if not self._paused:
            request.carry_out()
            return
        self._stuck.append(request.carry_out)
        while not request.done:
            if self._stopped:
                raise _lost(name)
            if name not in WRITES or wait.cancelled:
                wait.check()
            elif wait.remaining_s() <= 0:
                raise _lost(name)
            self._changed.wait(_timeout(wait.remaining_s()))


class _Request(Generic[T]):
    """One request, and its answer once it was carried out."""

    answer: T

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.done = False

    def carry_out(self) -> None:
        self.answer = self._work()
        self.done = True


def _timeout(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _lost(name: str) -> BackendError:
    if name in WRITES:
        return OutcomeUnknownError(f"the memory server's answer to {name} was lost")
    return BackendUnavailableError(f"the memory server's answer to {name} was lost")
