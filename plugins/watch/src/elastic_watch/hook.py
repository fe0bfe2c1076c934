"""The hook that reads heartbeats and takes stacks, on in every run. The rest is imported when it is needed."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.api import (
    AgentHook,
    AgentStarted,
    AgentStopped,
    HookSettings,
    LaunchChange,
    Launches,
    OptionSpec,
    Power,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.api.feed import Answer, StepsAsked, StepsSeen
from elastic_watch.beat_file import BeatFiles
from elastic_watch.beat_layout import FILE_VARIABLE
from elastic_watch.options import HANG_TIMEOUT, STARTUP_TIMEOUT

if TYPE_CHECKING:
    from elastic_watch.hangs.hang_watch import HangWatch
    from elastic_watch.stacks import StackCollector

STARTUP: Final = "elastic_watch.stack_dumps:offer"


class Watch(AgentHook):
    """Gives each worker memory for its heartbeats, and offers its content to other hooks of the agent.

    It offers `heartbeats` and `stacks` (`RunHandle.offers`), and has a `HangWatch` if a limit is set.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES})
    options: ClassVar[Sequence[OptionSpec]] = (HANG_TIMEOUT, STARTUP_TIMEOUT)

    def __init__(self, settings: HookSettings) -> None:
        super().__init__(settings)
        self._files = BeatFiles()
        self._closed = threading.Event()
        self._hangs: HangWatch | None = None

    def on_agent_started(self, event: AgentStarted) -> None:
        """Offer heartbeats and stacks."""
        self.run.track_progress(self._files.furthest_step)
        self.run.offer("heartbeats", self._heartbeats)
        self.run.offer("stacks", self._stacks)

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Give every worker memory of its own."""
        if event.asked_again or event.dry_run:
            return None
        try:
            paths = self._files.renew(event.round.local_world_size)
        except OSError as error:
            self.run.notice(f"heartbeats can't be taken ({error}); workers are judged by their output", named=False)
            return None
        changes = {
            rank: LaunchChange(environment={FILE_VARIABLE: path}, startup=(STARTUP,)) for rank, path in paths.items()
        }
        return Launches(workers=changes)

    def close(self) -> None:
        """Release the memory; workers keep what they have mapped."""
        self._closed.set()
        self._files.close()

    # --- hangs

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check workers that were just started, if a limit is set."""
        limits = (self.settings.option("hang_timeout", float), self.settings.option("startup_timeout", float))
        if self._hangs is None and any(limits):
            from elastic_watch.hangs.hang_watch import HangWatch

            self._hangs = HangWatch(self.run, *limits, files=self._files, collector=self._collector())
        if self._hangs is not None:
            self._hangs.on_workers_started(event)

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget a worker that has ended."""
        if self._hangs is not None:
            self._hangs.on_worker_exited(event)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Stop checking."""
        if self._hangs is not None:
            self._hangs.on_workers_stopping(event)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Stop checking."""
        if self._hangs is not None:
            self._hangs.on_agent_stopped(event)

    def on_steps_asked(self, event: StepsAsked) -> None:
        """Publish this node's steps on request."""
        if self._hangs is not None:
            self._hangs.on_steps_asked(event)

    def on_steps_seen(self, event: StepsSeen) -> None:
        """Use the responses of all nodes."""
        if self._hangs is not None:
            self._hangs.on_steps_seen(event)

    # --- what others may know. Threading: any

    def _heartbeats(self, parameters: Mapping[str, str]) -> Answer:
        from elastic_watch.answers import heartbeats_answer

        return heartbeats_answer(self._files.read())

    def _stacks(self, parameters: Mapping[str, str]) -> Answer:
        """Take the stacks of this node's workers. Parameter `ranks`: only of these local ranks. Blocks."""
        from elastic_watch.answers import ranks_asked, stacks_answer

        return stacks_answer(self._collector().take(ranks_asked(parameters)))

    def _collector(self) -> "StackCollector":
        from elastic_watch.stacks import StackCollector

        return StackCollector(self.run, self._files, closed=self._closed)
