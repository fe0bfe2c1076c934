"""The feed of a run for the hooks that take it, each on a thread of its own: the agent never waits for one."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Final

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.hooks.handler import AgentHook
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.reports import RunEvent

MOST_WAITING: Final = 10_000
"""What a hook that takes its time for each event leaves undone must not fill the memory."""
STRIKES: Final = 3
"""A hook that raises so often in a row gets no more of the feed."""
CLOSE_LIMIT_S: Final = 5.0
"""How long the end waits, as for any call of a hook: one that waits for handlers of its own has to give up before."""
CLOSED: Final = "feed_closed"


class HookFeed:
    """The feed, for some hooks.

    Args:
        hooks: Those that take it, each with what people call it.
        post: Runs a callback on the supervisor's thread; may be called from any.
        notice: Takes one line for people, on that thread.
        clock: Says when something happened.
        faults: Keeps what hooks raise; None: for this feed alone.

    Threading: any, unless said otherwise; only `close` blocks.
    """

    def __init__(
        self,
        hooks: Sequence[tuple[PluginLabel, AgentHook]],
        *,
        post: Callable[[Callable[[], None]], None],
        notice: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
        faults: PluginFaults | None = None,
    ) -> None:
        self._post = post
        self._notice = notice
        self._clock = clock
        self._lines: deque[str] = deque()
        self._closed = False
        kept = PluginFaults() if faults is None else faults
        self._takers = {id(hook): _Taker(label, hook, self._say, kept) for label, hook in hooks}

    @property
    def wanted(self) -> bool:
        """Whether any hook takes it."""
        return bool(self._takers)

    def takes(self, name: str) -> bool:
        """Return whether any hook takes the events of this name."""
        return any(taker.takes(name) for taker in tuple(self._takers.values()))

    def publish(self, name: str, values: Mapping[str, object], *, source: str = "") -> None:
        """Hand an event to every hook that takes it but its source, some time soon; after the end, to none."""
        if self._closed or not self._takers:
            return
        event = RunEvent(
            name=name, at_s=self._clock.monotonic_s(), at_ns=self._clock.wall_ns(), values=values, source=source
        )
        for taker in tuple(self._takers.values()):
            if (not source or taker.name != source) and taker.takes(name):
                taker.put(event)

    def leave_out(self, hook: AgentHook) -> None:
        """Hand no more to a hook: it is off."""
        taker = self._takers.pop(id(hook), None)
        if taker is not None:
            taker.off = True

    def close(self, *, run_dir_kept: bool = False) -> None:
        """Wait a moment until all is handed on, and end; idempotent. Threading: the supervisor's."""
        self.publish(CLOSED, {"run_dir_kept": run_dir_kept})
        self._closed = True
        end_s = self._clock.monotonic_s() + CLOSE_LIMIT_S
        for taker in self._takers.values():
            taker.close(max(0.0, end_s - self._clock.monotonic_s()))
        self._takers.clear()
        self._flush()

    def _say(self, text: str) -> None:
        self._lines.append(text)
        self._post(self._flush)

    def _flush(self) -> None:
        while self._lines:
            self._notice(self._lines.popleft())


class _Taker:
    """One hook with its queue and its thread, which the first event starts."""

    def __init__(self, label: PluginLabel, hook: AgentHook, say: Callable[[str], None], faults: PluginFaults) -> None:
        self.name = label.name
        self.off = False
        self._label = label
        self._hook = hook
        without: object = hook.without_events
        self._without = without if isinstance(without, frozenset) else frozenset()
        self._say = say
        self._faults = faults
        self._queue: SimpleQueue[RunEvent] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._left_out = 0
        self._faults_in_a_row = 0

    def takes(self, name: str) -> bool:
        return name == CLOSED or name not in self._without

    def put(self, event: RunEvent) -> None:
        with self._lock:
            if self._queue.qsize() >= MOST_WAITING and event.name != CLOSED:
                self._left_out += 1
                return
            self._queue.put(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="elastic-feed", daemon=True)
                self._thread.start()

    def close(self, limit_s: float) -> None:
        if self._thread is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                self._say(f"{self._label}: on_run_event has not returned; the run ends without it")
        if self._left_out:
            self._say(f"{self._label}: {self._left_out} events of the feed were left out: it was too slow")

    def _serve(self) -> None:
        name = ""
        while name != CLOSED:
            event = self._queue.get()
            name = event.name
            if not self.off:
                self._hand_on(event)

    def _hand_on(self, event: RunEvent) -> None:
        try:
            self._hook.on_run_event(event)
        except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: all that it raises is told
            self._faults_in_a_row += 1
            self.off = self._faults_in_a_row >= STRIKES
            fault = self._faults.raised(self._label, "on_run_event", err)
            if self.off or not fault.again:
                fate = "; it gets no more of the feed" if self.off else ""
                self._say(self._label.line(f"on_run_event raised {fault.text}{fate}"))
        else:
            self._faults_in_a_row = 0
