"""What the agent does for hooks that have the run's handle."""

import signal
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from elastic_core.failure.reporter import Reporter
from elastic_core.launcher.control import AgentControl
from elastic_core.launcher.status_keeper import StatusKeeper
from elastic_core.messages import RestartRequested, StopRequested
from elastic_core.reports import FailureReport, FieldValue, WorkerStack
from elastic_core.types import Round

if TYPE_CHECKING:
    from elastic_core.agent.watch.worker_stacks import WorkerStacks


class HookActions:
    """Does what hooks ask for: as a signal, a request of `elastic ctl` or a watch of ours would. Threading: the loop's.

    Args:
        reporter: The voice of the run.
        status: Says in `status.json` what hooks publish.
        control: Knows agent and workers, and what asks them.
        stacks: Takes those of workers.
        round_: Returns the round whose workers run.
    """

    def __init__(
        self,
        *,
        reporter: Reporter,
        status: StatusKeeper,
        control: Callable[[], AgentControl],
        stacks: "WorkerStacks",
        round_: Callable[[], Round | None],
    ) -> None:
        self._reporter = reporter
        self._status = status
        self._control = control
        self._stacks = stacks
        self._round = round_

    def report(self, report: FailureReport) -> None:
        """Take a failure, unless something else is being decided."""
        control, round_ = self._control(), self._round()
        if round_ is not None:
            uptime_s = control.reactor.now_s() - control.planned_s
            pids = control.workers.pids
            control.agent.on_hang(lambda: self._reporter.reported(round_, report, pids, uptime_s=uptime_s))

    def restart(self, reason: str) -> None:
        """Restart all workers of the run, where the backend can tell the other nodes."""
        control, round_ = self._control(), self._round()
        if round_ is not None and round_.node_count > 1 and not control.rendezvous.takes_requests:
            self._reporter.notice(f"{reason}: left alone, the rendezvous can't tell the other nodes")
        else:
            control.agent.dispatch(RestartRequested(reason=reason))

    def drain(self, reason: str, grace_s: float | None) -> None:
        """Stop this node's workers, and leave."""
        self._reporter.notice(reason)
        self._control().agent.dispatch(StopRequested(signum=signal.SIGTERM, grace_s=grace_s))

    def notice(self, text: str) -> None:
        """Print a line."""
        self._reporter.notice(text)

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Keep a hook's fields, for the status and for incidents."""
        self._reporter.hook_fields[hook] = dict(fields)
        self._status.publish(self._reporter.hook_fields)

    def stacks(
        self, on_taken: Callable[[Mapping[int, WorkerStack]], None], ranks: Collection[int] | None = None
    ) -> None:
        """Take the stacks of this node's workers."""
        self._stacks.take(on_taken, ranks=ranks)
