"""The watch of `--on-straggler`: reads the times of steps and collectives, and reports lasting stragglers."""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import (
    SYSTEM_CLOCK,
    Clock,
    FailureClass,
    FailureReport,
    Round,
    RunHandle,
    RunTimer,
    WorkerEnded,
    WorkerFault,
    WorkersStarted,
)
from elastic_core.api.feed import AnswersGathered, Concluded, NodesAsked
from elastic_watch import vitals
from elastic_watch.beat_file import BeatFiles
from elastic_watch.collectives.evidence import Snapshot
from elastic_watch.published import PublishedFields
from elastic_watch.recorder.collector import SnapshotCollector
from elastic_watch.stragglers import texts
from elastic_watch.stragglers.exchange import (
    concluded,
    pack,
    pack_conclusion,
    unpack_conclusion,
)
from elastic_watch.stragglers.lasting import Change, Straggler, Subject, after_window, subject
from elastic_watch.stragglers.measures import Arrivals, StepTimes, since
from elastic_watch.stragglers.starting import TOPIC, called_steps
from elastic_watch.stragglers.window import Judged, NodeWindow, Past, Window, is_whole, judge

ASK_EVERY: Final = 2
"""The number of windows between two requests to all nodes."""
ANSWER_S: Final = 5.0
"""How long all nodes have to respond."""
REPORT_AGAIN: Final = 20
"""The number of windows after which a straggler that lasts is reported again."""
MAX_FIELDS: Final = 8
"""The most stragglers in the status."""
OLD_WINDOWS: Final = 3
"""A window older than this many intervals is not sent to other nodes."""


class StragglerWatch:
    """Judges the workers of one round after another.

    Args:
        run: The run's handle.
        files: The memory with the workers' heartbeats.
        reports: Whether a straggler is reported as a failure, for the policy.
        interval_s: The time between two looks.
        collector: Takes the times of the workers' collectives.
        fields: The hook's fields in the status.
        clock: This node's.

    Threading: the hooks' thread.
    """

    def __init__(
        self,
        run: RunHandle,
        *,
        files: BeatFiles,
        reports: bool,
        interval_s: float,
        collector: SnapshotCollector,
        fields: PublishedFields,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.run = run
        self._files = files
        self._reports = reports
        self._interval_s = interval_s
        self._collector = collector
        self._fields = fields
        self._clock = clock
        self._timer: RunTimer | None = None
        self._shown: dict[Subject, Straggler] = {}
        self._leader_past = Past()
        self._begin(None, {})

    # --- a round

    def begin(self, event: WorkersStarted, *, without: Collection[int] = ()) -> None:
        """Begin to watch a round's workers, except those local ranks, which have ended."""
        self.end()
        self._begin(event.round, {rank: pid for rank, pid in enumerate(event.pids) if rank not in without})
        self._look_later()

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget a worker that has ended."""
        self._pids.pop(event.exit.local_rank, None)

    def end(self) -> None:
        """Stop watching. Stragglers of the round are forgotten."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        before, self._shown = self._shown, {}
        if before:
            self._publish(before, now_s=0.0)
        self._begin(None, {})

    def _begin(self, round_: Round | None, pids: dict[int, int]) -> None:
        self._round, self._pids = round_, pids
        self._past, self._leader_past = Past(), Past()
        self._local: Mapping[Subject, Straggler] = {}
        self._global: Mapping[Subject, Straggler] = {}
        self._shown = {}
        self._due: dict[Subject, int] = {}
        """The window from which on a straggler is reported again."""
        self._after_ns = self._now_ns()
        self._waited = self._run_delays()
        self._windows = 0
        self._latest: tuple[int, NodeWindow] | None = None
        self._serial = 0

    def _now_ns(self) -> int:
        return int(self._clock.monotonic_s() * 1e9)

    # --- looks

    def _look_later(self) -> None:
        self._timer = self.run.call_later(self._interval_s, self._look)

    def _look(self) -> None:
        self._timer = None
        round_ = self._round
        if round_ is None:
            return
        self._serial += 1
        serial = self._serial

        def taken(snapshots: Mapping[int, Snapshot]) -> None:
            if serial == self._serial and self._round is round_:
                self._judge(snapshots)

        self._collector.take_later(taken, ranks=tuple(self._pids), arrivals=True)

    def _judge(self, snapshots: Mapping[int, Snapshot]) -> None:
        round_, now_ns = self._round, self._now_ns()
        if round_ is None:
            return
        window = Window(
            node_id=round_.node_id,
            steps=self._steps(round_),
            arrivals={
                round_.global_rank(rank): _arrivals(own, self._after_ns)
                for rank, own in snapshots.items()
                if rank in self._pids
            },
            waits=self._waits(round_, now_ns),
            mixed=_is_mixed(snapshots.values()),
        )
        if is_whole(window.steps, window.arrivals):
            judged = judge(window, self._past)
            self._have_window(round_, judged, now_ns)
        self._look_later()

    def _have_window(self, round_: Round, judged: Judged, now_ns: int) -> None:
        slow = [replace(each, node_id=round_.node_id) for each in judged.slow]
        begun_s, self._after_ns = self._after_ns / 1e9, now_ns
        self._waited = self._run_delays()
        change = after_window(self._local, slow, begun_s=begun_s)
        self._local = change.followed
        known = tuple(each.slow for each in change.stragglers)
        self._latest = now_ns, replace(judged.shared, known=known)
        self._windows += 1
        self._show(round_)
        if round_.node_count > 1 and round_.node_rank == 0 and self._windows % ASK_EVERY == 0:
            self.run.ask_nodes(TOPIC, within_s=ANSWER_S)

    def _steps(self, round_: Round) -> dict[int, StepTimes]:
        """Return the steps since the last window of ranks that report any: heartbeats, or calls of `should_stop`."""
        beats = self._files.step_times()
        calls = called_steps(self.run)
        found = {}
        for rank in self._pids:
            own: StepTimes = max(beats.get(rank, ()), calls.get(rank, ()), key=len)
            if own:
                found[round_.global_rank(rank)] = since(own, self._after_ns)
        return found

    def _run_delays(self) -> dict[int, float]:
        delays = {rank: vitals.run_delay_s(pid) for rank, pid in self._pids.items()}
        return {rank: delay for rank, delay in delays.items() if delay is not None}

    def _waits(self, round_: Round, now_ns: int) -> dict[int, float]:
        """Return the part of the time since the last window in which each rank waited for a processor."""
        took_s = max(1e-3, (now_ns - self._after_ns) / 1e9)
        return {
            round_.global_rank(rank): min(1.0, max(0.0, delay - self._waited[rank]) / took_s)
            for rank, delay in self._run_delays().items()
            if rank in self._waited
        }

    # --- all nodes

    def on_nodes_asked(self, event: NodesAsked) -> None:
        """Send this node's last window."""
        if self._latest is None:
            return
        made_ns, window = self._latest
        if self._now_ns() - made_ns <= OLD_WINDOWS * self._interval_s * 1e9:
            self.run.answer_nodes(event.serial, pack(window))

    def on_answers_gathered(self, event: AnswersGathered) -> None:
        """Judge the windows of all nodes."""
        self.run.conclude_nodes(event.serial, pack_conclusion(concluded(event.answers, self._leader_past)))

    def on_concluded(self, event: Concluded) -> None:
        """Use the result for all nodes."""
        round_ = self._round
        if round_ is None:
            return
        try:
            conclusion = unpack_conclusion(event.data)
        except ValueError as err:
            self.run.notice(f"the result about slow nodes can't be used: {err}", named=False)
            return
        begun_s = self._clock.monotonic_s() - ASK_EVERY * self._interval_s
        change: Change = after_window(self._global, conclusion.slow, begun_s=begun_s)
        self._global = change.followed
        self._show(round_)

    # --- what users see

    def _show(self, round_: Round) -> None:
        """Report the stragglers of this node; on the first node, those of the run."""
        now_s = self._clock.monotonic_s()
        found: dict[Subject, Straggler] = {}
        for each in (*self._global.values(), *self._local.values()):
            if each.lasts and (round_.node_rank == 0 or each.slow.node_id == round_.node_id):
                known = found.get(subject(each.slow), each)
                found[subject(each.slow)] = min(known, each, key=lambda one: one.since_s)
        before, self._shown = self._shown, found
        for key, each in found.items():
            is_new = key not in before
            if is_new:
                self._tell(each, "began", texts.began(each, now_s=now_s))
            if self._reports and each.slow.node_id == round_.node_id and (is_new or self._is_due(key)):
                self._due[key] = self._windows + REPORT_AGAIN
                self.run.report(_report(each, round_, self._pids, now_s=now_s))
        for key, each in before.items():
            if key not in found:
                self._tell(each, "ended", texts.ended(each, now_s=now_s))
        if found or before:
            self._publish(before, now_s=now_s)

    def _is_due(self, key: Subject) -> bool:
        return self._windows >= self._due.get(key, 0)

    def _tell(self, straggler: Straggler, state: str, text: str) -> None:
        slow = straggler.slow
        self.run.notice(text, named=False)
        self.run.record(
            "straggler",
            {
                "state": state,
                "rank": slow.rank,
                "node": slow.node_id,
                "score": round(slow.score, 3),
                "own_s": slow.own_s,
                "others_s": slow.others_s,
                "past_s": slow.past_s,
                "waits": slow.waits,
                "summary": text,
            },
        )

    def _publish(self, before: Mapping[Subject, Straggler], *, now_s: float) -> None:
        """Update the fields of the status and the metrics, whose series are those of stragglers alone."""
        found = sorted(self._shown.values(), key=lambda each: each.slow.score)
        fields = {texts.who(each.slow): texts.field(each, now_s=now_s) for each in found[:MAX_FIELDS]}
        self._fields.put("stragglers", {"stragglers": len(found), **fields} if found else {})
        self._measure("elastic_stragglers", len(found))
        for key, each in {**before, **self._shown}.items():
            labels = f'rank="{"" if each.slow.rank is None else each.slow.rank}",node="{_escaped(each.slow.node_id)}"'
            self._measure(f"elastic_straggler_score{{{labels}}}", each.slow.score if key in self._shown else 1.0)

    def _measure(self, name: str, value: float) -> None:
        self.run.record("metric", {"group": "elastic", "name": name, "value": round(value, 3)})


def _arrivals(snapshot: Snapshot, after_ns: int) -> Arrivals:
    return [(each.group, each.seq, each.entered_ns) for each in snapshot.arrivals if each.entered_ns > after_ns]


def _is_mixed(snapshots: Collection[Snapshot]) -> bool:
    """Return whether ranks have entered collectives of groups with different members."""
    used = {group.members for each in snapshots for group in each.groups if group.enqueued and group.members}
    return len(used) > 1 or any(each.groups_dropped for each in snapshots)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _report(straggler: Straggler, round_: Round, pids: Mapping[int, int], *, now_s: float) -> FailureReport:
    slow = straggler.slow
    local_rank = -1 if slow.rank is None else slow.rank - round_.base_rank
    return FailureReport(
        summary=texts.summary(straggler, now_s=now_s),
        failure_class=FailureClass.STRAGGLER,
        workers=(WorkerFault(local_rank=local_rank),) if local_rank in pids else (),
        fields={"score": round(slow.score, 3), "own_s": slow.own_s, "others_s": slow.others_s},
    )
