"""Calls the restart policy so that the agent always gets a decision."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence

from elastic_core.failure.handler import FailureHandler
from elastic_core.failure.intensity import Intensity
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.types import Decision, Failure, Ignore, Restart, Stop

OnDecision = Callable[[Decision, str], None]
"""Receives the decision, and why the built-in policy made it; the reason is empty if the chosen policy decided."""


class PolicyRunner:
    """Runs a policy with a deadline; after an exception, a timeout or an invalid result, `intensity` decides instead.

    The built-in policy is fast and is called directly. Each call of another policy runs on its own thread. A call that
    never returns is abandoned, and the policy is not called again while it lasts.

    Threading: `decide` is called on the reactor's thread, and calls back there.
    """

    def __init__(
        self,
        handler: FailureHandler,
        fallback: Intensity,
        *,
        name: str,
        post: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], object],
        timeout_s: float = 1.0,
        label: PluginLabel | None = None,
        faults: PluginFaults | None = None,
    ) -> None:
        """Set the policy.

        `fallback` decides in place of `handler`. `post` and `call_later` run a callback on the reactor's
        thread; `post` may be called from any thread. `timeout_s` is how long the policy may take, in seconds.
        Without `label`, messages have the name only; without `faults`, exceptions are kept for this runner
        alone.
        """
        self.name = name
        self._title = PluginLabel("policy", name, module=type(handler).__module__) if label is None else label
        self._faults = PluginFaults() if faults is None else faults
        self._handler = handler
        self._fallback = fallback
        self._post = post
        self._call_later = call_later
        self._timeout_s = timeout_s
        self._stuck: threading.Thread | None = None
        self._busy = False
        self._later: deque[Callable[[], None]] = deque()

    def decide(self, failure: Failure, history: Sequence[Failure], on_decision: OnDecision) -> None:
        """Request a decision about a failure; `on_decision` is called exactly once, possibly before this returns."""
        if type(self._handler) is Intensity:
            on_decision(self._handler.decide(failure, history), "")
            return
        if self._stuck is not None and self._stuck.is_alive():
            reason = f"{self._title} still hangs in an earlier decision"
            on_decision(self._fallback.decide(failure, history), reason)
            return
        if self._busy:  # the run and this node may request decisions at the same time
            self._later.append(lambda: self.decide(failure, history, on_decision))
            return
        self._busy, past, answered = True, tuple(history), False

        def settle(decision: Decision | None, reason: str) -> None:
            nonlocal answered
            if answered:  # a result after the deadline: the built-in policy has decided
                return
            answered, self._busy = True, False
            on_decision(self._fallback.decide(failure, past) if decision is None else decision, reason)
            if self._later:
                self._later.popleft()()

        def overrun() -> None:
            if not answered:
                self._stuck = thread
                settle(None, f"decide of {self._title} has not returned after {self._timeout_s:g} s")

        name = f"elastic-policy-{self.name}"
        thread = threading.Thread(target=self._ask, args=(failure, past, settle), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as err:  # no thread can be started now
            settle(None, f"{self._title} was not asked ({err})")
            return
        self._call_later(self._timeout_s, overrun)

    def _ask(
        self, failure: Failure, history: tuple[Failure, ...], settle: Callable[[Decision | None, str], None]
    ) -> None:
        """Call the policy, and post its result. Threading: the thread of this call."""
        try:
            answer: object = self._handler.decide(failure, history)
        except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: any exception is a result too
            reason = f"{self._title} raised {self._faults.raised(self._title, 'decide', err).text}"
            self._post(lambda: settle(None, reason))
            return
        decision, fault = checked_decision(answer)
        self._post(lambda: settle(decision, f"{self._title} {fault}" if fault else ""))


def checked_decision(answer: object) -> tuple[Decision | None, str]:
    """Return a policy's result if it is a valid decision, else `None`, and its fault (empty if valid)."""
    match answer:
        case Restart():
            fault = _fault_of_restart(answer)
        case Stop():
            fine = isinstance(answer.reason, str) and answer.outcome in ("failed", "done")
            fault = "" if fine else f"stops with outcome {answer.outcome!r}; expected 'failed' or 'done' and a reason"
        case Ignore():
            fault = ""
        case _:
            return None, f"answered {type(answer).__name__}; expected Restart, Stop or Ignore"
    return (None if fault else answer), fault


def _fault_of_restart(answer: Restart) -> str:
    delay_s, nodes = answer.delay_s, answer.exclude_nodes
    if not _is_time(delay_s):
        return f"wants a restart after {delay_s!r} s; expected a number from 0 up"
    if not isinstance(nodes, tuple) or not all(isinstance(node, str) for node in nodes):
        return f"excludes the nodes {nodes!r}; expected a tuple of node ids"
    times = answer.exclude_s
    if not isinstance(times, tuple) or len(times) > len(nodes) or not all(_is_time(for_s) for for_s in times):
        return f"excludes nodes for {times!r} s; expected a tuple of numbers from 0 up, at most one for each node"
    return ""


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
