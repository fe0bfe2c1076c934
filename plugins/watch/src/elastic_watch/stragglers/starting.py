"""The start of the watch of `--on-straggler`. Its code is imported when there is something to compare."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from elastic_core.api import HookSettings, RunHandle, RunTimer, WorkerEnded, WorkersStarted, decode_json
from elastic_core.api.feed import AnswersGathered, Concluded, NodesAsked
from elastic_watch.beat_file import BeatFiles
from elastic_watch.published import PublishedFields

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_watch.recorder.collector import SnapshotCollector
    from elastic_watch.stragglers.measures import StepTimes
    from elastic_watch.stragglers.straggler_watch import StragglerWatch

STEPS: Final = "planned-stops-steps"
"""The offer of elastic-train with the steps of `should_stop`."""
TOPIC: Final = "watch-steps"
"""The topic of requests to all nodes."""


class Stragglers:
    """Has a `StragglerWatch` for each round with several workers, unless `--on-straggler` is `off`.

    The watch begins one interval after the workers' start, because the first steps take longer than others, or later:
    when a worker reports steps, or can report its collectives.

    Threading: the hooks' thread.
    """

    run: RunHandle

    def __init__(
        self,
        settings: HookSettings,
        *,
        files: BeatFiles,
        collector: "Callable[[], SnapshotCollector]",
        fields: PublishedFields,
    ) -> None:
        self._mode = settings.option("on_straggler", str)
        self._interval_s = settings.option("straggler_interval", float)
        self._files = files
        self._collector = collector
        self._fields = fields
        self._timer: RunTimer | None = None
        self._gone: set[int] = set()
        self._watch: StragglerWatch | None = None

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to watch workers that were just started, later."""
        self.end()
        if self._mode != "off" and event.round.world_size > 1:
            self._gone = set()
            self._begin_later(event)

    def _begin_later(self, event: WorkersStarted) -> None:
        self._timer = self.run.call_later(self._interval_s, lambda: self._begin(event))

    def _begin(self, event: WorkersStarted) -> None:
        if not self._has_reports(event):
            self._begin_later(event)
            return
        self._timer = None
        self._own().begin(event, without=self._gone)

    def _has_reports(self, event: WorkersStarted) -> bool:
        if any(called_steps(self.run).values()) or any(self._files.step_times().values()):
            return True
        pages = map(self._files.get, range(len(event.pids)))
        return any(page is not None and page.server > 0 for page in pages)

    def _own(self) -> "StragglerWatch":
        if self._watch is None:
            from elastic_watch.stragglers.straggler_watch import StragglerWatch

            self._watch = StragglerWatch(
                self.run,
                files=self._files,
                reports=self._mode == "report",
                interval_s=self._interval_s,
                collector=self._collector(),
                fields=self._fields,
            )
        return self._watch

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget a worker that has ended."""
        if self._timer is not None:
            self._gone.add(event.exit.local_rank)
        elif self._watch is not None:
            self._watch.on_worker_exited(event)

    def end(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.end()

    # --- all nodes

    def on_nodes_asked(self, event: NodesAsked) -> None:
        """Send this node's last window, if it has one."""
        if event.topic == TOPIC and self._watch is not None:
            self._watch.on_nodes_asked(event)

    def on_answers_gathered(self, event: AnswersGathered) -> None:
        """Judge the windows of all nodes. This node may have no workers."""
        if event.topic == TOPIC:
            self._own().on_answers_gathered(event)

    def on_concluded(self, event: Concluded) -> None:
        """Use the result for all nodes."""
        if event.topic == TOPIC and self._watch is not None:
            self._watch.on_concluded(event)


class _LastSteps(msgspec.Struct, frozen=True):
    workers: dict[int, tuple[tuple[int, int], ...]]


def called_steps(run: RunHandle) -> "Mapping[int, StepTimes]":
    """Return the steps for which workers called `should_stop`."""
    try:
        return decode_json(run.offers()[STEPS]({}).content.encode(), _LastSteps).workers
    except (LookupError, ValueError, msgspec.DecodeError):  # elastic-train is not there, or of another version
        return {}
