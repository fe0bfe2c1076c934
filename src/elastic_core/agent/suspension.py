"""The suspension of a whole node by the terminal (Ctrl-Z, SIGTSTP), which does not reach workers in other sessions."""

import math
import signal
from collections.abc import Callable

from elastic_core.agent.guard.guardian import Guardian
from elastic_core.logger import Logger
from elastic_core.processes.group import WorkerGroup
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.system.reactor import Reactor


def suspend_node(
    reactor: Reactor,
    workers: WorkerGroup,
    guardian: Guardian,
    *,
    log: Logger,
    stop_agent: Callable[[], None] = lambda: signal.raise_signal(signal.SIGSTOP),
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Suspend the workers, then this process; continue the workers when SIGCONT has continued this process.

    The time in between does not count for timers of the agent. It counts for the lease.

    Threading: the main thread. Blocks while the process is suspended.
    """
    left_s, count = guardian.fence_left_s, len(workers.alive)
    if count and math.isfinite(left_s):
        log.notice(
            f"SIGTSTP: the agent and {'1 worker' if count == 1 else f'{count} workers'} stop here; unless they are "
            f"continued within {max(0.0, left_s):.1f} s, the lease ends: the guard then ends these workers, and the "
            "other nodes go on without this node until it is continued"
        )
    workers.suspend()
    began_s = clock.monotonic_s()
    # Not by SIGTSTP: the kernel ignores that in a process group without a shell, as below a batch system.
    stop_agent()
    reactor.leave_out(clock.monotonic_s() - began_s)
    workers.resume()
