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
from elastic_core.api.feed import Answer, AnswersGathered, Concluded, NodesAsked
from elastic_watch.beat_file import BeatFiles, WorkerProgress
from elastic_watch.beat_layout import FILE_VARIABLE
from elastic_watch.options import (
    AUTO,
    HANG_TIMEOUT,
    HANG_TOPIC,
    ON_HANG,
    ON_STRAGGLER,
    STARTUP_TIMEOUT,
    STRAGGLER_INTERVAL,
)
from elastic_watch.published import PublishedFields
from elastic_watch.stragglers.starting import Stragglers

if TYPE_CHECKING:
    from elastic_watch.hangs.hang_watch import HangWatch
    from elastic_watch.ras.queries import RasQueries
    from elastic_watch.recorder.collector import SnapshotCollector
    from elastic_watch.stacks import StackCollector

STARTUP: Final = ("elastic_watch.stack_dumps:offer", "elastic_watch.recorder_arming:arm")


class Watch(AgentHook):
    """Gives each worker memory for its heartbeats, and offers its content to other hooks of the agent.

    It offers `heartbeats`, `heartbeats-progress` and `stacks` (`RunHandle.offers`). If a limit is set, it has a
    `HangWatch`.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES})
    options: ClassVar[Sequence[OptionSpec]] = (
        HANG_TIMEOUT,
        STARTUP_TIMEOUT,
        ON_HANG,
        ON_STRAGGLER,
        STRAGGLER_INTERVAL,
    )

    def __init__(self, settings: HookSettings) -> None:
        super().__init__(settings)
        self._files = BeatFiles()
        self._closed = threading.Event()
        self._hangs: HangWatch | None = None
        self._ras: RasQueries | None = None
        self._fields = PublishedFields(lambda fields: self.run.publish(fields))
        self._stragglers = Stragglers(
            settings, files=self._files, collector=self._snapshot_collector, fields=self._fields
        )
        self._renewing = threading.Lock()
        """Guards the files' change from one round to the next, for readers of the progress, and both rounds below."""
        self._round: int | None = None
        self._last: tuple[int | None, Mapping[int, WorkerProgress]] = (None, {})
        """The round before, and its workers' progress."""

    def on_agent_started(self, event: AgentStarted) -> None:
        """Offer heartbeats, progress and stacks."""
        self._stragglers.run = self.run
        self.run.track_progress(self._files.furthest_step)
        self.run.offer("heartbeats", self._heartbeats)
        self.run.offer("heartbeats-progress", self._progress)
        self.run.offer("stacks", self._stacks)

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Give every worker memory of its own."""
        if event.asked_again or event.dry_run:
            return None
        try:
            with self._renewing:
                self._last = (self._round, self._files.progress())
                self._round = event.round.index
                paths = self._files.renew(event.round.local_world_size, self._recorder_folder(event.round.index))
        except OSError as error:
            self.run.notice(f"heartbeats can't be taken ({error}); workers are judged by their output", named=False)
            return None
        changes = {
            rank: LaunchChange(environment={FILE_VARIABLE: path}, startup=STARTUP) for rank, path in paths.items()
        }
        return Launches(workers=changes, environment=self._ras_environment())

    def _ras_environment(self) -> Mapping[str, str]:
        """Return the variables of NCCL's RAS service, which is only queried in a hang."""
        if not any(self._limits):
            return {}
        if self._ras is None:
            from elastic_watch.ras.queries import RasQueries

            self._ras = RasQueries(self.run)
        return self._ras.environment

    def _recorder_folder(self, index: int) -> str:
        """Return the folder of a round for the files that torch's flight recorder writes by itself."""
        run_dir = self.run.run_dir()
        return f"{run_dir}/recorder/round_{index}" if run_dir else ""

    def close(self) -> None:
        """Release the memory; workers keep what they have mapped."""
        self._closed.set()
        self._files.close()

    # --- hangs

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check workers that were just started, if a limit is set."""
        if self._hangs is None and any(self._limits):
            self._hangs = self._hang_watch(*self._limits)
        if self._hangs is not None:
            self._hangs.on_workers_started(event)
        self._stragglers.on_workers_started(event)

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget a worker that has ended."""
        if self._hangs is not None:
            self._hangs.on_worker_exited(event)
        self._stragglers.on_worker_exited(event)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Stop checking."""
        if self._hangs is not None:
            self._hangs.on_workers_stopping(event)
        self._stragglers.end()

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Stop checking."""
        if self._hangs is not None:
            self._hangs.on_agent_stopped(event)
        self._stragglers.end()

    def on_nodes_asked(self, event: NodesAsked) -> None:
        """Collect the evidence of this node's workers on request."""
        if self._hangs is not None:
            self._hangs.on_nodes_asked(event)
        self._stragglers.on_nodes_asked(event)

    def on_answers_gathered(self, event: AnswersGathered) -> None:
        """Conclude from the evidence of all nodes, on the leader, which may have no workers."""
        self._stragglers.on_answers_gathered(event)
        if event.topic != HANG_TOPIC:
            return
        from elastic_watch.hangs.asking import concluded, encoded_conclusion

        conclusion = concluded(event.answers, event.missing)
        if conclusion is not None:
            self.run.conclude_nodes(event.serial, encoded_conclusion(conclusion))

    def on_concluded(self, event: Concluded) -> None:
        """Use what follows from the evidence of all nodes."""
        if self._hangs is not None:
            self._hangs.on_concluded(event)
        self._stragglers.on_concluded(event)

    @property
    def _limits(self) -> tuple[float, float, bool]:
        """The limits of a hang and of the start-up in seconds, and whether the run learns that of a hang."""
        auto = self.settings.options.get("hang_timeout") == AUTO
        hang_s = 0.0 if auto else self.settings.option("hang_timeout", float)
        return hang_s, self.settings.option("startup_timeout", float), auto

    def _hang_watch(self, hang_s: float, startup_s: float, auto: bool) -> "HangWatch":
        from elastic_watch.hangs.auto_limit import AutoLimit
        from elastic_watch.hangs.hang_watch import HangWatch

        return HangWatch(
            self.run,
            hang_s,
            startup_s,
            files=self._files,
            collector=self._collector(),
            snapshots=self._snapshot_collector(),
            fails=self.settings.option("on_hang", str) == "fail",
            fields=self._fields,
            auto=AutoLimit(lambda line: self.run.notice(line, named=False)) if auto else None,
            ras=self._ras,
        )

    # --- what others may know. Threading: any

    def _heartbeats(self, parameters: Mapping[str, str]) -> Answer:
        from elastic_watch.answers import heartbeats_answer

        return heartbeats_answer(self._files.read())

    def _progress(self, parameters: Mapping[str, str]) -> Answer:
        """Return the workers' steps and their times. They stay until the next workers start.

        Parameters: `above`: the workers of this round note the time of their first step above this one. `round`: the
        number of this round or of the one before, whose last progress is kept. Other rounds have no workers here.
        """
        from elastic_watch.progress_answers import progress_answer, round_asked, step_above

        above, index = step_above(parameters), round_asked(parameters)
        with self._renewing:
            if above is not None:
                self._files.note_above(above)
            if index is None or index == self._round:
                return progress_answer(self._files.progress())
            last, progress = self._last
            return progress_answer(progress if index == last else {})

    def _stacks(self, parameters: Mapping[str, str]) -> Answer:
        """Take the stacks of this node's workers. Parameter `ranks`: only of these local ranks. Blocks."""
        from elastic_watch.answers import ranks_asked, stacks_answer

        return stacks_answer(self._collector().take(ranks_asked(parameters)))

    def _collector(self) -> "StackCollector":
        from elastic_watch.stacks import StackCollector

        return StackCollector(self.run, self._files, closed=self._closed)

    def _snapshot_collector(self) -> "SnapshotCollector":
        from elastic_watch.recorder.collector import SnapshotCollector

        return SnapshotCollector(self.run, self._files, closed=self._closed)
