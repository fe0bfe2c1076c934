"""The hang detection of `--hang-timeout` and `--startup-timeout`: checks workers at intervals, and reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentStopped,
    Clock,
    Round,
    RunHandle,
    RunTimer,
    WorkerEnded,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.feed import StepsAsked, StepsSeen
from elastic_watch import vitals
from elastic_watch.beat_file import BeatFiles, WorkerBeats
from elastic_watch.hangs import detector as hangs
from elastic_watch.hangs.activity import Activity, ActivityMeter
from elastic_watch.hangs.hang_evidence import failure_report
from elastic_watch.hangs.hang_report import RECOVERED, HangReport, RankReport, blame, headline, waits_elsewhere, warning
from elastic_watch.hangs.peers import Others, answer, judged
from elastic_watch.hangs.stack_files import write_stacks
from elastic_watch.stacks import StackCollector, StacksTaken, WorkerStack

FOLDER: Final = "hang"
"""The folder of stacks in the run directory."""
MAX_WARNINGS: Final = 5
"""The limit of warnings in a round: workers that are late repeatedly are just slow."""
NO_MORE: Final = "this round's later warnings are left out. Try: a longer --hang-timeout"

_SHORTEST_CPU_S: Final = 0.2
"""The resolution of the kernel's processor time, hundredths of a second."""
LONGEST_ANSWER_S: Final = 3.0
ANSWER_LOOKS: Final = 2.5
"""The number of checks for which responses of other nodes are waited for: a quarter of the limit."""
MAX_DUMPS: Final = 2 * MAX_WARNINGS
"""The number of times in a round that workers write their stacks on another node's request."""

Stacks = Mapping[int, WorkerStack]
"""By local rank."""


class HangWatch:
    """Checks the workers of one round after another. Between rounds, and without a limit, it does nothing.

    A hang is reported when a limit is reached, and again after another limit if the workers were not stopped.

    Args:
        run: The run's handle.
        hang_s: `--hang-timeout`; 0 means none.
        startup_s: `--startup-timeout`; 0 means none.
        files: The memory with the workers' heartbeats.
        collector: Takes their stacks.
        clock: This node's.
    """

    def __init__(
        self,
        run: RunHandle,
        hang_s: float,
        startup_s: float,
        *,
        files: BeatFiles,
        collector: StackCollector,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.run = run
        self.clock = clock
        self._files = files
        self._collector = collector
        self._limits = hangs.Limits(hang_s=hang_s, startup_s=startup_s)
        self._pids: dict[int, int] = {}
        self._round: Round | None = None
        self._watch: hangs.Watch | None = None
        self._timer: RunTimer | None = None
        self._asked = 0
        """Which request for stacks was the last one."""
        self._awaits_stacks = False
        self._episode = 0
        self._cpu: dict[int, tuple[float, float]] = {}
        self._told_blind = False
        self._meter = ActivityMeter({}, {})
        self._others = Others()
        self._wonders: hangs.Stall | None = None
        self._answered = False
        self._dumped: Stacks | None = None
        self._dump_count = 0
        self._deferred = False

    # --- a round

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check workers that were just started."""
        self._end()
        if not (self._limits.hang_s or self._limits.startup_s):
            return
        self._round = event.round
        self._pids = dict(enumerate(event.pids))
        logs = {worker.local_rank: (worker.stdout, worker.stderr) for worker in self.run.workers()}
        self._meter = ActivityMeter(self._pids, logs, self._written_for_us)
        self._watch = hangs.begin(self._limits, self._pids, now_s=self.clock.monotonic_s())
        self._cpu = {}
        self._others = Others()
        self._answered, self._dumped, self._dump_count = False, None, 0
        self._deferred = False
        self._episode = 1
        self._look_later()

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget a worker that has ended."""
        rank = event.exit.local_rank
        if self._watch is not None and rank in self._watch.workers:
            self._watch = hangs.without(self._watch, rank)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Stop checking."""
        self._end()

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Stop checking."""
        self._end()

    def _end(self) -> None:
        self._watch = None
        self._wonders = None
        self._awaits_stacks = False
        self._asked += 1
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _notice(self, text: str) -> None:
        self.run.notice(text, named=False)  # each of our lines says what it is about

    def _written_for_us(self, rank: int) -> int:
        return self._files.read().get(rank, WorkerBeats()).stack_bytes

    # --- all nodes of the round

    def on_steps_asked(self, event: StepsAsked) -> None:
        """Publish this node's steps on request, and have all its ranks write their stacks."""
        watch, round_ = self._watch, self._round
        if watch is None or round_ is None:
            return
        ranks = {rank: round_.global_rank(rank) for rank in self._pids}
        seen = self._sightings(watch)
        self.run.report_steps(answer(event.serial, watch, seen, node_id=round_.node_id, ranks=ranks))
        if not self._awaits_stacks and self._dump_count < MAX_DUMPS:
            self._dump_count += 1
            self._request_stacks(watch, self._have_dump)

    def on_steps_seen(self, event: StepsSeen) -> None:
        """Use the responses of all nodes."""
        if self._watch is not None:
            self._others.take(event.seen, self._watch)
            self._go_on()

    def _ask_around(self, stall: hangs.Stall) -> None:
        """Request the steps of other nodes before a stall is reported."""
        self._wonders, self._answered, self._dumped = stall, False, None
        self._timer = self.run.call_later(min(LONGEST_ANSWER_S, self._limits.look_s * ANSWER_LOOKS), self._go_on)
        self.run.ask_steps()

    def _have_dump(self, stacks: Stacks) -> None:
        if self._wonders is not None:
            self._dumped = stacks
            if self._answered:
                self._go_on()
        elif self._watch is not None:
            self._write(self._reports(self._watch, stacks, {}))

    def _go_on(self) -> None:
        """Judge a stall after all nodes have responded, or had time to."""
        stall, watch = self._wonders, self._watch
        if stall is None or watch is None:
            return
        self._cancel_timer()
        self._answered = True
        if self._awaits_stacks:
            return  # until there are some
        self._wonders = None
        judged_now = judged(stall, watch, self._others.now(watch))
        if judged_now is None:
            self._watch = replace(watch, warned=False)
            self._look_later()
        elif self._dumped is not None:
            self._have_stacks(judged_now, self._dumped)
        else:
            self._ask_for_stacks(judged_now)

    # --- looks

    def _look_later(self) -> None:
        self._timer = self.run.call_later(self._limits.look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._watch is None or self._round is None or not self._watch.workers:
            return
        now_s = self.clock.monotonic_s()
        sightings = self._sightings(self._watch)
        self._watch, verdict = hangs.look(self._watch, sightings, now_s=now_s, elsewhere=self._others.now(self._watch))
        match verdict:
            case hangs.Stall() if verdict.hung or self._round.node_count == 1:
                if verdict.hung or self._episode <= MAX_WARNINGS:
                    self._ask_for_stacks(verdict)
                    return
            case hangs.Stall() if self._episode <= MAX_WARNINGS:
                self._ask_around(verdict)
                return
            case hangs.Recovered():
                if self._episode <= MAX_WARNINGS:
                    self._notice(RECOVERED if self._episode < MAX_WARNINGS else f"{RECOVERED}; {NO_MORE}")
                self._episode += 1
                self._cpu = {}
                self._deferred = False
        self._look_later()

    def _sightings(self, watch: hangs.Watch) -> dict[int, hangs.Sighting]:
        said = self._files.read()
        beats = {rank: said.get(rank, WorkerBeats()) for rank in watch.workers}
        silent = [rank for rank, seen in beats.items() if seen.beat_s is None]
        activity = self._meter.look(silent) if silent else {}
        self._tell_blind(beats=any(each.owner for each in beats.values()), activity=activity)
        found = {}
        for rank, watched in watch.workers.items():
            own, seen, before = activity.get(rank, Activity()), beats[rank], watched.sighting
            still = (seen.beat_s, own.mark) == (before.beat_s, before.traffic)
            found[rank] = hangs.Sighting(
                will_beat=seen.owner != 0,
                beat_s=seen.beat_s,
                step=seen.step,
                sections=seen.sections,
                written=own.written,
                traffic=own.mark,
                held=still and vitals.is_debugged(self._pids[rank]),
            )
        return found

    def _tell_blind(self, *, beats: bool, activity: Mapping[int, Activity]) -> None:
        blind = [rank for rank in activity if activity[rank].mark is None and vitals.lives(self._pids[rank])]
        if blind and not beats and not self._told_blind:
            self._told_blind = True
            self._notice(
                "--hang-timeout can't judge workers of another user that send no heartbeats: neither their output nor "
                "their /proc/PID/io is to be seen. Try: --redirects 3, or heartbeats in the script"
            )

    # --- stacks, and what follows

    def _ask_for_stacks(self, stall: hangs.Stall) -> None:
        if self._watch is not None:
            self._request_stacks(self._watch, lambda stacks: self._have_stacks(stall, stacks))

    def _request_stacks(self, watch: hangs.Watch, on_taken: StacksTaken) -> None:
        for rank in watch.workers:
            seen = vitals.look_at(self._pids[rank])
            if seen is not None:  # what it uses from the warning on
                self._cpu.setdefault(rank, (self.clock.monotonic_s(), seen.cpu_s))
        self._asked += 1
        asked, self._awaits_stacks = self._asked, True

        def taken(stacks: Stacks) -> None:
            if asked == self._asked:  # else they are of another round, or others are wanted
                self._awaits_stacks = False
                on_taken(stacks)

        self._collector.take_later(taken, ranks=tuple(watch.workers))

    def _have_stacks(self, stall: hangs.Stall, stacks: Stacks) -> None:
        watch = self._watch
        if watch is None:
            return
        # A worker that has ended or makes progress meanwhile is no longer a cause of the hang.
        still = watch.workers.keys() - self._moved(watch)
        late = tuple(each for each in stall.late if each.local_rank in still)
        if late:
            behind = tuple(rank for rank in stall.behind if rank in still)
            self._tell(watch, replace(stall, late=late, behind=behind), stacks)
        self._look_later()

    def _moved(self, watch: hangs.Watch) -> set[int]:
        """Return the ranks with a sign of life since the last check; all of them if none uses heartbeats."""
        now = self._sightings(watch)
        if any(each.beat_s is not None for each in now.values()):
            return {rank for rank, own in watch.workers.items() if now[rank].beat_s != own.sighting.beat_s}
        traffic = any(now[rank].traffic != own.sighting.traffic for rank, own in watch.workers.items())
        return set(watch.workers) if traffic else set()

    def _tell(self, watch: hangs.Watch, stall: hangs.Stall, stacks: Stacks) -> None:
        quiet_s = {each.local_rank: each.quiet_s for each in stall.late}
        folder, ranks = self._write(self._reports(watch, stacks, quiet_s))
        report = HangReport(
            stall=stall,
            ranks=ranks,
            blamed=blame(stall, ranks),
            folder=folder,
            elsewhere=self._others.behind(stall, map(self._global_rank, self._pids)),
        )
        if stall.hung:
            self._report(report)
        else:
            self._notice(warning(report))

    def _report(self, report: HangReport) -> None:
        """Report a hang, later if its cause is on another node, which knows more and reports it itself."""
        several = self._round is not None and self._round.node_count > 1
        if several and not self._deferred and (waits_elsewhere(report) or report.blames_others):
            self._deferred = True
            return
        self.run.report(failure_report(report))

    def _reports(self, watch: hangs.Watch, stacks: Stacks, quiet_s: Mapping[int, float]) -> tuple[RankReport, ...]:
        return tuple(
            self._seen(rank, watched, stacks.get(rank, WorkerStack()), quiet_s.get(rank))
            for rank, watched in sorted(watch.workers.items())
        )

    def _seen(self, rank: int, watched: hangs.Watched, stack: WorkerStack, quiet_s: float | None) -> RankReport:
        pid = self._pids[rank]
        seen = vitals.look_at(pid)
        now_s = self.clock.monotonic_s()
        since_s, cpu_s = self._cpu.get(rank, (now_s, 0.0))
        known = seen is not None and now_s - since_s >= _SHORTEST_CPU_S
        return RankReport(
            local_rank=rank,
            global_rank=self._global_rank(rank),
            pid=pid,
            step=watched.sighting.step,
            quiet_s=quiet_s,
            state="" if seen is None else seen.state,
            wait="" if seen is None else seen.wait,
            cpu_share=(seen.cpu_s - cpu_s) / (now_s - since_s) if seen is not None and known else None,
            stack=stack,
        )

    def _global_rank(self, local_rank: int) -> int:
        assert self._round is not None
        return self._round.global_rank(local_rank)

    def _write(self, ranks: tuple[RankReport, ...]) -> tuple[str, tuple[RankReport, ...]]:
        """Write a file for each rank, if there are stacks. Return their folder, and the ranks with their files."""
        if self._round is None or not any(each.stack.text for each in ranks):
            return "", ranks
        folder = Path(self.run.run_dir()) / FOLDER / f"round_{self._round.index}_{self._episode}"
        try:
            names = write_stacks(folder, {each.global_rank: (headline(each), each.stack.text) for each in ranks})
        except OSError as error:
            self._notice(f"stacks can't be written to {str(folder)!r}: {error.strerror}")
            return "", ranks
        return str(folder), tuple(replace(each, stack_file=names[each.global_rank]) for each in ranks)
