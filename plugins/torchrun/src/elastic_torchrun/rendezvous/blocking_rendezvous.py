"""The core's rendezvous on a store as blocking calls, for callers without elastic-core's agent."""

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    Clock,
    CoordinationStore,
    Failure,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    Round,
    Stop,
    WaitBudget,
)
from elastic_core.api.rendezvous import AgentServices, Capability, Decided, RendezvousClosedError, RoundChange
from elastic_core.api.stores import WaitCancelledError
from elastic_core.embedding import (
    AnnounceDeparture,
    CoordinatedRendezvous,
    DrainOrdered,
    Fault,
    JoinRendezvous,
    LeaveRendezvous,
    PluginLabel,
    PrintLine,
    PublishDecision,
    RendezvousFailed,
    RendezvousLeft,
    RoundChanged,
    RoundFormed,
    Timer,
    WatchRound,
)

CLOSE_S = 0.7
"""How long `set_closed` waits for the other nodes to read it."""
THREAD_END_S = 0.7
"""How long the rendezvous thread may take to end after it has left."""


class BlockingRendezvous(RendezvousHandler):
    """Forms rounds on a `CoordinationStore`.

    Threading: one thread at a time; a thread of the rendezvous keeps the node's lease.
    """

    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.CONTROL, Capability.MEMBERSHIP})

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Keep the store; no connection is made before the first round."""
        super().__init__(settings)
        self._store = store
        self._clock = clock
        self._caller: _Caller | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until there is a round with this node in it.

        Raises:
            RendezvousError: and its subclasses, as in the base class.
        """
        self.wait.check()
        caller = self._attached()
        self.wait.on_cancel(caller.wake)
        if caller.left:
            raise RendezvousClosedError(f"this node has left run {self.settings.run_id!r}")
        caller.begin()
        caller.until(lambda: caller.place is not None or caller.failed, self.wait)
        if caller.place is None:
            assert caller.rounds.error is not None  # it has failed
            raise caller.rounds.error
        return caller.place

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Block until the round or the run is over, at most `timeout_s`."""
        caller = self._attached()
        self.wait.on_cancel(caller.wake)
        caller.ask(WatchRound())
        return caller.changes.popleft() if caller.until(lambda: bool(caller.changes), self.wait, timeout_s) else None

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Publish this node's decision to all other nodes."""
        self._attached().ask(PublishDecision(decision=decision, failure=failure))

    def announce_departure(self) -> None:
        """Note that this node will leave. If it hosts the store, the run ends with it."""
        if self._caller is not None:
            self._caller.ask(AnnounceDeparture())

    def is_closed(self) -> bool:
        """Return whether this node knows that the run is over."""
        control = None if self._caller is None else self._caller.rounds.driver.control
        return control is not None and control.verdict is not None

    def set_closed(self) -> None:
        """End the run with success for all nodes, unless its end was decided already."""
        if self._caller is not None:
            self._caller.rounds.close_run()
            self._caller.until(self.is_closed, WaitBudget(), CLOSE_S)

    def shutdown(self) -> bool:
        """Release the seat and end the thread. If the store is unreachable, the seat expires with its lease."""
        caller = self._caller
        if caller is None:
            self._store.close()
            return True
        caller.ask(LeaveRendezvous(close=False))
        caller.until(lambda: caller.left, WaitBudget())
        return caller.rounds.driver.join(THREAD_END_S)

    def pids(self) -> frozenset[int]:
        """Return the processes of the store on this host (its own server)."""
        return self._store.pids()

    def _attached(self) -> "_Caller":
        if self._caller is None:
            made = CoordinatedRendezvous(self._store, self.settings, clock=self._clock)
            self._caller = _Caller(made, lambda: self.services, self._clock)
        return self._caller


class _Caller:
    """The agent's side, with a lock in place of its loop: the thread that holds the lock acts as the loop.

    The rendezvous thread applies its events under it. Timers run while a call blocks.
    """

    def __init__(self, made: CoordinatedRendezvous, services: Callable[[], AgentServices], clock: Clock) -> None:
        self.backend = PluginLabel("backend", made.settings.backend, module=type(made.store).__module__)
        self.place: RendezvousInfo | None = None
        self.failed = self.left = False
        self.changes: deque[RoundChange] = deque()
        self._services = services
        self._clock = clock
        self._lock = threading.Condition()
        self._timers: list[tuple[float, Timer]] = []
        self.rounds = made.attach(self)

    def begin(self) -> None:
        """Begin to join."""
        with self._lock:
            self.place, self.failed = None, False
            self.changes.clear()
            self.rounds.post(JoinRendezvous())

    def ask(self, request: Any) -> None:  # noqa: ANN401  # a request of the core's
        """Post a request."""
        with self._lock:
            self.rounds.post(request)

    def wake(self) -> None:
        """Make a blocking call check again."""
        with self._lock:
            self._lock.notify_all()

    def until(self, over: Callable[[], bool], wait: WaitBudget, timeout_s: float = math.inf) -> bool:
        """Block until `over` returns true, at most `timeout_s`. Return whether it did.

        Raises:
            WaitCancelledError: the budget was cancelled.
            WaitExpiredError: the budget is used up.
        """
        end_s = self._clock.monotonic_s() + timeout_s
        with self._lock:
            while True:
                self._run_timers()
                if over():
                    return True
                if wait.cancelled:
                    raise WaitCancelledError
                wait.check()
                now_s = self._clock.monotonic_s()
                if now_s >= end_s:
                    return False
                next_s = min((due_s for due_s, _ in self._timers), default=math.inf)
                left_s = wait.remaining_s(max(0.0, min(end_s, next_s) - now_s))
                self._lock.wait(None if left_s == math.inf else left_s)

    def _run_timers(self) -> None:
        now_s = self._clock.monotonic_s()
        due = [timer for due_s, timer in self._timers if due_s <= now_s]
        self._timers = [timer for timer in self._timers if timer[0] > now_s]
        for timer in due:
            if timer.callback is not None:  # an earlier one may cancel it
                timer.callback()

    # --- what the rounds call

    def post(self, callback: Callable[[], None]) -> None:
        """Call it at once, under the lock."""
        with self._lock:
            callback()
            self._lock.notify_all()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Keep it for a call that blocks at that time."""
        timer = Timer(callback)
        # Cancelled ones go now: while no call blocks, each renewal of the lease puts off a timer.
        kept = [each for each in self._timers if each[1].callback is not None]
        self._timers = [*kept, (self._clock.monotonic_s() + delay_s, timer)]
        return timer

    def take(self, event: object) -> None:
        """Apply an event. Other events are for an agent, which has workers."""
        match event:
            case RendezvousFailed():
                self.failed = True
            case RendezvousLeft():
                self.left = True
            case RoundChanged(change=change):
                self.changes.append(change)
            case PrintLine(text=text):
                self._services().notice(text)
            case DrainOrdered(text=text):  # no agent could end here: the caller's round is over
                self.changes.append(Decided(decision=Stop(reason=text)))

    def raised(self, operation: str, error: BaseException, fate: str = "") -> Fault:
        """Return the fault for an error of the store."""
        text = f"raised {type(error).__name__}: {' '.join(str(error).split())}{fate}"
        return Fault(self.backend.call_line(operation, text), again=False)

    def turned_s(self) -> float:
        """Return a recent time: there is no loop that could hang."""
        return self._services().ticked_s()

    def reserve_port(self, done: Callable[[int], None]) -> None:
        """Call back with the port that this node would have as rank 0."""
        done(self._services().reserve_port())

    def form(self, info: RendezvousInfo, done: Callable[[RoundFormed], None]) -> None:
        """Keep the place; the round is for an agent."""
        self.place = info
        round_ = Round(
            index=info.index or 0,
            token=info.round_token,
            nonce=info.nonce,
            node_rank=info.rank,
            node_count=info.world_size,
            local_world_size=1,
            base_rank=info.rank,
            world_size=info.world_size,
            role="",
            role_base_rank=info.rank,
            role_world_size=info.world_size,
            master_addr=info.master_addr or "",
            master_port=info.master_port or 0,
        )
        done(RoundFormed(round=round_))
