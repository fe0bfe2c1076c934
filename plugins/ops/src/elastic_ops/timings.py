"""The hook behind `--timings`: the durations of a run's parts, printed at its end."""

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import SYSTEM_CLOCK, AgentHook, Clock, HookSettings, OptionSpec, Power, Round
from elastic_core.api.feed import RunEvent
from elastic_ops.options import TIMINGS

Part = tuple[str, float]
"""Its name, and its seconds."""

_RUN: Final = "workers' run"
_ENDS: Final[Mapping[str, str]] = {
    "StartRequested": "agent",
    "JoinAllowed": "hooks asked",
    "RoundFormed": "rendezvous",
    "StartAllowed": "hooks asked",
    "WorkersSpawned": "spawn",
    "WorkerExited": _RUN,
    "HangFound": _RUN,
    "StopRequested": _RUN,
    "RestartRequested": _RUN,
    "Examined": "evidence read",
    "DecisionMade": "decision",
    "WorkersStopped": "stop",
    "RoundChanged": "rendezvous' change",
    "RendezvousLeft": "rendezvous left",
}
"""The part that ends with each event of the agent."""
_STOPS: Final = frozenset({"DecisionMade", "StopRequested", "RestartRequested", "WorkersStopped"})
"""Events after which workers still run only because they are being stopped, unless the agent stays in such a state:"""
_RUNNING: Final = frozenset({"running", "deciding"})
"""As after a failure that the policy ignores."""
_TIMER_ENDS: Final[Mapping[str, str]] = {
    "backoff": "wait before the restart",
    "leave": "rendezvous left",
}
MOST_ROUNDS: Final = 30
"""The number of first rounds, and of last ones, that have a line each."""


class Timings:
    """Divides the time of a run by the events of its feed.

    Args:
        began_s: The start of this process, in monotonic seconds.
    """

    def __init__(self, began_s: float) -> None:
        self._began_s = self._last_s = began_s
        self._start: list[Part] = []
        self._first: list[tuple[int, list[Part]]] = []
        self._latest: deque[tuple[int, list[Part]]] = deque(maxlen=MOST_ROUNDS)
        self._left_out = 0
        self._index, self._parts = 0, list[Part]()
        self._spawned_s: float | None = None
        self._running = False
        self._how: list[str] = []

    def take(self, event: RunEvent) -> None:
        """Apply the next event."""
        match event.name, event.values:
            case "agent_started", {"start_up": {**start_up}}:
                for what, at_s in start_up.items():
                    if isinstance(at_s, float):
                        self._end(self._start, str(what), at_s)
            case "worker_starts", {"how": str(how)} if how:  # by a hook, before the event of the spawn
                self._how.append(how)  # one of those that keep workers, and one of those that start them
            case "step", {"event": str(name)} as values:
                self._step(name, values, event.at_s)
            case "feed_closed", _:
                self._end(self._parts, "hooks", event.at_s)

    def _step(self, name: str, values: Mapping[str, object], at_s: float) -> None:
        round_ = values.get("round")
        if name == "RoundFormed" and isinstance(round_, Round):
            self._index = round_.index
        what = _TIMER_ENDS.get(str(values.get("name"))) if name == "TimerFired" else _ENDS.get(name)
        if what is None or (what == _RUN and not self._running):
            return  # part of what ends next
        if self._running and name == "RoundChanged":
            what = _RUN
        stops = name in _STOPS and values.get("state") not in _RUNNING
        self._running = (self._running or name == "WorkersSpawned") and not stops
        if name == "WorkersSpawned":
            self._spawned_s = self._spawned_s or at_s
            what, self._how = f"{what} ({', '.join(self._how)})" if self._how else what, []
        self._end(self._start if name == "StartRequested" else self._parts, what, at_s)
        if name == "WorkersStopped":
            self._keep((self._index, self._parts))
            self._index, self._parts = self._index + 1, []

    def _end(self, parts: list[Part], what: str, at_s: float) -> None:
        parts.append((what, at_s - self._last_s))
        self._last_s = at_s

    def _keep(self, round_: tuple[int, list[Part]]) -> None:
        if len(self._first) < MOST_ROUNDS:
            self._first.append(round_)
            return
        self._left_out += len(self._latest) == MOST_ROUNDS
        self._latest.append(round_)

    def lines(self) -> list[str]:
        """Return a line for the start, one for each round, and one for the end."""
        gap = [f"{self._left_out} rounds left out"] if self._left_out else []
        spawned = "" if self._spawned_s is None else f"{_ms(self._spawned_s - self._began_s)} until workers ran, "
        lines = [
            f"start: {_listed(self._start)}",
            *map(_line, self._first),
            *gap,
            *map(_line, self._latest),
            f"end: {_listed(_merged(self._parts))}",
            f"all: {spawned}{_ms(self._last_s - self._began_s)} to the end",
        ]
        return [f"timings: {line}" for line in lines]


class TimingsHook(AgentHook):
    """Prints the durations of the run's parts after its end."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.FEED, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (TIMINGS,)
    without_events: ClassVar[frozenset[str]] = frozenset({"store_call"})
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Read the start time of this process."""
        super().__init__(settings)
        now_s = self.clock.monotonic_s()
        self._timings = Timings(now_s - _age_s())

    def on_run_event(self, event: RunEvent) -> None:
        """Apply an event. Threading: the feed's."""
        self._timings.take(event)
        if event.name == "feed_closed":
            for line in self._timings.lines():
                self.run.notice(line, named=False)


def _line(round_: tuple[int, list[Part]]) -> str:
    index, parts = round_
    return f"round {index}: {_listed(_merged(parts))}"


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Add up parts of the same name: workers end one by one."""
    sums: dict[str, float] = {}
    for what, seconds in parts:
        sums[what] = sums.get(what, 0.0) + seconds
    return list(sums.items())


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(f"{what} {_ms(seconds)}" for what, seconds in parts if seconds >= 0.00005) or "nothing"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _age_s() -> float:
    """Return this process's age.

    The kernel has its start in ticks of 10 ms, rounded down, so the exact age is up to a tick lower. The processor time
    is used to choose within that tick, as nothing waits before this code.
    """
    stat = Path("/proc/self/stat").read_text()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    # Field 22 (proc(5)), counted from the one after the name, which may hold anything: since boot, suspends included.
    at_most_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat.rpartition(")")[2].split()[19]) * tick_s
    return min(max(time.process_time(), at_most_s - tick_s, 0.0), max(at_most_s, 0.0))
