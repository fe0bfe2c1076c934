"""Keeps `status.json` true while the agent runs: written after each change of its state, never by the clock."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from elastic_core.agent.feed import Observation, StepTaken, StoreReachable
from elastic_core.agent.machine.states import AgentState, Created, Deciding, Ended, Joining, Refused, Running, Settling
from elastic_core.agent.parts import AgentResult, Workers
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.messages import AgentEvent, DecisionMade, LeftOut, RoundChanged, RoundFormed
from elastic_core.options.settings import RunSettings
from elastic_core.reports import Absence
from elastic_core.types import Decided, Ignore, Resumed, Round, RoundChange, RoundEnded, Suspended

if TYPE_CHECKING:
    from elastic_core.rundir.status_file import StatusWriter
    from elastic_core.status import (
        AbsenceStatus,
        AgentIdentity,
        AgentStatus,
        EndStatus,
        PastRound,
        RoundStatus,
        WorkerStatus,
    )

GATHER_S: Final = 0.05
"""Changes come in bursts (a round forms, workers start): one file tells of all of them."""
_WRITE_LIMIT_S: Final = 1.0
MOST_ROUNDS: Final = 16
_REASON_CHARS: Final = 240


class _Past(NamedTuple):
    round: Round
    began_ns: int
    ended_ns: int = 0
    ended_by: str = ""
    reason: str = ""


class StatusKeeper:
    """The writer of an agent's status: it observes each step, and leaves the file in the run directory.

    Nothing is loaded or written before `warm`: a start does not wait for it, and a run that is over at once leaves no
    file unless its directory is kept.

    Threading: the supervisor's thread only.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        node_id: str,
        run_dir: Path,
        call_later: Callable[[float, Callable[[], None]], object],
        post: Callable[[Callable[[], None]], None],
        notice: Callable[[str], None],
        where: Callable[[], str],
        last_incident: Callable[[], str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Write nothing yet.

        `where` and `last_incident` are asked for each file: the store as people know it, and a path (empty: none).
        """
        self._settings = settings
        self._node_id = node_id
        self._run_dir = run_dir
        self._call_later = call_later
        self._post = post
        self._notice = notice
        self._where = where
        self._last_incident = last_incident
        self._clock = clock
        self._state: AgentState = Created()
        self._reason = ""
        self._round: Round | None = None
        self._past: list[_Past] = []
        self._done: frozenset[int] = frozenset()
        self._began_ns = self._since_ns = clock.wall_ns()
        self._trouble, self._trouble_ns = "", 0
        self._writer: StatusWriter | None = None
        self._agent: AgentIdentity | None = None
        self._pending = self._warm = self._closed = False
        self.workers: Workers | None = None
        """Set once they can be asked."""
        self._control = ""
        self._absence: AbsenceStatus | None = None
        self._hook_fields: dict[str, dict[str, object]] = {}

    def move(self, run_dir: Path) -> None:
        """Take another run directory: the one before has gone."""
        self._run_dir, self._writer = run_dir, None
        self._mark()

    # --- what is observed

    def answer_at(self, path: str) -> None:
        """Take the path of the agent's socket, once it listens; empty: it does not."""
        self._control = path
        self._mark()

    def observe(self, what: Observation) -> None:
        """Take a step of the machine, or that the store is away or back."""
        if isinstance(what, StepTaken):
            self._note_round(what.event)
            self._note(what.step.state, what.step.reason)
            if isinstance(what.event, RoundChanged) and isinstance(what.step.state, Running):
                self._note_store(what.event.change)
        elif isinstance(what, LeftOut):
            self._take_absence(what.absence)
            self._mark()
        elif isinstance(what, StoreReachable):
            self._set_trouble("" if what.reachable else what.text)
            self._mark()

    def _note_round(self, event: AgentEvent) -> None:
        match event:
            case RoundFormed(round=round_):
                self._past = [*self._past, _Past(round_, self._clock.wall_ns())][-MOST_ROUNDS:]
            case RoundChanged(change=RoundEnded(reason=reason)):
                self._end_round("membership", reason)
            case RoundChanged(change=Decided(failure=failure, decision=decision)):
                self._end_round(*(("restart", decision.rule) if failure is None else ("failure", failure.summary)))
            case DecisionMade(failure=failure, decision=decision) if not isinstance(decision, Ignore):
                self._end_round("failure", failure.summary)

    def _end_round(self, by: str, reason: str) -> None:
        if self._past and not self._past[-1].ended_ns:
            now_ns, shown = self._clock.wall_ns(), reason[:_REASON_CHARS]
            self._past[-1] = self._past[-1]._replace(ended_ns=now_ns, ended_by=by, reason=shown)

    def _note_store(self, change: RoundChange) -> None:
        if isinstance(change, Suspended):
            self._set_trouble(change.reason)
        elif isinstance(change, Resumed):
            self._set_trouble("")

    def _note(self, state: AgentState, reason: str) -> None:
        if type(state) is not type(self._state):
            self._since_ns = self._clock.wall_ns()
        self._state, self._reason = state, reason
        if isinstance(state, Refused):
            self._take_absence(state.absence)
        elif isinstance(state, (Joining, Running, Ended)) and self._refused:
            self._take_absence(None)
        self._round = getattr(state, "round", None) or self._round
        running = state if isinstance(state, Running) else None
        if isinstance(state, (Settling, Deciding)):
            running = state.running
        if running is not None:
            self._round, self._done = running.round, running.done
        self._mark()

    @property
    def _refused(self) -> bool:
        return self._absence is not None and self._absence.refused

    def _take_absence(self, absence: Absence | None) -> None:
        from elastic_core.status import AbsenceStatus

        now_ns, before = self._clock.wall_ns(), self._absence
        if absence is None:
            self._absence = None
            return
        same = before is not None and (before.by, before.reason) == (absence.by, absence.reason)
        self._absence = AbsenceStatus(
            by=absence.by,
            reason=absence.reason,
            refused=absence.refused,
            since_ns=before.since_ns if before is not None and same else now_ns,
            until_ns=0 if absence.for_s is None else now_ns + round(absence.for_s * 1e9),
        )

    def publish(self, fields: dict[str, dict[str, object]]) -> None:
        """Take what hooks say of themselves, by their names."""
        self._hook_fields = dict(fields)
        self._mark()

    def _set_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble, self._trouble_ns = text, self._clock.wall_ns() if text else 0

    # --- what is written

    def warm(self) -> None:
        """Begin to write. Called: once the workers run."""
        self._load()
        self._warm = True
        self._mark()

    def _mark(self) -> None:
        if self._warm and not self._pending and not self._closed:
            self._pending = True
            self._call_later(GATHER_S, self._write)

    def now(self) -> "AgentStatus":
        """Return what the file would say at this moment."""
        return self._status(None)

    def _write(self) -> None:
        self._pending = False
        if not self._closed:
            self._load().put(self._status(None))

    def _load(self) -> "StatusWriter":
        if self._writer is None:
            from elastic_core.rundir.status_file import STATUS_FILE, StatusWriter

            self._writer = StatusWriter(self._run_dir / STATUS_FILE, failed=self._failed)
        return self._writer

    def _failed(self, err: OSError) -> None:
        text = f"the agent's status could not be written to {str(self._run_dir)!r}: {err.strerror}"
        self._post(lambda: self._notice(text))

    def end(self, result: AgentResult, *, kept: bool) -> None:
        """Leave the last word if the directory is kept; nothing is written after it."""
        if self._closed:
            return
        if kept:
            from elastic_core.status import EndStatus

            end = EndStatus(outcome=result.ending.value, exit_code=result.exit_code, reason=result.reason)
            self._load().put(self._status(end))
        self.close()

    def close(self) -> None:
        """Write nothing any more; what is being written is waited for, a moment. Idempotent."""
        self._closed = True
        if self._writer is not None:
            self._writer.close(within_s=_WRITE_LIMIT_S)

    def _status(self, end: "EndStatus | None") -> "AgentStatus":
        from elastic_core.rundir.status_file import own_identity
        from elastic_core.status import AgentStatus

        settings, state = self._settings, self._state
        if self._agent is None:
            self._agent = own_identity(host=socket.gethostname(), started_ns=self._began_ns)
        round_ = self._round
        ledger = state.running.ledger if isinstance(state, Settling) else state.ledger
        return AgentStatus(
            run_id=settings.nodes.run_id,
            node_id=(round_.node_id if round_ is not None else "") or self._node_id,
            script=settings.entrypoint.name,
            agent=self._agent,
            backend=settings.nodes.backend,
            where=self._asked_where(),
            state=type(state).__name__.lower(),
            since_ns=self._since_ns,
            reason=self._reason,
            round=None if round_ is None else _placed(round_),
            rounds=tuple(map(_past, self._past)),
            workers=self._workers_now(),
            restart_count=ledger.restart_count,
            max_restarts=settings.restarts.restart_budget,
            membership_changes=ledger.membership_changes,
            max_membership_changes=settings.nodes.max_membership_changes,
            absence=self._absence,
            control=self._control,
            last_incident=self._last_incident(),
            trouble=self._trouble,
            trouble_since_ns=self._trouble_ns,
            hooks=self._hook_fields,
            end=end,
            written_ns=self._clock.wall_ns(),
        )

    def _asked_where(self) -> str:
        try:
            return self._where()
        except Exception:  # noqa: BLE001  # a plugin's code: the supervisor goes on without its word
            return ""

    def _workers_now(self) -> "tuple[WorkerStatus, ...]":
        from elastic_core.status import WorkerStatus

        if self.workers is None or self._round is None or isinstance(self._state, Ended):
            return ()
        alive, base = self.workers.alive, self._round.base_rank
        return tuple(
            WorkerStatus(
                local_rank=rank,
                global_rank=base + rank,
                pid=pid,
                state="alive" if rank in alive else "done" if rank in self._done else "ended",
            )
            for rank, pid in sorted(self.workers.pids.items())
        )


def _placed(round_: Round) -> "RoundStatus":
    from elastic_core.status import RoundStatus

    return RoundStatus(**{field: getattr(round_, field) for field in RoundStatus.__struct_fields__})


def _past(seen: _Past) -> "PastRound":
    from elastic_core.status import PastRound

    return PastRound(
        index=seen.round.index,
        token=seen.round.token,
        node_count=seen.round.node_count,
        world_size=seen.round.world_size,
        **{field: getattr(seen, field) for field in _Past._fields[1:]},
    )
