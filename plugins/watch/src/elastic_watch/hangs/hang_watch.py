"""The hang detection of `--hang-timeout` and `--startup-timeout`: checks workers at intervals, and reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentStopped,
    Clock,
    Record,
    Round,
    RunHandle,
    RunTimer,
    WorkerEnded,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.feed import Concluded, NodesAsked
from elastic_watch.beat_file import BeatFiles
from elastic_watch.collectives.evidence import NodeEvidence
from elastic_watch.hangs import asking, peers
from elastic_watch.hangs import detector as hangs
from elastic_watch.hangs.asking import Conclusion, content_of
from elastic_watch.hangs.auto_limit import AutoLimit
from elastic_watch.hangs.collecting import Collected, Collector, Snapshots, Stacks, node_evidence
from elastic_watch.hangs.hang_evidence import failure_report
from elastic_watch.hangs.hang_report import (
    RECOVERED,
    HangReport,
    RankReport,
    blame,
    headline,
    may_wait_elsewhere,
    summary,
    waits_elsewhere,
    warning,
)
from elastic_watch.hangs.hang_status import HangStatus
from elastic_watch.hangs.long_operations import long_operation
from elastic_watch.hangs.script_beats import ScriptBeats
from elastic_watch.hangs.sightings import Sightings
from elastic_watch.hangs.stack_files import RECORDER, write_conclusion, write_stacks
from elastic_watch.hangs.steps import node_steps
from elastic_watch.options import HANG_TOPIC
from elastic_watch.published import PublishedFields
from elastic_watch.ras.queries import RasQueries
from elastic_watch.stacks import WorkerStack

FOLDER: Final = "hang"
"""The folder of stacks in the run directory."""
MAX_WARNINGS: Final = 5
"""The limit of warnings in a round: workers that are late repeatedly are just slow."""
NO_FAILURE: Final = "not a failure, as --on-hang is note"
NO_MORE: Final = "this round's later warnings are left out. Try: a longer --hang-timeout"
BLIND: Final = (
    "--hang-timeout can't judge workers of another user that send no heartbeats: neither their output nor their "
    "/proc/PID/io is to be seen. Try: --redirects 3, or heartbeats in the script"
)
SUSPENDED: Final = (
    "all workers of this node are stopped by a signal: this time does not count for --hang-timeout. Try: kill -CONT"
)
MAX_DUMPS: Final = 2 * MAX_WARNINGS
"""The number of times in a round that workers write their stacks on another node's request."""
LONGEST_WAIT_S: Final = 6.0
SHORTEST_WAIT_S: Final = 3.0
WAIT_LOOKS: Final = 3
"""How long a node waits for a conclusion: as many checks, within these bounds."""
NODES_SHARE: Final = 0.8
"""The part of that time in which the leader waits for responses."""
OWN_SHARE: Final = 0.6
"""The part of that time after which a node responds without the evidence that it still collects."""
LONGEST_GAP_S: Final = 1.0
"""The longest time between two snapshots of a worker; a check, if that is shorter."""


class Known(Record, frozen=True, kw_only=True):
    """The evidence of a stall: this node's, and what follows from that of all nodes.

    `conclusion` is that of this node's evidence alone if there was none in time. `None` means none at all.
    """

    at_s: float
    collected: Collected
    conclusion: Conclusion | None


class HangWatch:
    """Checks the workers of one round after another. Between rounds, and without a limit, it does nothing.

    At half of a limit, and at the limit, all nodes are asked for evidence, and each node acts on their conclusion. A
    hang is reported again after another limit if the workers were not stopped.

    Args:
        run: The run's handle.
        hang_s: `--hang-timeout`; 0 means none.
        startup_s: `--startup-timeout`; 0 means none.
        files: The memory with the workers' heartbeats.
        collector: Takes their stacks.
        snapshots: Takes snapshots of their process groups.
        fails: Whether a hang is a failure. If not, it is only printed and published.
        fields: The hook's fields in the status.
        clock: This node's.
        auto: Learns `hang_s` from the run. `None` means that it stays as given.
        ras: Queries NCCL's RAS service. `None` means that it is not used.
    """

    def __init__(
        self,
        run: RunHandle,
        hang_s: float,
        startup_s: float,
        *,
        files: BeatFiles,
        collector: Stacks,
        snapshots: Snapshots,
        fails: bool = True,
        fields: PublishedFields | None = None,
        clock: Clock = SYSTEM_CLOCK,
        auto: AutoLimit | None = None,
        ras: RasQueries | None = None,
    ) -> None:
        self.run = run
        self._auto = auto
        self._ras = ras
        self.clock = clock
        self._script_beats = ScriptBeats(run, files)
        self._collector = Collector(run, collector, snapshots, clock=clock)
        self._limits = hangs.Limits(hang_s=hang_s, startup_s=startup_s)
        self._fails = fails
        self._status = HangStatus(run, fields or PublishedFields(run.publish))
        self._told_blind = False
        self._round: Round | None = None
        self._seen = Sightings(run, self._script_beats, {}, clock=clock, on_blind=self._notice_blind)
        self._watch: hangs.Watch | None = None
        self._timer: RunTimer | None = None
        self._others = peers.Others()
        # The stall about which all nodes are asked, what has arrived for it so far, and the last that was complete.
        self._stall: hangs.Stall | None = None
        self._alone = False
        self._excused = False
        """Whether stacks that were just collected show a long operation that is no hang."""
        self._collected: Collected | None = None
        self._conclusion: Conclusion | None = None
        self._known: Known | None = None
        # The question that waits for this node's response, and the heartbeats when its evidence was collected.
        self._serial: int | None = None
        self._respond_timer: RunTimer | None = None
        self._beats: Mapping[int, float | None] = {}
        self._dump_count = 0
        self._episode = 0
        self._deferred = False
        self._reported = False

    # --- a round

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check workers that were just started."""
        self._end()
        self._status.over()
        if self._auto is not None:
            self._limits = self._auto.begin(self._limits, event.round.world_size)
        elif not (self._limits.hang_s or self._limits.startup_s):
            return
        self._round = event.round
        pids = dict(enumerate(event.pids))
        self._seen = Sightings(self.run, self._script_beats, pids, clock=self.clock, on_blind=self._notice_blind)
        self._watch = hangs.begin(self._limits, pids, now_s=self.clock.monotonic_s())
        self._others = peers.Others()
        self._dump_count = 0
        self._deferred = self._reported = False
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
        self._stall = self._known = self._collected = self._conclusion = self._serial = None
        self._alone = self._excused = False
        self._forget_ras()
        self._collector.cancel()
        self._cancel_timer()
        self._cancel_response()
        self._status.stopped()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_response(self) -> None:
        if self._respond_timer is not None:
            self._respond_timer.cancel()
            self._respond_timer = None

    def _forget_ras(self) -> None:
        if self._ras is not None:
            self._ras.forget()

    def _notice(self, text: str) -> None:
        self.run.notice(text, named=False)  # each of our lines says what it is about

    def _notice_blind(self) -> None:
        if not self._told_blind:
            self._told_blind = True
            self._notice(BLIND)

    # --- looks

    def _look_later(self) -> None:
        self._timer = self.run.call_later(self._limits.look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._watch is None or not self._watch.workers:
            return
        before = self._watch
        self._watch, verdict = self._looked(before)
        if self._auto is not None:
            self._watch = self._auto.learn(before, self._watch, self._others.now(before))
            self._limits = self._watch.limits
        if self._watch.suspended and not before.suspended:
            self._notice(SUSPENDED)
        self._act(verdict)

    def _looked(self, watch: hangs.Watch) -> tuple[hangs.Watch, hangs.Verdict]:
        sightings = self._sightings(watch)
        return hangs.look(watch, sightings, now_s=self.clock.monotonic_s(), elsewhere=self._others.now(watch))

    def _sightings(self, watch: hangs.Watch) -> dict[int, hangs.Sighting]:
        return self._seen.look(watch, collecting=watch.workers if self._collector.busy else ())

    def _act(self, verdict: hangs.Verdict) -> None:
        match verdict:
            case hangs.Stall() if verdict.hung or self._episode <= MAX_WARNINGS:
                self._consult(verdict)
                return
            case hangs.Recovered():
                if self._episode <= MAX_WARNINGS and not self._has_failed():
                    self._notice(RECOVERED if self._episode < MAX_WARNINGS else f"{RECOVERED}; {NO_MORE}")
                self._episode += 1
                self._seen.forget_cpu()
                self._forget_ras()
                self._deferred = self._reported = False
                self._known = None
                self._status.over()
        self._look_later()

    def _has_failed(self) -> bool:
        """Return whether a worker has written an error: what it printed about that is no progress."""
        return any(each.error_file and Path(each.error_file).exists() for each in self.run.workers())

    # --- the evidence of all nodes

    @property
    def _wait_s(self) -> float:
        return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, WAIT_LOOKS * self._limits.look_s))

    def _consult(self, stall: hangs.Stall) -> None:
        """Have all nodes collect evidence before a stall is reported, unless that was done just now."""
        known, now_s = self._known, self.clock.monotonic_s()
        if known is not None and now_s - known.at_s <= self._limits.look_s:
            self._judge(stall, known)
            return
        self._stall, self._alone = stall, False
        self._timer = self.run.call_later(self._wait_s, self._go_on_alone)
        self.run.ask_nodes(HANG_TOPIC, within_s=self._wait_s * NODES_SHARE)

    def on_nodes_asked(self, event: NodesAsked) -> None:
        """Collect this node's evidence, as its workers or those of another node may hang."""
        watch = self._watch
        if event.topic != HANG_TOPIC or watch is None:
            return
        self._serial, self._conclusion = event.serial, None
        self._cancel_response()
        if self._stall is None and self._dump_count >= MAX_DUMPS:
            self._respond(watch, None)
            return
        if self._several:  # a node alone has no other node that waits for its response
            self._respond_timer = self.run.call_later(self._wait_s * OWN_SHARE, self._respond_late)
        if not self._collector.busy:
            self._collect(watch)

    def _collect(self, watch: hangs.Watch) -> None:
        self._dump_count += 1
        self._collected = None
        self._seen.begin_cpu(watch.workers)
        self._beats = self._seen.beats()
        gap_s = min(LONGEST_GAP_S, self._limits.look_s)
        self._collector.take(tuple(watch.workers), self._have_collected, gap_s=gap_s, recorder=self._folder / RECORDER)

    def _have_collected(self, collected: Collected) -> None:
        if self._watch is None:
            return
        collected = self._collected = replace(collected, beats=self._beats)
        self._shows_operation(self._watch, collected.stacks)
        if self._ras is not None:
            self._ras.begin(collected.before.values())
        # What workers read and wrote for their snapshots is no sign of life.
        self._watch = self._seen.without_traffic(self._watch, collected.before.keys() & self._watch.workers.keys())
        self._respond(self._watch, collected)
        self._go_on()

    def _respond_late(self) -> None:
        """Respond without evidence of collectives, as it takes too long to collect."""
        self._respond_timer = None
        if self._watch is not None:
            self._respond(self._watch, None)

    def _respond(self, watch: hangs.Watch, collected: Collected | None) -> None:
        serial, self._serial = self._serial, None
        self._cancel_response()
        if serial is not None:
            self.run.answer_nodes(serial, self._response(watch, collected))

    def _response(self, watch: hangs.Watch, collected: Collected | None) -> bytes:
        """Return this node's response; without evidence of collectives if there is none."""
        round_, sightings = self._current_round, self._sightings(watch)
        ranks = {rank: round_.global_rank(rank) for rank in self._seen.pids}
        steps = {rank: seen.step for rank, seen in sightings.items()}
        # A rank whose place is not known may wait for others.
        unknown = ranks.keys() if collected is None else collected.outlived(self._seen.beats()) & ranks.keys()
        waiting = [] if collected is None else [ranks[rank] for rank in collected.waiting - unknown]
        may_wait = [ranks[rank] for rank in (unknown if collected is None else unknown | collected.may_wait)]
        return asking.encoded_response(
            None if collected is None else self._evidence(watch, collected, ranks, steps),
            node_steps(watch, sightings, node_id=round_.node_id, ranks=ranks, waiting=waiting, may_wait=may_wait),
            token=round_.token,
            node_count=round_.node_count,
            heartbeats=any(seen.beat_s is not None for seen in sightings.values()),
        )

    def _evidence(
        self, watch: hangs.Watch, collected: Collected, ranks: Mapping[int, int], steps: Mapping[int, int | None]
    ) -> NodeEvidence:
        return node_evidence(
            self._current_round.node_id,
            ranks,
            collected,
            world_size=self._current_round.world_size,
            running=watch.workers,
            moved=collected.outlived(self._seen.beats()),
            steps=steps,
        )

    def on_concluded(self, event: Concluded) -> None:
        """Use what follows from the evidence of all nodes."""
        watch, round_ = self._watch, self._round
        if event.topic != HANG_TOPIC or watch is None or round_ is None:
            return
        try:
            conclusion = asking.decoded_conclusion(event.data)
        except ValueError:  # of a leader with another version: this node goes on alone
            return
        if conclusion.token != round_.token:
            return
        self._conclusion = conclusion
        if self._several:
            self._others.take(conclusion.steps, watch)
        self._go_on()

    def _go_on_alone(self) -> None:
        """Judge a stall by this node's evidence: there is no conclusion in time."""
        self._timer = None
        self._alone = True
        collected = self._collected
        if collected is not None and (
            collected.begun_s < self.clock.monotonic_s() - 2 * LONGEST_WAIT_S or collected.outlived(self._seen.beats())
        ):
            self._collected = None  # of an earlier question
        self._go_on()

    def _go_on(self) -> None:
        """Judge a stall, or keep the evidence that another node requested, when all is there that can be expected."""
        watch, stall = self._watch, self._stall
        if watch is None or self._collector.busy or (self._conclusion is None and not self._alone):
            return
        if self._collected is None:
            self._conclusion = self._conclusion if stall is not None else None
            if stall is not None:
                self._collect(watch)
            return
        collected, conclusion = self._collected, self._conclusion
        if conclusion is None:
            node_id = self._current_round.node_id
            conclusion = asking.concluded({node_id: self._response(watch, collected)})
        self._known = Known(at_s=self.clock.monotonic_s(), collected=collected, conclusion=conclusion)
        self._collected, self._conclusion, self._alone = None, None, False
        if stall is None:
            self._excused = False
            self._keep(self._known, self._reports(watch, collected, {}))
            return
        self._cancel_timer()
        self._judge(stall, self._known)

    # --- what follows

    def _judge(self, stall: hangs.Stall, known: Known) -> None:
        """Report a stall, unless workers make progress, or the other nodes are a reason to wait."""
        self._stall = None
        watch = self._watch
        if watch is None:
            return
        if self._excused:
            self._excused = False
            self._look_later()
            return
        if not stall.hung:
            judged = peers.judged(stall, watch, self._others.now(watch))
            if judged is None:
                self._watch = replace(watch, warned=False)
                self._look_later()
                return
            stall = judged
        elif self._several:  # by the current state of all nodes, which excuses more than that at half of the limit
            self._watch, verdict = self._looked(replace(watch, reported_s=None))
            watch = self._watch
            if not isinstance(verdict, hangs.Stall) or not verdict.hung:
                self._act(verdict)
                return
            stall = verdict
        moved = self._seen.moved(watch)
        outlived = known.collected.outlived(self._seen.beats()) - moved
        if any(each.local_rank in outlived for each in stall.late):
            # It has moved between its stack and the last check, and its stack does not show where it hangs now.
            self._known = None
            self._consult(stall)
            return
        # A worker that has ended or makes progress meanwhile is no longer a cause of the hang.
        active = known.collected.unstable & watch.workers.keys()
        still = watch.workers.keys() - moved - active
        watch = self._watch = peers.alive(watch, active)
        late = tuple(each for each in stall.late if each.local_rank in still)
        if late:
            behind = tuple(rank for rank in stall.behind if rank in still)
            self._tell(watch, replace(stall, late=late, behind=behind), known)
        elif not stall.hung:
            self._watch = replace(watch, warned=False)
        self._look_later()

    def _shows_operation(self, watch: hangs.Watch, stacks: Mapping[int, WorkerStack]) -> None:
        """Protect workers whose stacks show a long operation that is no hang, and which was not known."""
        guarded = watch
        for rank, stack in stacks.items():
            if rank in guarded.workers and (seen := long_operation(stack.frames)):
                before, guarded = guarded, hangs.protect(guarded, rank, seen.name, seen.limit_s)
                if guarded is not before:
                    who = f"the stack of rank {self._current_round.global_rank(rank)}"
                    self._notice(f"{who} shows {seen.name}: no hang for up to {seen.limit_s:.0f} s")
        if guarded is not watch:
            self._watch, self._excused = replace(guarded, warned=False), True

    def _tell(self, watch: hangs.Watch, stall: hangs.Stall, known: Known) -> None:
        quiet_s = {each.local_rank: each.quiet_s for each in stall.late}
        folder, ranks = self._keep(known, self._reports(watch, known.collected, quiet_s))
        conclusion, own = known.conclusion, map(self._current_round.global_rank, self._seen.pids)
        report = HangReport(
            stall=stall,
            ranks=ranks,
            blamed=blame(stall, ranks, conclusion, free_elsewhere=self._free_elsewhere(conclusion)),
            folder=folder,
            recorder=known.collected.recorder,
            elsewhere=() if conclusion is None else peers.behind(conclusion.steps, stall, own),
            conclusion=conclusion,
            ras=None if self._ras is None else self._ras.said,
        )
        if stall.hung:
            self._report(report)
        else:
            self._notice(warning(report))
            self._status.suspect(report)

    def _report(self, report: HangReport) -> None:
        """Report a hang, later if another node has its cause: that node knows more, and reports it itself.

        A hang that is no failure stays with that node, unless a node does not respond: that may be the one.
        """
        alone = self._fails or not self._is_complete(report.conclusion)
        if self._leaves_it(report) and not (self._deferred and alone):
            self._deferred = True
            self._status.hung(report, counts=False)
            return
        first, self._reported = not self._reported, True
        self._status.hung(report, counts=first)
        if self._fails:
            self.run.report(failure_report(report))
            if self._auto is not None:
                self._auto.after_hang()
        elif first:
            self._notice(f"{summary(report)}; {NO_FAILURE}")

    def _leaves_it(self, report: HangReport) -> bool:
        if not self._several:
            return False
        node_id, conclusion = self._current_round.node_id, report.conclusion
        if conclusion is not None and conclusion.reporter:
            return conclusion.reporter != node_id
        if may_wait_elsewhere(report) and self._free_elsewhere(conclusion):
            return True
        if not self._deferred and conclusion is not None and not report.stall.behind:
            # A rank behind may be the cause if its node was not able to respond with its stack in time.
            own = map(self._current_round.global_rank, self._seen.pids)
            maybe = peers.behind(conclusion.steps, report.stall, own, certain=False)
            if any(one.may_wait and one.node_id in conclusion.free for one in maybe):
                return True
        return waits_elsewhere(report) or report.blames_others

    def _free_elsewhere(self, conclusion: Conclusion | None) -> bool:
        """Return whether a rank of another node may run and wait nowhere: one does, or nothing is known of it."""
        if conclusion is None or not self._is_complete(conclusion):
            return self._several
        return bool(set(conclusion.free) - {self._current_round.node_id})

    def _is_complete(self, conclusion: Conclusion | None) -> bool:
        """Return whether all nodes of the round have responded."""
        return conclusion is not None and conclusion.steps.node_count >= self._current_round.node_count

    def _reports(
        self, watch: hangs.Watch, collected: Collected, quiet_s: Mapping[int, float]
    ) -> tuple[RankReport, ...]:
        global_rank = self._current_round.global_rank
        return tuple(
            self._seen.report(
                rank,
                global_rank(rank),
                watched,
                collected.stacks.get(rank, WorkerStack()),
                call=collected.calls.get(rank, ""),
                responded=rank in collected.before,
                quiet_s=quiet_s.get(rank),
            )
            for rank, watched in sorted(watch.workers.items())
        )

    # --- the round, and its files

    @property
    def _current_round(self) -> Round:
        assert self._round is not None
        return self._round

    @property
    def _several(self) -> bool:
        return self._round is not None and self._round.node_count > 1

    @property
    def _folder(self) -> Path:
        return Path(self.run.run_dir()) / FOLDER / f"round_{self._current_round.index}_{self._episode}"

    def _keep(self, known: Known, ranks: tuple[RankReport, ...]) -> tuple[str, tuple[RankReport, ...]]:
        """Write a file for each rank, if there are stacks, and the conclusion. Return their folder, and the ranks."""
        folder = self._folder
        has_stacks = any(each.stack.text for each in ranks)
        if not has_stacks and not known.collected.recorder:
            return "", ranks
        try:
            if known.conclusion is not None:
                write_conclusion(folder, content_of(known.conclusion))
            if not has_stacks:
                return str(folder), ranks
            names = write_stacks(folder, {each.global_rank: (headline(each), each.stack.text) for each in ranks})
        except OSError as error:
            self._notice(f"stacks can't be written to {str(folder)!r}: {error.strerror}")
            return "", ranks
        return str(folder), tuple(replace(each, stack_file=names[each.global_rank]) for each in ranks)
