"""The shell around `hangs`: looks at this node's workers from time to time, has stacks written, and tells."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from elastic_core.agent.watch import hang_detector as hangs
from elastic_core.agent.watch.activity import Activity, ActivityMeter
from elastic_core.agent.watch.beat_file import BeatFiles
from elastic_core.agent.watch.hang_peers import Others, Peers, answer, judged
from elastic_core.agent.watch.hang_report import RECOVERED, HangReport, RankReport, blame, waits_elsewhere, warning
from elastic_core.agent.watch.stack_collector import StackRequest
from elastic_core.agent.watch.stack_files import write_stacks
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.processes import vitals
from elastic_core.processes.procfs import read_stat
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reactor import Reactor, Timer
from elastic_core.reports import WorkerBeats, WorkerStack
from elastic_core.types import Round, RunSteps

MAX_WARNINGS = 5
"""Workers that are slow again and again are slow by nature: more words and stacks in a round would help nobody."""
NO_MORE = "this round's later warnings are left out. Try: a longer --hang-timeout"

_SHORTEST_CPU_S = 0.2
"""The kernel counts processor time in hundredths of a second."""
LONGEST_ANSWER_S = 3.0
ANSWER_LOOKS = 2.5
"""How many looks other nodes are waited for, where they are asked about their steps: a quarter of the limit."""
MAX_DUMPS = 2 * MAX_WARNINGS
"""So many times in a round workers write their stacks because another node asks."""


class HangWatch:
    """Watches the workers of one round after another; between them, and without a limit, it does nothing.

    Args:
        reactor: The loop.
        limits: At least one of them.
        folder: Where stacks go; made when there are any.
        notice: Takes one line for people.
        on_hang: Called when a limit is reached, and again after another one if nobody stopped the workers.
        peers: The other nodes; None: there are none, or they can't be asked.
        files: What workers beat into.
        clock: The host's.

    Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        limits: hangs.Limits,
        folder: Path,
        notice: Callable[[str], None],
        on_hang: Callable[[HangReport], None],
        peers: Peers | None = None,
        files: BeatFiles | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Watch nothing yet."""
        self._reactor = reactor
        self._limits = limits
        self._folder = folder
        self._notice = notice
        self._on_hang = on_hang
        self._clock = clock
        self._files = files or BeatFiles()
        self._launches: dict[int, WorkerLaunch] = {}
        self._pids: dict[int, int] = {}
        self._round: Round | None = None
        self._watch: hangs.Watch | None = None
        self._began_s = 0.0
        self._timer: Timer | None = None
        self._request: StackRequest | None = None
        self._episode = 0
        self._cpu: dict[int, tuple[float, float]] = {}
        self._told_blind = False
        self._meter = ActivityMeter({}, {})
        self._peers = peers
        self._others = Others()
        self._wonders: hangs.Stall | None = None
        self._answered = False
        self._dumped: Mapping[int, WorkerStack] | None = None
        self._dump_count = 0
        self._deferred = False

    # --- a round

    def open(self, ranks: Iterable[int], round_: Round) -> dict[int, str]:
        """Return for each local rank the file that its worker is to beat into; those of an earlier round are closed."""
        self.close()
        self._round = round_
        try:
            return self._files.open(ranks)
        except OSError as error:
            self._notice(f"heartbeats can't be taken ({error}); workers are judged by their output")
            return {}

    def begin(self, launches: Iterable[WorkerLaunch], pids: Mapping[int, int]) -> None:
        """Begin to watch workers that were just started."""
        self._launches = {launch.local_rank: launch for launch in launches}
        self._pids = dict(pids)
        files = {
            rank: [stream.file for stream in (launch.stdout, launch.stderr) if stream.file is not None]
            for rank, launch in self._launches.items()
        }
        self._meter = ActivityMeter(self._pids, files, self._written_for_us)
        self._began_s = self._clock.monotonic_s()
        self._watch = hangs.begin(self._limits, self._pids, now_s=self._began_s)
        self._cpu = {}
        self._others = Others()
        self._wonders, self._answered, self._dumped, self._dump_count = None, False, None, 0
        self._deferred = False
        self._episode = 1
        self._look_later()

    def _written_for_us(self, rank: int) -> int:
        file = self._files.get(rank)
        return 0 if file is None else file.read().stack_bytes

    def ended(self, local_rank: int) -> None:
        """Forget a worker that has ended."""
        if self._watch is not None and local_rank in self._watch.workers:
            self._watch = hangs.without(self._watch, local_rank)

    def end(self) -> None:
        """Stop watching: the workers are about to be stopped, or gone."""
        self._watch = None
        self._wonders = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.end()
        self._files.close()

    @property
    def _index(self) -> int:
        return 0 if self._round is None else self._round.index

    def helpers(self) -> frozenset[int]:
        """Return the pids of this process's children that are no workers."""
        return frozenset() if self._request is None else self._request.helpers()

    # --- all nodes of the round

    def tell_steps(self, serial: int) -> None:
        """Answer a question about this node's steps, and have all its ranks write their stacks."""
        watch = self._watch
        if watch is None or self._peers is None or self._round is None:
            return
        ranks = {rank: launch.global_rank for rank, launch in self._launches.items()}
        seen = self._sightings(watch)
        self._peers.report_steps(answer(serial, watch, seen, node_id=self._round.node_id, ranks=ranks))
        if self._request is None and self._dump_count < MAX_DUMPS:
            self._dump_count += 1
            self._request_stacks(watch, self._have_dump)

    def hear_steps(self, seen: RunSteps) -> None:
        """Take what all nodes have answered."""
        if self._watch is not None:
            self._others.hear(seen, self._watch)
            self._go_on()

    @property
    def _asks(self) -> bool:
        return self._peers is not None and self._round is not None and self._round.node_count > 1

    def _ask_around(self, stall: hangs.Stall) -> None:
        """Find out what other nodes know, before anything is said of a stall."""
        assert self._peers is not None
        self._wonders, self._answered, self._dumped = stall, False, None
        self._timer = self._reactor.call_later(min(LONGEST_ANSWER_S, self._limits.look_s * ANSWER_LOOKS), self._go_on)
        self._peers.ask_steps()

    def _have_dump(self, stacks: Mapping[int, WorkerStack]) -> None:
        self._request = None
        if self._wonders is not None:
            self._dumped = stacks
            if self._answered:
                self._go_on()
        elif self._watch is not None:
            self._write(self._reports(self._watch, stacks, {}), stacks)

    def _go_on(self) -> None:
        """Judge what this node wondered about: all have answered, or were given the time to."""
        stall, watch = self._wonders, self._watch
        if stall is None or watch is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answered = True
        if self._request is not None:
            return  # until there are stacks
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
        self._timer = self._reactor.call_later(self._limits.look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._watch is None or not self._watch.workers:
            return
        now_s = self._clock.monotonic_s()
        sightings = self._sightings(self._watch)
        self._watch, verdict = hangs.look(self._watch, sightings, now_s=now_s, elsewhere=self._others.now(self._watch))
        match verdict:
            case hangs.Stall() if verdict.hung or not self._asks:
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
        beats = {rank: self._beats_of(rank) for rank in watch.workers}
        silent = [rank for rank, seen in beats.items() if seen.beat_s is None]
        activity = self._meter.look(silent) if silent else {}
        self._tell_blind(beats=any(each.owner for each in beats.values()), activity=activity)
        found = {}
        for rank, watched in watch.workers.items():
            own, seen, before = activity.get(rank, Activity()), beats[rank], watched.sighting
            still = (seen.beat_s, own.mark) == (before.beat_s, before.traffic)
            stat = read_stat(self._pids[rank]) if still else None
            found[rank] = hangs.Sighting(
                will_beat=seen.owner != 0,
                beat_s=seen.beat_s,
                step=seen.step,
                sections=tuple(
                    hangs.SectionSeen(serial=each.serial, name=each.name, since_s=each.since_s, limit_s=each.limit_s)
                    for each in seen.sections
                ),
                written=own.written,
                traffic=own.mark,
                held=stat is not None and stat.state == "t",
            )
        return found

    def _beats_of(self, rank: int) -> WorkerBeats:
        """Return what a worker has said of itself; nothing, if whoever said it was started by it and has ended."""
        file = self._files.get(rank)
        beats = WorkerBeats() if file is None else file.read()
        return beats if not beats.owner or _lives(beats.owner) else WorkerBeats()

    def _tell_blind(self, *, beats: bool, activity: Mapping[int, Activity]) -> None:
        blind = [rank for rank in activity if activity[rank].mark is None and _lives(self._pids[rank])]
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

    def _request_stacks(self, watch: hangs.Watch, on_done: Callable[[Mapping[int, WorkerStack]], None]) -> None:
        if self._request is not None:
            self._request.cancel()
        for rank in watch.workers:
            seen = vitals.look_at(self._pids[rank])
            if seen is not None:  # what it uses from the warning on
                self._cpu.setdefault(rank, (self._clock.monotonic_s(), seen.cpu_s))
        self._request = StackRequest(
            self._reactor,
            {rank: (self._pids[rank], self._beating(rank), self._files.get(rank)) for rank in watch.workers},
            on_done=on_done,
        )

    def _beating(self, rank: int) -> int:
        """Return the process whose stack matters most: the worker may be a shell around it."""
        return self._beats_of(rank).owner or self._pids[rank]

    def _have_stacks(self, stall: hangs.Stall, stacks: Mapping[int, WorkerStack]) -> None:
        self._request = None
        watch = self._watch
        if watch is None:
            return
        # Who has ended or goes on meanwhile is not to blame for a hang any more.
        still = watch.workers.keys() - self._moved(watch)
        late = tuple(each for each in stall.late if each.local_rank in still)
        if late:
            behind = tuple(rank for rank in stall.behind if rank in still)
            self._tell(watch, replace(stall, late=late, behind=behind), stacks)
        if self._watch is not None:
            self._look_later()

    def _moved(self, watch: hangs.Watch) -> set[int]:
        """Return the ranks that have given a sign of life since the last look; where none beats, all of them."""
        now = self._sightings(watch)
        if any(each.beat_s is not None for each in now.values()):
            return {rank for rank, own in watch.workers.items() if now[rank].beat_s != own.sighting.beat_s}
        traffic = any(now[rank].traffic != own.sighting.traffic for rank, own in watch.workers.items())
        return set(watch.workers) if traffic else set()

    def _tell(self, watch: hangs.Watch, stall: hangs.Stall, stacks: Mapping[int, WorkerStack]) -> None:
        quiet_s = {each.local_rank: each.quiet_s for each in stall.late}
        folder, ranks = self._write(self._reports(watch, stacks, quiet_s), stacks)
        report = HangReport(
            stall=stall,
            round_index=self._index,
            uptime_s=self._clock.monotonic_s() - self._began_s,
            ranks=ranks,
            blamed=blame(stall, ranks),
            folder=folder,
            elsewhere=self._others.behind(stall, (launch.global_rank for launch in self._launches.values())),
        )
        if stall.hung:
            self._report(report)
        else:
            self._notice(warning(report))

    def _report(self, report: HangReport) -> None:
        """Tell of a hang, later where its reason is on another node: that one knows more, and tells of it itself."""
        several = self._round is not None and self._round.node_count > 1
        if several and not self._deferred and (waits_elsewhere(report) or report.blames_others):
            self._deferred = True
            return
        self._on_hang(report)

    def _reports(
        self, watch: hangs.Watch, stacks: Mapping[int, WorkerStack], quiet_s: Mapping[int, float]
    ) -> tuple[RankReport, ...]:
        return tuple(
            self._seen(rank, watched, stacks.get(rank, WorkerStack()), quiet_s.get(rank))
            for rank, watched in sorted(watch.workers.items())
        )

    def _seen(self, rank: int, watched: hangs.Watched, stacks: WorkerStack, quiet_s: float | None) -> RankReport:
        pid = self._pids[rank]
        seen = vitals.look_at(pid)
        now_s = self._clock.monotonic_s()
        since_s, cpu_s = self._cpu.get(rank, (now_s, 0.0))
        known = seen is not None and now_s - since_s >= _SHORTEST_CPU_S
        return RankReport(
            local_rank=rank,
            global_rank=self._launches[rank].global_rank,
            pid=pid,
            step=watched.sighting.step,
            quiet_s=quiet_s,
            state="" if seen is None else seen.state,
            wait="" if seen is None else seen.wait,
            cpu_share=(seen.cpu_s - cpu_s) / (now_s - since_s) if seen is not None and known else None,
            frames=stacks.frames,
            source=stacks.source,
        )

    def _write(
        self, ranks: tuple[RankReport, ...], stacks: Mapping[int, WorkerStack]
    ) -> tuple[str, tuple[RankReport, ...]]:
        """Write a file for each rank that said anything; return their folder, and the ranks with their files."""
        if not any(stacks.values()):
            return "", ranks
        folder = self._folder / f"round_{self._index}_{self._episode}"
        try:
            return str(folder), write_stacks(folder, ranks, stacks)
        except OSError as error:
            self._notice(f"stacks can't be written to {str(folder)!r}: {error.strerror}")
            return "", ranks


def _lives(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.alive
