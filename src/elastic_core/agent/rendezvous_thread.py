"""The one thread that calls the rendezvous handler; it only posts events."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from elastic_core.clock import WaitBudget
from elastic_core.errors import ElasticError, RendezvousError, WaitCancelledError
from elastic_core.messages import RendezvousFailed, RendezvousLeft, RoundChanged, RoundFormed
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.types import (
    Capability,
    Failure,
    NodeReport,
    NodeSteps,
    RendezvousInfo,
    Restart,
    Round,
    RoundChange,
    Stop,
)

CANCEL_GRACE_S = 0.1
"""A cancelled call that blocks for longer is left behind: some handlers block where nobody can wake them."""
WATCH_S = 3600.0
"""The longest single `watch`; a new one follows at once."""

WATCH_RETRY_S = 1.0

RendezvousEvent = RoundFormed | RendezvousFailed | RoundChanged | RendezvousLeft
Resolve = Callable[[RendezvousInfo | tuple[object, int, int], int, WaitBudget], Round]
"""Makes a round of what a handler returned; may block on the handler's store, so it runs on this thread."""


class RendezvousThread:
    """Joins, watches and leaves, one call at a time, in the order asked.

    Threading: the public methods are called on the reactor's thread and never block.
    """

    def __init__(
        self,
        handler: RendezvousHandler,
        *,
        reactor: Reactor,
        resolve: Resolve,
        on_event: Callable[[RendezvousEvent], None],
        notice: Callable[[str], None],
        blame: tuple[str, str] = ("", ""),
    ) -> None:
        """Start no thread yet: the first `join` does.

        `blame` has the distribution that brought the handler, and what helps if it is broken (empty: nothing to say).
        """
        self._handler = handler
        self._reactor = reactor
        self._resolve = resolve
        self._on_event = on_event
        self._notice = notice
        self._blame = blame
        self._watch_trouble = False
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._current: WaitBudget | None = None
        self._busy = False
        self._watching = False
        self._left = False
        self.error: ElasticError | None = None
        """What the last join ended with, if it failed."""

    @property
    def control(self) -> bool:
        """Whether the handler takes one decision, and one end, for the whole run."""
        return Capability.CONTROL in self._handler.capabilities

    @property
    def gathers(self) -> bool:
        """Whether that decision is taken on the evidence of all nodes, when all workers are gone."""
        return Capability.EVIDENCE in self._handler.capabilities

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Take a decision of this agent to the whole run."""
        self._saying(lambda: self._handler.publish(decision, failure))

    def answer(self, decision: Restart | Stop, failure: Failure, evidence: str, question: str) -> None:
        """Take to the whole run what was decided for it here, with what is known from all nodes."""
        self._saying(lambda: self._handler.answer(decision, failure, evidence, question=question))

    @property
    def takes_requests(self) -> bool:
        """Whether the handler takes a user's request to all nodes."""
        return type(self._handler).request_restart is not RendezvousHandler.request_restart

    def request_restart(self, reason: str) -> None:
        """Have all nodes start their workers again, though nothing has failed."""
        self._saying(lambda: self._handler.request_restart(reason))

    def order_stop(self, reason: str, report: NodeReport) -> None:
        """Have all nodes stop their workers."""
        self._saying(lambda: self._handler.order_stop(reason, report))

    def report_stopped(self, report: NodeReport) -> None:
        """Take what this node has seen to whoever decides for the run."""
        self._saying(lambda: self._handler.report_stopped(report))

    def ask_steps(self) -> None:
        """Ask all nodes how far their workers are."""
        self._saying(self._handler.ask_steps)

    def report_steps(self, steps: NodeSteps) -> None:
        """Say how far the workers of this node are."""
        self._saying(lambda: self._handler.report_steps(steps))

    def report_finishing(self) -> None:
        """Say that the first worker of this node has ended well."""
        self._saying(self._handler.report_finishing)

    def report_done(self) -> None:
        """Say that all workers of this node have ended well."""
        self._saying(self._handler.report_done)

    def announce_departure(self) -> None:
        """Say that this agent was told to stop."""
        self._saying(self._handler.announce_departure)

    def _saying(self, say: Callable[[], None]) -> None:
        try:
            say()
        except Exception as err:  # noqa: BLE001  # a plugin's code: the supervisor must go on without its word
            self._notice(f"telling the rendezvous failed: {type(err).__name__}: {err}")

    def join(self, index: int) -> None:
        """Begin to form the round with this index; ends a watch."""
        self.cancel()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="elastic-rendezvous", daemon=True)
            self._thread.start()
        wait = self._new_budget()
        self._queue.put(lambda: self._join(index, wait))

    def watch(self, delay_s: float) -> None:
        """After `delay_s`, post the next change of the round; at most one watch runs."""
        if self._watching:
            return
        self._watching = True
        wait = self._new_budget()
        self._queue.put(lambda: self._watch(delay_s, wait))

    def cancel(self) -> None:
        """End what the thread blocks in."""
        with self._lock:
            if self._current is not None:
                self._current.cancel()
        self._watching = False

    def leave(self, *, close: bool) -> None:
        """Close the rendezvous if asked to, release it, and post RendezvousLeft, also when an earlier call is stuck.

        Leaving itself takes as long as it takes: a seat is given back over the network.
        """
        self.cancel()
        if self._thread is None:
            self._handler.shutdown()
            self._on_event(RendezvousLeft())
            return
        self._queue.put(lambda: self._leave(close))
        self._queue.put(None)
        self._reactor.call_later(CANCEL_GRACE_S, self._give_up_if_stuck)

    def close(self) -> None:
        """Let the thread end, whatever it does; idempotent. Called: when no event will be taken any more."""
        self.cancel()
        self._left = True
        self._queue.put(None)

    def _give_up_if_stuck(self) -> None:
        if self._busy and not self._left:
            self._arrive(RendezvousLeft())

    def _new_budget(self) -> WaitBudget:
        wait = WaitBudget()
        with self._lock:
            self._current = wait
        return wait

    # --- on the thread

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def _post(self, event: RendezvousEvent) -> None:
        self._reactor.post(lambda: self._arrive(event))

    def _arrive(self, event: RendezvousEvent) -> None:
        if isinstance(event, RendezvousLeft):
            if self._left:
                return
            self._left = True
        elif self._left:
            return
        if isinstance(event, RoundChanged):
            self._watching = False
        self._on_event(event)

    def _join(self, index: int, wait: WaitBudget) -> None:
        self._busy = True
        self._handler.wait = wait
        try:
            self._post(RoundFormed(round=self._resolve(self._handler.next_rendezvous(), index, wait)))
        except WaitCancelledError:
            return
        except ElasticError as err:
            self.error = err
            code = err.exit_code if isinstance(err, RendezvousError) else max(err.exit_code, 1)
            self._post(RendezvousFailed(summary=str(err), exit_code=code))
        except Exception as err:  # noqa: BLE001  # a plugin's code: whatever it raises must end in one clear line
            self._post(RendezvousFailed(summary=self._broken(err)))
        finally:
            self._busy = False

    def _broken(self, err: Exception) -> str:
        distribution, hint = self._blame
        brought = f" ({distribution})" if distribution else ""
        told = f"{type(err).__name__}: {' '.join(str(err).split())}".removesuffix(": ")
        summary = f"rendezvous {self._handler.get_backend()!r}{brought} raised {told}"
        return f"{summary}. Try: {hint}" if hint else summary

    def _watch(self, delay_s: float, wait: WaitBudget) -> None:
        self._handler.wait = wait
        try:
            if delay_s > 0:
                wait.sleep(delay_s)
            while (change := self._watch_once(wait)) is None:
                wait.check()
            self._post(RoundChanged(change=change))
        except WaitCancelledError:
            return

    def _watch_once(self, wait: WaitBudget) -> RoundChange | None:
        try:
            change = self._handler.watch(WATCH_S)
        except WaitCancelledError:
            raise
        except Exception as err:  # noqa: BLE001  # a plugin's code: workers go on, the trouble is told once
            if not self._watch_trouble:
                self._tell(f"watching the rendezvous failed, will try again: {type(err).__name__}: {err}")
            self._watch_trouble = True
            wait.sleep(WATCH_RETRY_S)
            return None
        self._watch_trouble = False
        return change

    def _leave(self, close: bool) -> None:
        try:
            if close:
                self._handler.set_closed()
            self._handler.shutdown()
        except Exception as err:  # noqa: BLE001  # leaving must not replace the run's result; it is told, not raised
            self._tell(f"leaving the rendezvous failed: {type(err).__name__}: {err}")
        finally:
            self._post(RendezvousLeft())

    def _tell(self, text: str) -> None:
        self._reactor.post(lambda: self._notice(text))
