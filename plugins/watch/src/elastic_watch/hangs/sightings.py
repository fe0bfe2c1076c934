"""What the checks see of a round's workers: heartbeats, output, debuggers, and the state of their processes."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Clock, RunHandle
from elastic_watch import vitals
from elastic_watch.beat_file import WorkerBeats
from elastic_watch.hangs import detector as hangs
from elastic_watch.hangs.activity import Activity, ActivityMeter
from elastic_watch.hangs.hang_report import RankReport
from elastic_watch.hangs.script_beats import ScriptBeats
from elastic_watch.stacks import WorkerStack

_SHORTEST_CPU_S: Final = 0.2
"""The resolution of the kernel's processor time, hundredths of a second."""


class Sightings:
    """Reads the state of one round's workers.

    Args:
        run: The run's handle.
        said: The signs of life that the workers' scripts report.
        pids: The workers' processes, by local rank.
        clock: This node's.
        on_blind: Called if the activity of a worker can't be read, and no worker sends heartbeats.
    """

    def __init__(
        self,
        run: RunHandle,
        said: ScriptBeats,
        pids: Mapping[int, int],
        *,
        clock: Clock,
        on_blind: Callable[[], None],
    ) -> None:
        self.pids = dict(pids)
        self._said = said
        self._clock = clock
        self._on_blind = on_blind
        logs = {worker.local_rank: (worker.stdout, worker.stderr) for worker in run.workers()}
        self._meter = ActivityMeter(pids, logs, said.stack_bytes)
        self._cpu: dict[int, tuple[float, float]] = {}

    def beats(self) -> dict[int, float | None]:
        """Return the times of the last heartbeats, by local rank."""
        return {rank: seen.beat_s for rank, seen in self._said.read().items()}

    def look(self, watch: hangs.Watch, *, collecting: Collection[int] = ()) -> dict[int, hangs.Sighting]:
        """Return the current observations of live workers, by local rank.

        Args:
            watch: The result of the last check.
            collecting: The ranks whose evidence is collected now: they read and write for the agent, which is no sign
                of life.
        """
        said = self._said.read()
        beats = {rank: said.get(rank, WorkerBeats()) for rank in watch.workers}
        silent = [rank for rank, seen in beats.items() if seen.beat_s is None]
        activity = self._meter.look(silent) if silent else {}
        self._notice_blind(beats=any(each.owner for each in beats.values()), activity=activity)
        found = {}
        for rank, watched in watch.workers.items():
            own, seen, before = activity.get(rank, Activity()), beats[rank], watched.sighting
            if rank in collecting:
                own = Activity(written=before.written, mark=before.traffic)
            still = (seen.beat_s, own.mark) == (before.beat_s, before.traffic)
            found[rank] = hangs.Sighting(
                will_beat=seen.owner != 0,
                beat_s=seen.beat_s,
                step=seen.step,
                sections=seen.sections,
                written=own.written,
                traffic=own.mark,
                held=still and (letter := vitals.state_of(self.pids[rank])) == "t",
                stopped=still and letter == "T",
            )
        return found

    def without_traffic(self, watch: hangs.Watch, ranks: Collection[int]) -> hangs.Watch:
        """Return the watch with all that these workers have read and written so far as known, so no sign of life."""
        if not ranks:
            return watch
        now = self.look(watch)
        workers = {
            rank: replace(each, sighting=replace(each.sighting, written=now[rank].written, traffic=now[rank].traffic))
            if rank in ranks
            else each
            for rank, each in watch.workers.items()
        }
        return replace(watch, workers=workers)

    def moved(self, watch: hangs.Watch) -> set[int]:
        """Return the ranks with a sign of life since the last check; all of them if none uses heartbeats."""
        now = self.look(watch)
        if any(each.beat_s is not None for each in now.values()):
            return {rank for rank, own in watch.workers.items() if now[rank].beat_s != own.sighting.beat_s}
        traffic = any(now[rank].traffic != own.sighting.traffic for rank, own in watch.workers.items())
        return set(watch.workers) if traffic else set()

    def _notice_blind(self, *, beats: bool, activity: Mapping[int, Activity]) -> None:
        blind = [rank for rank in activity if activity[rank].mark is None and vitals.lives(self.pids[rank])]
        if blind and not beats:
            self._on_blind()

    # --- processor time, from the first stack of a stall on

    def begin_cpu(self, ranks: Iterable[int]) -> None:
        """Note the processor time of workers, unless it is noted already."""
        for rank in ranks:
            seen = vitals.look_at(self.pids[rank])
            if seen is not None:
                self._cpu.setdefault(rank, (self._clock.monotonic_s(), seen.cpu_s))

    def forget_cpu(self) -> None:
        """Forget the noted processor times, as the workers make progress again."""
        self._cpu = {}

    def report(
        self,
        rank: int,
        global_rank: int,
        watched: hangs.Watched,
        stack: WorkerStack,
        *,
        call: str = "",
        responded: bool = False,
        quiet_s: float | None = None,
    ) -> RankReport:
        """Return the report of one rank."""
        pid = self.pids[rank]
        seen = vitals.look_at(pid)
        now_s = self._clock.monotonic_s()
        since_s, cpu_s = self._cpu.get(rank, (now_s, 0.0))
        known = seen is not None and now_s - since_s >= _SHORTEST_CPU_S
        return RankReport(
            local_rank=rank,
            global_rank=global_rank,
            pid=pid,
            step=watched.sighting.step,
            quiet_s=quiet_s,
            state="" if seen is None else seen.state,
            wait="" if seen is None else seen.wait,
            cpu_share=(seen.cpu_s - cpu_s) / (now_s - since_s) if seen is not None and known else None,
            stack=stack,
            call=call,
            responded=responded,
        )
