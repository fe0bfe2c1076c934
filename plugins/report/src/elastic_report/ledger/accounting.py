"""The accounting of a node: events of the agent's feed and its workers' progress become lines. No I/O, no clock."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Failure, FailureClass, Record, Restart, Round, Stop, WorkerExit
from elastic_core.api.feed import Absence, RunEvent
from elastic_core.api.rendezvous import Decided, Resumed, RosterMember, RoundEnded, StopOrdered, Suspended
from elastic_core.api.tools import duration_text
from elastic_report.ledger.document import (
    Alive,
    Bound,
    End,
    Hung,
    Line,
    Note,
    Progress,
    RoundLine,
    RoundOver,
    Span,
    WorkerLine,
)
from elastic_report.ledger.hook_notes import hook_note
from elastic_report.ledger.progress import Known, WorkerProgress, worked
from elastic_report.ledger.span_lines import Part, SpanLines, span_of
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Totals
from elastic_report.masking import masked

SIGN_LIMIT_S: Final = 600.0
"""If no worker has shown a sign of life for so long, none is expected: the workers count as productive."""
LIKELY_S: Final = 60.0
"""How long workers without a sign are shown as starting. Later they are shown as productive; neither is counted."""
SILENT_S: Final = 10.0
"""How long after the start of workers those without a sign may hold the count back, while others report."""
CLOCK_JUMP_S: Final = 1.0
MOST_NOTES: Final = 64
"""The most notes about events of hooks between two reads of the progress."""
_TEXT_CHARS: Final = 240
_MOST_MARKS: Final = 64
_SHORTEST_S: Final = 0.0005
"""A state that was left earlier does not count: the next one counts from its begin."""

_WITHOUT_WORKERS: Final = {
    "created": S.RENDEZVOUS,
    "gating": S.RENDEZVOUS,
    "joining": S.RENDEZVOUS,
    "refused": S.EXCLUDED,
    "awaiting": S.DECIDING,
    "waiting": S.RESTARTING,
    "leaving": S.STOPPING,
    "ended": S.STOPPING,
}
"""The states of an agent in which none of its workers exists."""
_OTHERS: Final = {
    "preparing": S.STARTING,
    "starting": S.STARTING,
    "deciding": S.DECIDING,
    "stopping": S.STOPPING,
}
_UNTIL_OVER: Final = ("preparing", "starting", "running", "deciding", "stopping")
"""The states of an agent whose workers may exist."""
_QUIET: Final = frozenset({"metric", "listening", "queued", "fields_published"})


class _Worker(Record, frozen=True, kw_only=True):
    global_rank: int
    pid: int
    begin_s: float
    end_s: float | None = None
    code: int | None = None
    stopped: bool = False


class Accounting:
    """The accounting of one agent. Threading: one call at a time.

    Args:
        started_s: The agent's start.
        started_ns: The same moment, in nanoseconds since the Unix epoch.
        high_step: The highest step of earlier attempts of the run. `None` means not known.
    """

    def __init__(self, *, started_s: float, started_ns: int, high_step: int | None = None) -> None:
        self._out = SpanLines()
        self.tally = self._out.tally
        """The lines so far."""
        self.high_step = high_step
        """The highest step of the run before this round."""
        self.step: int | None = None
        """The highest step of this node's workers in this round, or the last one with steps."""
        self.step_s: float | None = None
        self.round: int | None = None
        """The round whose workers' progress is to be read; the number of the last one after it."""
        self._now_s = started_s
        self._clock_ns = started_ns - round(started_s * 1e9)
        self._agent = "created"
        self._reason = ""
        self._store_away = self._left_out = self._draining = self._holding = False
        self._at: Part = Part(state=S.RENDEZVOUS, begin_s=started_s, end_s=started_s, round=None, reason="")
        self._queue: deque[Part | Line] = deque()
        # The round.
        self._over = self._read = True
        self._over_by = ""
        self._workers: dict[int, _Worker] = {}
        self._spawned_s = started_s
        self._work_end_s: float | None = None
        self._hung_s: float | None = None
        self._detected_s: float | None = None
        self._productive: deque[tuple[float, float]] = deque()
        self._saved_s: float | None = None
        self._steps_known = False
        self._next_high: int | None = None
        # The run.
        self._had_steps = self._had_signs = False
        self._reporting: set[int] = set()
        """The local ranks that reported steps in an earlier round."""
        self._notes = 0
        self._end: tuple[str, int, str] = ("", 0, "")

    # --- what it returns

    @property
    def wants_progress(self) -> bool:
        """Whether the workers of the round have ended, and their progress was not read since."""
        return not self._read and self._agent not in _UNTIL_OVER

    @property
    def has_workers(self) -> bool:
        """Whether workers of a round exist, or their progress was not read since."""
        return not self._read

    @property
    def state(self) -> S:
        """The node's state."""
        return self.tail()[-1].state

    @property
    def since_s(self) -> float:
        """When the node entered its state."""
        tail = self.tail()
        return tail[-1].begin_s

    def take(self) -> list[Line]:
        """Return the lines that are new since the last call."""
        return self._out.take()

    def tail(self, at_s: float | None = None) -> list[Span]:
        """Return the spans that are not written yet, up to a moment: the last one is the node's state."""
        now_s = max(self._now_s, at_s or 0.0)
        parts = [each for each in self._queue if isinstance(each, Part)]
        spans = [] if self._out.open is None else [self._out.open]
        for part in [*parts, replace(self._at, end_s=max(now_s, self._at.begin_s))]:
            state = self._likely(part.end_s) if part.state is None else part.state
            if spans and (spans[-1].state, spans[-1].round) == (state, part.round):
                spans[-1] = replace(spans[-1], end_s=part.end_s)
            else:
                spans.append(span_of(part, state))
        return spans

    def totals(self, at_s: float | None = None) -> Totals:
        """Return the totals up to a moment. Time whose state is not certain yet is productive at most."""
        tail = self.tail(at_s)
        uncertain = [each for each in [*self._queue, self._at] if isinstance(each, Part) and each.state is None]
        now_s = tail[-1].end_s
        maybe_s = sum((now_s if part is self._at else part.end_s) - part.begin_s for part in uncertain)
        productive_s = sum(span.end_s - span.begin_s for span in tail if span.state is S.PRODUCTIVE)
        return self.tally.totals(tail, maybe_s=min(maybe_s, productive_s) if not self._settled else 0.0)

    def live_workers(self, workers: Mapping[int, WorkerProgress]) -> list[WorkerLine]:
        """Return the lines of the workers that run, for a live ledger."""
        if self._read:
            return []
        lines = [(each, self._worker_line(rank, workers.get(rank))) for rank, each in self._workers.items()]
        return [replace(line, end_s=worker.end_s) for worker, line in lines]

    @property
    def _settled(self) -> bool:
        """Whether the workers' state since the last read is determined, as they have shown signs."""
        waited = self._now_s - self._spawned_s >= SIGN_LIMIT_S
        return self._had_steps or self._steps_known or waited

    def _likely(self, at_s: float) -> S:
        if self._out.open is not None and self._out.open.round == self.round and self._out.open.state in _FROM_PROGRESS:
            return self._out.open.state
        early = self._had_steps or self._had_signs or at_s - self._spawned_s < LIKELY_S
        return S.STARTING if early else S.PRODUCTIVE

    # --- events

    def observe(self, event: RunEvent) -> None:
        """Apply the next event of the feed."""
        at_s = self._now_s = max(self._now_s, event.at_s)
        self._watch_clock(event)
        match event.name, event.values:
            case "step", values:
                self._step(values, at_s)
            case "round_joined", {"round": Round() as round_, **more}:
                self._joined(round_, more.get("members"), at_s)
            case "workers_started", {"round": Round() as round_, "pids": [*pids]}:
                self._workers = {
                    rank: _Worker(global_rank=round_.global_rank(rank), pid=pid, begin_s=at_s)
                    for rank, pid in enumerate(pids)
                    if isinstance(pid, int)
                }
                self._spawned_s = at_s
            case "worker_ended", {"exit": WorkerExit() as exit}:
                self._worker_ended(exit, at_s)
            case "failure_seen", {"failure": Failure() as failure, **more}:
                self._failed(failure, more.get("workers"), event)
            case "decision_taken", {"failure": Failure() as failure, "decision": decision}:
                rule = getattr(decision, "rule", "")
                text = type(decision).__name__.lower() + (f" ({rule})" if rule else "")
                self._note("decision", text, at_s)
                self._hung_elsewhere(failure, at_s)
            case "draining", {"signum": signum}:
                self._draining = True
                self._note("drain", f"ordered to stop (signal {signum})", at_s)
            case "stop_planned", {"reason": str(reason)}:
                self._hold(True, reason, at_s)
            case "workers_stopping", {"reason": str(reason)}:
                self._hold(False, reason, at_s)
            case "store_reachable", {"reachable": bool(reachable), "text": str(text)}:
                self._set_store(away=not reachable, text=text, at_s=at_s)
            case "left_out", {"absence": Absence() | None as absence}:
                self._leave_out(absence, at_s)
            case "agent_stopped", {"outcome": str(outcome), "exit_code": int(code), "reason": str(reason)}:
                self._end = (outcome, code, reason)
            case name, values if event.source and name not in _QUIET and self._notes < MOST_NOTES:
                self._notes += 1
                self._note(*hook_note(name, values), at_s)
            case _:
                pass  # no second is counted otherwise because of it

    def agreed(self, high_step: int | None) -> None:
        """Set the highest step of the run before this round, as all nodes know it."""
        self.high_step = _most(self.high_step, high_step)

    def close(self, workers: Mapping[int, WorkerProgress], at_s: float) -> None:
        """End the ledger: the agent ends at this moment."""
        self._now_s = max(self._now_s, at_s)
        self._agent = "ended"
        self._enter(at_s)
        if not self._read:
            self.read(workers, self._now_s, final=True)
        self._end_round("end", "", self._now_s)
        self._settle({}, self._now_s, final=True)
        self._out.flush()
        outcome, code, reason = self._end
        self._out.add(End(at_s=self._now_s, outcome=outcome, exit_code=code, reason=_text(reason)))

    def _watch_clock(self, event: RunEvent) -> None:
        offset_ns = event.at_ns - round(event.at_s * 1e9)
        jumped_s = (offset_ns - self._clock_ns) / 1e9
        if abs(jumped_s) >= CLOCK_JUMP_S:
            way = "forwards" if jumped_s > 0 else "backwards"
            self._note("clock", f"the wall clock jumped {way} by {duration_text(abs(jumped_s))}", event.at_s)
            self._clock_ns = offset_ns

    # --- steps of the agent

    def _step(self, values: Mapping[str, object], at_s: float) -> None:
        state, reason = str(values.get("state", "")), str(values.get("state_reason", ""))
        match values:
            case {"event": "RoundFormed", "round": Round() as round_}:
                self._begin_round(round_)
                self._set_store(away=False, text="", at_s=at_s)
            case {"event": "RoundChanged", "change": RoundEnded() as change}:
                self._members_changed(change, at_s)
            case {"event": "RoundChanged", "change": Decided(failure=None, decision=decision)}:
                by = "end" if isinstance(decision, Stop) else "restart"
                self._end_round(by, decision.reason or decision.rule, at_s)
            case {"event": "RoundChanged", "change": Decided(failure=Failure() as failure)}:
                self._end_round("failure", failure.summary, at_s)
                self._hung_elsewhere(failure, at_s)
            case {"event": "RoundChanged", "change": StopOrdered() as change}:
                self._end_round("failure", change.reason, at_s)
            case {"event": "RoundChanged", "change": Suspended(reason=text)}:
                self._set_store(away=True, text=text, at_s=at_s)
            case {"event": "RoundChanged", "change": Resumed()}:
                self._set_store(away=False, text="", at_s=at_s)
            case {"event": "DecisionMade", "failure": Failure() as failure, "decision": Restart() | Stop()}:
                self._end_round("failure", failure.summary, at_s)
            case {"event": "RestartRequested", "reason": str(text)} if state == "stopping":
                self._end_round("restart", text, at_s)
            case {"event": "StopRequested", "signum": signum} if state in ("stopping", "leaving"):
                self._end_round("drain", f"signal {signum}", at_s)
        if state:
            self._agent = state
        if state in _WITHOUT_WORKERS:
            self._holding = False
            self._end_round("end", reason, at_s)
        if values.get("entered", True):
            self._reason = _text(reason)
        self._enter(at_s)

    def _state(self) -> S | None:
        """Return the state by the agent's; `None` means that the workers' progress determines it."""
        agent = self._agent
        if agent == "running" or (agent == "stopping" and self._holding):
            finished = self._workers and all(each.code == 0 for each in self._workers.values())
            return (S.DRAINED if self._draining else S.STOPPING) if finished else None
        if self._draining and (agent == "stopping" or agent in _WITHOUT_WORKERS):
            return S.DRAINED
        if agent not in _WITHOUT_WORKERS:
            return _OTHERS.get(agent, S.RENDEZVOUS)
        if self._left_out and agent != "ended":
            return S.EXCLUDED
        own = _WITHOUT_WORKERS[agent]
        return S.STORE_OUTAGE if self._store_away and own is not S.EXCLUDED else own

    def _enter(self, at_s: float) -> None:
        """Begin another part of the time if the state, or the round, differs."""
        at, state = self._at, self._state()
        number = self.round
        if state is at.state and number == at.round:
            return
        if at.state is None and state is not None:
            self._work_end_s = at_s
        if at_s - at.begin_s < _SHORTEST_S:  # passed at once
            self._at = replace(at, state=state, round=number, reason=self._reason)
            return
        self._queue.append(replace(at, end_s=at_s))
        self._at = Part(state=state, begin_s=at_s, end_s=at_s, round=number, reason=self._reason)
        self._settle({}, at_s, final=False, only_known=True)
        if not self._queue and self._out.open is not None and state not in (None, self._out.open.state):
            self._out.flush()  # the state that is over is written at once

    def _hold(self, holding: bool, reason: str, at_s: float) -> None:
        self._holding = holding
        self._reason = _text(reason)
        self._enter(at_s)

    def _set_store(self, *, away: bool, text: str, at_s: float) -> None:
        if away != self._store_away:
            self._store_away = away
            self._note("store_lost" if away else "store_back", text, at_s)
            self._enter(at_s)

    def _leave_out(self, absence: Absence | None, at_s: float) -> None:
        self._left_out = absence is not None
        if absence is not None:
            self._reason = _text(absence.text)
            self._note("excluded", absence.text, at_s)
        self._enter(at_s)

    # --- rounds

    def _begin_round(self, round_: Round) -> None:
        if not self._read:
            self.read({}, self._now_s, final=True)
        self.round = round_.index
        self._over = self._read = False
        self._over_by = ""
        self._workers = {}
        self._steps_known = False
        self._hung_s = self._work_end_s = self._detected_s = self._saved_s = None
        self._productive.clear()

    def _joined(self, round_: Round, members: object, at_s: float) -> None:
        roster = [each for each in members if isinstance(each, RosterMember)] if isinstance(members, tuple) else []
        self._put(
            RoundLine(
                at_s=at_s,
                index=round_.index,
                token=round_.token,
                node_rank=round_.node_rank,
                node_count=round_.node_count,
                world_size=round_.world_size,
                base_rank=round_.base_rank,
                local_world_size=round_.local_world_size,
                members=tuple(each.node_id for each in roster) if round_.node_rank < 2 else (),
                high_step=self.high_step,
            )
        )

    def _members_changed(self, change: RoundEnded, at_s: float) -> None:
        left = change.left
        lost = tuple(node for node in change.lost if node not in left)
        self._end_round("membership", change.reason, at_s, lost=lost, left=left, arrived=change.arrived)
        for name, nodes in (("lost", lost), ("left", left)):
            for node in nodes[:MOST_NOTES]:
                self._note(name, f"{node} {'was lost' if name == 'lost' else 'left'}", at_s, node=node)
        if change.arrived:
            self._note("joined", f"{change.arrived} node{'' if change.arrived == 1 else 's'} joined", at_s)

    def _end_round(
        self,
        by: str,
        reason: str,
        at_s: float,
        *,
        lost: tuple[str, ...] = (),
        left: tuple[str, ...] = (),
        arrived: int = 0,
    ) -> None:
        if self._over or self.round is None:
            return
        self._over, self._over_by = True, by
        self._put(
            RoundOver(
                at_s=at_s,
                index=self.round,
                by=by,
                reason=_text(reason),
                lost=lost,
                left=left,
                arrived=arrived,
            )
        )

    def _worker_ended(self, exit: WorkerExit, at_s: float) -> None:
        worker = self._workers.get(exit.local_rank)
        if worker is None or worker.pid != exit.pid:
            return
        end_s = max(worker.begin_s, min(exit.at_s, at_s))
        self._workers[exit.local_rank] = replace(
            worker, end_s=end_s, code=exit.code, stopped=exit.stop_signal is not None
        )
        self._enter(at_s)

    # --- failures and hangs

    def _failed(self, failure: Failure, workers: object, event: RunEvent) -> None:
        hang = failure.failure_class is FailureClass.HANG
        rank = failure.global_rank
        self._note("hang" if hang else "failure", failure.summary, self._now_s, node=failure.node_id, rank=rank)
        if failure.progress is not None:
            self._next_high = _most(self._next_high, failure.progress)
        times = [getattr(each, "at_ns", None) for each in workers] if isinstance(workers, tuple) else []
        quiet_s = max(((event.at_ns - at_ns) / 1e9 for at_ns in times if isinstance(at_ns, int)), default=0.0)
        if hang and quiet_s > 0 and not self._read:
            self._detected_s = self._now_s if self._work_end_s is None else self._work_end_s
            self._correct(self._now_s - quiet_s, self._detected_s)

    def _hung_elsewhere(self, failure: Failure, at_s: float) -> None:
        """Correct what workers here did while another node's were found to hang."""
        if (
            failure.failure_class is not FailureClass.HANG
            or self._hung_s is not None
            or failure.round_index != self.round
        ):
            return
        self._detected_s = at_s if self._work_end_s is None else self._work_end_s
        if self._read and self.step_s is not None:
            self._correct(self.step_s, self._detected_s)

    def _correct(self, begin_s: float, end_s: float) -> None:
        begin_s = max(begin_s, self._spawned_s)
        if self._hung_s is None and end_s > begin_s:
            self._hung_s = begin_s
            self._put(Hung(begin_s=begin_s, end_s=end_s))

    # --- the workers' progress

    def read(self, workers: Mapping[int, WorkerProgress], at_s: float, *, final: bool = False) -> None:
        """Count the time of the round's workers, as far as their progress determines it.

        Args:
            workers: The progress of those that report any, by local rank.
            at_s: When it was read.
            final: Whether the workers have ended, so that no further sign can come.
        """
        self._now_s = max(self._now_s, at_s)
        self._notes = 0
        workers = {rank: each for rank, each in workers.items() if rank in self._workers}
        steps = [each.step for each in workers.values() if each.step is not None]
        self._steps_known = self._steps_known or bool(steps)
        if steps:
            self.step = max(steps)
            self.step_s = max((each.step_s for each in workers.values() if each.step_s is not None), default=None)
            self._next_high = _most(self._next_high, self.step)
        self._settle(workers, at_s, final=final)
        if final and not self._read:
            self._finish_round(workers)

    def alive(self) -> None:
        """Add a sign of life, and the highest step."""
        if self.step is not None and not self._read:
            self._put(Progress(at_s=self._now_s, step=self.step))
        self._put(Alive(at_s=self._now_s, state=self.state, round=self.round))

    def _finish_round(self, workers: Mapping[int, WorkerProgress]) -> None:
        self._read = True
        self._had_steps = self._had_steps or self._steps_known
        self._had_signs = self._had_signs or any(each.alive_s is not None for each in workers.values())
        self._reporting |= {rank for rank, each in workers.items() if each.step is not None}
        for rank in sorted(self._workers):
            self._put(self._worker_line(rank, workers.get(rank)))
        if self._steps_known and self.step is not None and self._work_end_s is not None:
            self._put(Progress(at_s=self._work_end_s, step=self.step))
        if self._detected_s is not None and self._steps_known and self.step_s is not None:
            self._correct(self.step_s, self._detected_s)
        redone_s = 0.0 if self._steps_known else self._unsaved_s()
        if redone_s > 0 and self._over_by not in ("end", ""):
            self._put(Bound(at_s=self._work_end_s or self._now_s, seconds=redone_s))
        self.high_step = _most(self.high_step, self._next_high)

    def _unsaved_s(self) -> float:
        """Return the productive time of the round since its last save."""
        from_s = self._spawned_s if self._saved_s is None else self._saved_s
        until_s = self._now_s if self._hung_s is None else self._hung_s
        return sum(max(0.0, min(end_s, until_s) - max(begin_s, from_s)) for begin_s, end_s in self._productive)

    def _worker_line(self, rank: int, progress: WorkerProgress | None) -> WorkerLine:
        worker = self._workers[rank]
        end_s = self._now_s if worker.end_s is None else worker.end_s
        marks = () if progress is None else progress.marks[-_MOST_MARKS:]
        return WorkerLine(
            local_rank=rank,
            global_rank=worker.global_rank,
            pid=worker.pid,
            round=self.round or 0,
            begin_s=worker.begin_s,
            end_s=worker.end_s,
            code=worker.code,
            stopped=worker.stopped,
            marks=tuple((kind, begin_s, to_s or max(begin_s, end_s)) for kind, begin_s, to_s in marks),
            first_step=None if progress is None else progress.first_step,
            last_step=None if progress is None else progress.step,
        )

    def _settle(
        self, workers: Mapping[int, WorkerProgress], at_s: float, *, final: bool, only_known: bool = False
    ) -> None:
        """Count the parts in the queue, and the current one up to `at_s`, until one is not determined yet.

        `only_known` means that no progress was read.
        """
        ends = {rank: each.end_s for rank, each in self._workers.items() if each.end_s is not None}
        # The least advanced worker counts, so one that is expected to report is still starting.
        workers = {**{rank: WorkerProgress() for rank in self._reporting & self._workers.keys()}, **workers}
        known = Known(
            final=final,
            steps=self._had_steps,
            signs=self._had_signs,
            waited=at_s - self._spawned_s >= SIGN_LIMIT_S,
            silent=not final and at_s - self._spawned_s < SILENT_S and not self._workers.keys() <= {*workers, *ends},
            high_step=self.high_step,
        )
        while self._queue:
            part = self._queue[0]
            if not isinstance(part, Part):
                self._out.add(part)
            elif part.state is not None:
                self._out.count(part.state, part)
            elif only_known:
                return
            elif (until_s := self._work(workers, ends, part, known)) < part.end_s:
                self._queue[0] = replace(part, begin_s=until_s)
                return
            self._queue.popleft()
        now = replace(self._at, end_s=max(self._at.begin_s, at_s))
        if now.state is not None:
            self._out.count(now.state, now)
            self._at = replace(now, begin_s=now.end_s)
        elif not only_known:
            self._at = replace(now, begin_s=self._work(workers, ends, now, known))

    def _work(
        self, workers: Mapping[int, WorkerProgress], ends: Mapping[int, float], part: Part, known: Known
    ) -> float:
        found, until_s = worked(workers, ends, part.begin_s, part.end_s, known)
        for state, begin_s, end_s in found:
            if state is S.PRODUCTIVE:
                self._productive.append((begin_s, end_s))
            self._out.count(state, replace(part, begin_s=begin_s, end_s=end_s))
        saves = [mark for each in workers.values() for mark in each.marks if mark[0] == "save" and mark[2]]
        if saves:
            self._saved_s = max(self._saved_s or 0.0, *(begin_s for _, begin_s, _ in saves))
            while self._productive and self._productive[0][1] <= self._saved_s:
                self._productive.popleft()
        return until_s

    # --- lines

    def _put(self, line: Line) -> None:
        """Add a line behind those that wait for the workers' progress."""
        if self._queue:
            self._queue.append(line)
        else:
            self._out.add(line)

    def _note(self, name: str, text: str, at_s: float, *, node: str = "", rank: int | None = None) -> None:
        self._put(Note(at_s=at_s, name=name, text=_text(" ".join(text.split())), node=node, rank=rank))


_FROM_PROGRESS: Final = (S.STARTING, S.RESTORING, S.SAVING, S.REDONE, S.PRODUCTIVE)


def _text(text: str) -> str:
    return masked(text)[:_TEXT_CHARS]


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
