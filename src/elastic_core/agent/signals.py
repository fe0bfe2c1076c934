"""The signals that the agent takes while it runs, and what each means."""

import signal
import threading
from collections.abc import Callable

from elastic_core import messages as m
from elastic_core.agent.parts import AgentOptions
from elastic_core.reactor import Reactor


class Signals:
    """Turns signals into events of the machine.

    Args:
        options: Say which stop the job, and which are the workers' to have.
        dispatch: Takes the event.
        child_ended: Called when some child has ended.
    """

    def __init__(
        self, options: AgentOptions, *, dispatch: Callable[[m.AgentEvent], None], child_ended: Callable[[], None]
    ) -> None:
        """Take none yet."""
        self._options = options
        self._dispatch = dispatch
        self._child_ended = child_ended

    def handle(self, reactor: Reactor) -> None:
        """Take them from now on, until the reactor is closed."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread only; they stay its owner's business
        # A signal that was ignored when we were started (nohup) stays ignored, here and in the workers.
        asked = (*self._options.stop_signals, *self._options.forwarded_signals)
        wanted = [signum for signum in asked if signal.getsignal(signum) is not signal.SIG_IGN]
        reactor.handle_signals([*wanted, signal.SIGCHLD], self._take)

    def _take(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self._child_ended()
        elif signum == signal.SIGINT and self._options.keep_interrupt:
            return
        elif signum in self._options.stop_signals:
            self._dispatch(m.StopRequested(signum=signum))
        else:
            self._dispatch(m.SignalForwarded(signum=signum))
