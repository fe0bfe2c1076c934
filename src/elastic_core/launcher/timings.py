"""`--timings`: where the milliseconds of a run went. Loaded only when asked for."""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from elastic_core import messages as m
from elastic_core.agent.machine.journal import Gap, JournalEvent
from elastic_core.agent.machine.states import BACKOFF, LEAVE, SETTLE
from elastic_core.clock import SYSTEM_CLOCK, Clock

Part = tuple[str, float]
"""What it was, and its seconds."""

_ENDS: dict[type, str] = {
    m.JoinAllowed: "hooks asked",
    m.RoundFormed: "rendezvous",
    m.StartAllowed: "hooks asked",
    m.WorkersSpawned: "spawn",
    m.WorkerExited: "workers' run",
    m.Examined: "evidence read",
    m.DecisionMade: "decision",
    m.WorkersStopped: "stop",
    m.RoundChanged: "the run's word",
    m.RendezvousLeft: "rendezvous left",
}
"""What has just ended when the agent's machine is told of this."""
_TIMER_ENDS = {SETTLE: "wait for more evidence", BACKOFF: "wait before the restart", LEAVE: "rendezvous left"}


class Timings:
    """Collects moments; the agent's own journal has those between the first join and the end of the last worker."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, started_s: float | None = None) -> None:
        """Begin with what is over: this process's start (`started_s`, None: ask the kernel) until now."""
        self._clock = clock
        now_s = clock.monotonic_s()
        self._began_s = now_s - _age_s(now_s) if started_s is None else started_s
        self._last_s = self._began_s
        self._before: list[Part] = []
        self._after: list[Part] = []
        self._rounds: list[tuple[int, list[Part]]] = []
        self._spawned_s: float | None = None
        self.mark("interpreter and command line")

    def mark(self, what: str) -> None:
        """Note that something has just ended."""
        now_s = self._clock.monotonic_s()
        parts = self._after if self._rounds else self._before
        parts.append((what, now_s - self._last_s))
        self._last_s = now_s

    def take(self, journal: Iterable[tuple[float, JournalEvent]]) -> None:
        """Take the agent's journal, when the agent has ended."""
        index, parts = 0, list[Part]()
        self._rounds.append((index, parts))
        for at_s, event in journal:
            if isinstance(event, m.RoundFormed) and event.round.index != index:
                index = event.round.index
                self._rounds[-1] = (index, parts)
            if isinstance(event, Gap):
                parts.append((f"{event.event_count} events left out", at_s - self._last_s))
                self._last_s = at_s
                continue
            if isinstance(event, m.StartRequested):
                self._before.append(("agent", at_s - self._last_s))
                self._last_s = at_s
            what = _TIMER_ENDS.get(event.name) if isinstance(event, m.TimerFired) else _ENDS.get(type(event))
            if what is None:
                continue  # part of what ends next
            if isinstance(event, m.WorkersSpawned):
                self._spawned_s = self._spawned_s or at_s
            parts.append((what, at_s - self._last_s))
            self._last_s = at_s
            if isinstance(event, m.WorkersStopped):
                index, parts = index + 1, []
                self._rounds.append((index, parts))

    def lines(self) -> list[str]:
        """Return it for people: one line for the start, one for each round, one for the end."""
        *rounds, (_, last) = self._rounds or [(0, [])]
        lines = [f"start: {_listed(self._before)}"]
        lines += [f"round {index}: {_listed(_merged(parts))}" for index, parts in rounds]
        lines.append(f"end: {_listed([*_merged(last), *self._after])}")
        total_s = self._last_s - self._began_s
        spawned = "" if self._spawned_s is None else f"{_ms(self._spawned_s - self._began_s)} until workers ran, "
        lines.append(f"all: {spawned}{_ms(total_s)} to the end")
        return [f"timings: {line}" for line in lines]


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Add up what has the same name: workers end one by one."""
    sums: dict[str, float] = {}
    for what, seconds in parts:
        sums[what] = sums.get(what, 0.0) + seconds
    return list(sums.items())


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(f"{what} {_ms(seconds)}" for what, seconds in parts if seconds >= 0.00005) or "nothing"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _age_s(now_s: float) -> float:
    """Return how long this process has been there.

    The kernel tells its start in ticks of 10 ms, cut off: so the age lies up to a tick below what they say. Within that
    we take the processor time that was used, as nothing before us waits.
    """
    stat = Path("/proc/self/stat").read_text()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    # Field 22 (proc(5)), counted from the one after the name, which may hold anything: since boot, suspends included.
    at_most_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat.rpartition(")")[2].split()[19]) * tick_s
    return min(max(time.process_time(), at_most_s - tick_s, 0.0), max(at_most_s, 0.0))
