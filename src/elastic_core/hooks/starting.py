"""Hooks that start workers: checks of their answers, and protection from their errors."""

import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, cast

from elastic_core.hooks.members import NamedHook
from elastic_core.moments import Power
from elastic_core.plugin_faults import LoopFence, PluginFaults, PluginLabel, wrong_answer
from elastic_core.starters import AgentLoop, LeavingWorker, StartedProcess, WorkerStart, WorkerStarter
from elastic_core.system.clock import SYSTEM_CLOCK, Clock

PREPARE_S: Final = 300.0
"""How long the start of a round waits for the starter of a hook."""


def hook_starters(
    hooks: Sequence[NamedHook], loop: AgentLoop, faults: PluginFaults | None = None
) -> "list[HookStarter]":
    """Return the starters of the hooks with the power, in the order of their calls. Called: before the first round.

    A process that was kept comes before a new one.
    """
    made: list[HookStarter] = []
    for named in hooks:
        if Power.STARTS in named.hook.powers:
            starter = HookStarter(named.label, loop, faults=faults)
            if starter.make(named.hook.worker_starter):
                made.append(starter)
    return sorted(made, key=lambda starter: not starter.keeps)


class HookStarter(WorkerStarter):
    """A hook's starter, protected: one that raises, is late or returns an invalid process is turned off.

    Workers are then started without it; it must still end its own processes. If `faults` is `None`, exceptions are kept
    in a store for this hook alone.
    """

    def __init__(
        self,
        label: PluginLabel,
        loop: AgentLoop,
        *,
        clock: Clock = SYSTEM_CLOCK,
        faults: PluginFaults | None = None,
    ) -> None:
        self._loop = loop
        self._starter = WorkerStarter()
        without = "workers are started without it from now on"
        self._fence = LoopFence(label, loop, without, faults=faults, clock=clock)

    def make(self, make: Callable[[AgentLoop], WorkerStarter | None]) -> bool:
        """Call the hook for its starter, and return whether there is one."""
        made: object = None
        with self._fence.call("worker_starter"):
            made = cast("object", make(self._loop))
        if isinstance(made, WorkerStarter):
            self._starter = made
        elif made is not None:
            self._fence.turn_off("worker_starter", wrong_answer(made, "a WorkerStarter or None"))
        return self._starter is made

    @property
    def keeps(self) -> bool:
        """Whether the hook's starter can keep workers."""
        return type(self._starter).keep is not WorkerStarter.keep

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Call the hook's method, unless it is turned off. Calls `done` once, within `PREPARE_S` at the latest."""
        waiting = [done]

        def finish() -> None:
            limit.cancel()
            while waiting:
                self._loop.post(waiting.pop())  # as an event of its own: the agent's code is no call of the hook

        def give_up() -> None:
            self._fence.turn_off("prepare", f"was not done within {PREPARE_S:g} s")
            finish()

        limit = self._loop.call_later(PREPARE_S, give_up)
        self._call("prepare", count, finish)
        if self._fence.off:
            finish()

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start a worker by the hook, unless it is turned off."""
        started: object = None
        if not self._fence.off:
            with self._fence.call("start"):
                started = self._starter.start(worker)
        if started is None:
            return None
        fault = fault_of_process(started, terminal=worker.terminal)
        if isinstance(started, StartedProcess) and not fault:
            return started
        self._fence.turn_off("start", fault)
        if isinstance(started, StartedProcess):
            _end(started)
        return None

    def round_started(self) -> None:
        """Call the hook's method, unless it is turned off."""
        self._call("round_started")

    def round_stopping(self) -> None:
        """Call the hook's method, unless it is turned off."""
        self._call("round_stopping")

    def _call(self, method: str, *arguments: object) -> None:
        if not self._fence.off:
            with self._fence.call(method):
                getattr(self._starter, method)(*arguments)

    def keep(self, worker: LeavingWorker, *, within_s: float, planned: bool) -> bool:
        """Call the hook's method, unless it is turned off; return whether it asked the worker to leave."""
        asked: object = False
        if not self._fence.off:
            with self._fence.call("keep"):
                asked = self._starter.keep(worker, within_s=within_s, planned=planned)
        if not isinstance(asked, bool):
            self._fence.turn_off("keep", wrong_answer(asked, "True or False"))
        return asked is True and not self._fence.off

    def worker_ended(self, pid: int) -> None:
        """Call the hook's method even if it is turned off: it has started the worker."""
        with self._fence.call("worker_ended"):
            self._starter.worker_ended(pid)

    def pids(self) -> Collection[int]:
        """Return the hook's processes, even if it is turned off."""
        found: frozenset[int] = frozenset()
        with self._fence.call("pids"):
            found |= frozenset(self._starter.pids())
        return found

    def close(self) -> None:
        """Call the hook's method."""
        with self._fence.call("close"):
            self._starter.close()


def fault_of_process(started: object, *, terminal: bool) -> str:
    """Return why a started process cannot be a worker. Empty if it can."""
    if not isinstance(started, StartedProcess):
        return f"gave {type(started).__name__}; expected a StartedProcess or None"
    pid = started.pid
    if type(pid) is not int or pid <= 1:
        return f"gave {pid!r} for a process"
    try:
        group, session = os.getpgid(pid), os.getsid(pid)
        if started.reap is None:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return f"gave process {pid}, which is no child of the agent, and nothing that reaps it"
    except OSError as err:
        return f"gave process {pid}, which is not there: {err.strerror}"
    if not terminal and (group, session) != (pid, pid):
        return f"gave process {pid}, which leads no session of its own"
    return ""


def _end(started: StartedProcess) -> None:
    with suppress(OSError, TypeError, ValueError, OverflowError):
        if started.pid > 1:
            os.kill(started.pid, signal.SIGKILL)
            if started.reap is None:
                os.waitpid(started.pid, 0)
