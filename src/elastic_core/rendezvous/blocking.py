"""Adapter from a blocking `RendezvousHandler` to the event interface: one thread makes the handler's calls."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, assert_never

from elastic_core import messages as m
from elastic_core.errors import ElasticError, WaitCancelledError
from elastic_core.rendezvous.events import AgentSide, JoinOutcome, Rendezvous
from elastic_core.rendezvous.handler import AgentServices, RendezvousHandler, takes_restarts
from elastic_core.reports import NodeReport
from elastic_core.system.clock import WaitBudget
from elastic_core.types import Capability, RendezvousInfo, RoundChange

CANCEL_GRACE_S = 0.1
"""How long the agent waits for a cancelled call before it leaves, in seconds; some handlers can't interrupt a call."""
WATCH_S = 3600.0
"""The longest single `watch` call; the next call follows immediately."""
WATCH_RETRY_S = 1.0


class BlockingSide(AgentSide, Protocol):
    """The agent as seen by the handler's thread. Threading: the handler's thread; both methods block."""

    def await_port(self, wait: WaitBudget) -> int:
        """Return the port that `reserve_port` passes to its callback."""

    def resolve(self, info: RendezvousInfo | tuple[object, int, int], wait: WaitBudget) -> m.RoundFormed:
        """Return the complete round for the place that a handler returned."""


class HandlerThread(Rendezvous):
    """Runs the blocking calls of a handler (join, watch, leave), one at a time, in the order of the requests.

    Methods of the handler that don't block are called directly on the loop.
    """

    def __init__(self, handler: RendezvousHandler, agent: BlockingSide) -> None:
        super().__init__(agent)
        self.control = Capability.CONTROL in handler.capabilities
        self.takes_requests = takes_restarts(handler)
        self._handler = handler
        self._side = agent
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wait: WaitBudget | None = None
        self._busy = self._watching = self._in_trouble = False
        handler.services = HandlerServices(agent, handler)

    def post(self, request: m.RendezvousRequest) -> None:
        """Start a request of the agent."""
        handler = self._handler
        match request:
            case m.JoinRendezvous():
                self._join()
            case m.WatchRound(delay_s=delay_s):
                self._watch(delay_s)
            case m.CancelRendezvous():
                self._cancel()
            case m.LeaveRendezvous(close=close):
                self._go(close=close)
            case m.PublishDecision(decision=decision, failure=failure):
                assert failure is not None  # only the core's own rendezvous publishes decisions without a failure
                self._call("publish", lambda: handler.publish(decision, failure))
            case m.RequestRestart(reason=reason):
                self._call("request_restart", lambda: handler.request_restart(reason))
            case m.ReportFinishing():
                self._call("report_finishing", handler.report_finishing)
            case m.ReportDone():
                self._call("report_done", handler.report_done)
            case m.AnnounceDeparture():
                self._call("announce_departure", handler.announce_departure)
            case (
                m.OrderStop()
                | NodeReport()
                | m.StandAside()
                | m.StateNumber()
                | m.AskNodes()
                | m.AnswerNodes()
                | m.ConcludeNodes()
            ):
                pass  # neither `gathers` nor `stands_aside` is set: this node decides alone, and the others wait
            case _:
                assert_never(request)

    def close(self) -> None:
        """End the thread when its current call returns."""
        super().close()
        self._queue.put(None)

    def _call(self, operation: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as err:  # noqa: BLE001  # a plugin's code: the supervisor must continue
            fault = self._agent.raised(operation, err)
            if not fault.again:
                self._agent.take(m.PrintLine(text=fault.text))

    def _join(self) -> None:
        self._cancel()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="elastic-rendezvous", daemon=True)
            self._thread.start()
        join, wait = self._begin(), self._budget()
        self._queue.put(lambda: self._form(join, wait))

    def _watch(self, delay_s: float) -> None:
        if self._watching:  # at most one watch runs
            return
        self._watching = True
        wait = self._budget()
        self._queue.put(lambda: self._look(delay_s, wait))

    def _budget(self) -> WaitBudget:
        self._wait = WaitBudget()
        return self._wait

    def _cancel(self) -> None:
        """Cancel the call in which the thread blocks."""
        super()._cancel()
        self._watching = False
        if self._wait is not None:
            self._wait.cancel()

    def _go(self, *, close: bool) -> None:
        """Close the rendezvous if `close`, release it, and report that, even if an earlier call is stuck.

        Leaving itself has no time limit here, because a handler returns its seat over the network.
        """
        self._cancel()
        if self._thread is None:
            self._handler.shutdown()
            self._leave()
            return
        self._queue.put(lambda: self._shut_down(close))
        self._queue.put(None)
        self._agent.call_later(CANCEL_GRACE_S, lambda: self._leave() if self._busy else None)

    def _changed(self, change: RoundChange, wait: WaitBudget) -> None:
        if wait is self._wait:
            self._watching = False
        if not self._left:
            self._agent.take(m.RoundChanged(change=change))

    # --- on the thread

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def _form(self, join: int, wait: WaitBudget) -> None:
        self._busy = True
        self._handler.wait = wait
        outcome: JoinOutcome | m.RendezvousFailed
        try:
            outcome = self._side.resolve(self._handler.next_rendezvous(), wait)
        except WaitCancelledError:
            return
        except ElasticError as err:
            outcome = err
        except Exception as err:  # noqa: BLE001  # a plugin's code: any error must become one clear line
            outcome = m.RendezvousFailed(summary=self._agent.raised("next_rendezvous", err).text)
        finally:
            self._busy = False
        self._agent.post(lambda: self._joined(join, outcome))

    def _look(self, delay_s: float, wait: WaitBudget) -> None:
        self._handler.wait = wait
        try:
            if delay_s > 0:
                wait.sleep(delay_s)
            while (change := self._look_once(wait)) is None:
                wait.check()
        except WaitCancelledError:
            return
        self._agent.post(lambda: self._changed(change, wait))

    def _look_once(self, wait: WaitBudget) -> RoundChange | None:
        try:
            change = self._handler.watch(WATCH_S)
        except WaitCancelledError:
            raise
        except Exception as err:  # noqa: BLE001  # a plugin's code: workers run on, and the trouble is reported once
            if not self._in_trouble:
                self._notice(self._fault_line("watch", err, "; the workers go on, it is called again"))
            self._in_trouble = True
            wait.sleep(WATCH_RETRY_S)
            return None
        self._in_trouble = False
        return change

    def _shut_down(self, close: bool) -> None:
        try:
            if close:
                self._handler.set_closed()
            self._handler.shutdown()
        except Exception as err:  # noqa: BLE001  # leaving must not replace the run's result; it is reported only
            self._notice(self._fault_line("shutdown", err))
        finally:
            self._agent.post(self._leave)

    def _fault_line(self, operation: str, err: Exception, fate: str = "") -> str:
        """Return the line about a failed call: the handler's own text if it raised an `ElasticError`."""
        if isinstance(err, ElasticError):
            return f"{operation} of the rendezvous failed: {err}"
        return self._agent.raised(operation, err, fate).text

    def _notice(self, text: str) -> None:
        self._agent.post(lambda: self._agent.take(m.PrintLine(text=text)))


class HandlerServices(AgentServices):
    """The services of an agent for a blocking handler. Threading: any."""

    def __init__(self, agent: BlockingSide, handler: RendezvousHandler) -> None:
        self._agent = agent
        self._handler = handler

    def reserve_port(self) -> int:
        """Return a new reserved port for the worker of rank 0; it replaces the previous one."""
        return self._agent.await_port(self._handler.wait)

    def notice(self, text: str) -> None:
        """Print one line."""
        self._agent.post(lambda: self._agent.take(m.PrintLine(text=text)))

    def ticked_s(self) -> float:
        """Return when the agent's loop last ran, and make it run again."""
        self._agent.post(lambda: None)
        return self._agent.turned_s()
