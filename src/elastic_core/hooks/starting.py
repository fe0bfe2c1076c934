"""Hooks that start workers: checks of their answers, and protection from their errors."""

import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from elastic_core.hooks.members import NamedHook
from elastic_core.moments import Power
from elastic_core.plugin_faults import LoopFence, PluginFaults, PluginLabel, wrong_answer
from elastic_core.starters import AgentLoop, StartedProcess, WorkerStart, WorkerStarter
from elastic_core.system.clock import SYSTEM_CLOCK, Clock


def hook_starters(
    hooks: Sequence[NamedHook], loop: AgentLoop, faults: PluginFaults | None = None
) -> list[WorkerStarter]:
    """Return the starters of the hooks with the power, in their order. Called: before the first round."""
    made: list[WorkerStarter] = []
    for named in hooks:
        if Power.STARTS in named.hook.powers:
            starter = HookStarter(named.label, loop, faults=faults)
            if starter.make(named.hook.worker_starter):
                made.append(starter)
    return made


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
        self._starter: WorkerStarter | None = None
        without = "workers are started without it from now on"
        self._fence = LoopFence(label, loop, without, faults=faults, clock=clock)

    def make(self, make: Callable[[AgentLoop], WorkerStarter | None]) -> bool:
        """Call the hook for its starter, and return whether there is one."""
        with self._fence.call("worker_starter"):
            made: object = make(self._loop)
            if made is None or isinstance(made, WorkerStarter):
                self._starter = made
            else:
                self._fence.turn_off("worker_starter", wrong_answer(made, "a WorkerStarter or None"))
        return self._starter is not None

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start a worker by the hook, unless it is turned off."""
        started: object = None
        if self._starter is not None and not self._fence.off:
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
        if self._starter is not None and not self._fence.off:
            with self._fence.call("round_started"):
                self._starter.round_started()

    def round_stopping(self) -> None:
        """Call the hook's method, unless it is turned off."""
        if self._starter is not None and not self._fence.off:
            with self._fence.call("round_stopping"):
                self._starter.round_stopping()

    def worker_ended(self, pid: int) -> None:
        """Call the hook's method even if it is turned off: it has started the worker."""
        if self._starter is not None:
            with self._fence.call("worker_ended"):
                self._starter.worker_ended(pid)

    def pids(self) -> Collection[int]:
        """Return the hook's processes, even if it is turned off."""
        found: frozenset[int] = frozenset()
        if self._starter is not None:
            with self._fence.call("pids"):
                found = frozenset(self._starter.pids())
        return found

    def close(self) -> None:
        """Call the hook's method."""
        if self._starter is not None:
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
