"""A run in its store, in the form that `elastic status` shows."""

from typing import Final

from elastic_core.api.commands import StoreChoice
from elastic_ops.run_target import no_such_run
from elastic_ops.status.view import (
    OUT,
    AbsenceView,
    IncidentView,
    NodeView,
    RoundView,
    RunView,
    StoreView,
    VerdictView,
    decision_words,
)
from elastic_ops.store import StoreReading
from elastic_ops.stored_run import StoredFailure, StoredMember, StoredRound, stored_run

LOST: Final = "lost"
LEFT: Final = "left"
"""Left, without a problem: the run has its result."""
NO_NODE: Final = "no node is left"
"""The state of a run without a result whose last node has left; a new node continues it."""
SILENT: Final = "silent"
STOPPED: Final = "stopped"
STOPPED_BY: Final = "elastic stop"
"""The rule in the result of a run that was stopped from outside."""


class RunInStore:
    """A run as read from its store.

    Raises:
        NoSuchRunError: there is no such run.
        RendezvousStateError: its content is of another version, or not elastic-core's.
    """

    def __init__(self, reading: StoreReading, choice: StoreChoice, where: str) -> None:
        """Decode it."""
        self._where, self._choice, self._latency_s = where, choice, reading.latency_s
        if not reading.survey.documents and not reading.survey.members:
            raise no_such_run(choice.run_id, where)
        self.run = run = stored_run(reading.survey)
        self._control, self._round, self._members, self._silent = run.control, run.round, run.members, run.silent

    @property
    def history(self) -> tuple[StoredFailure, ...]:
        """The run's last failures, oldest first."""
        return () if self._control is None else self._control.history

    @property
    def evidence(self) -> str:
        """The last failure as all nodes know it, as an incident in JSON; empty if they left none."""
        said = (self._control.verdict, self._control.ending) if self._control is not None else ()
        return next((one.evidence for one in said if one is not None and one.evidence), "")

    def view(self) -> RunView:
        """Return the view to show."""
        control, round_ = self._control, self._round
        nodes = self._nodes()
        verdict = None if control is None else control.verdict
        return RunView(
            run_id=self._choice.run_id,
            source="store",
            state=self._state(nodes),
            backend=self._choice.backend,
            round=None if round_ is None else _round_view(round_),
            restart_count=0 if round_ is None else round_.restarts,
            membership_changes=0 if round_ is None else round_.changes,
            nodes=nodes,
            waiting=tuple(node.node_id for node in nodes if node.first_rank is None and node.absence is None),
            incident_count=len(self.history),
            last_incident=short_failure(self.history[-1]) if self.history else None,
            store=StoreView(where=self._where, reachable=True, latency_s=round(self._latency_s, 6)),
            verdict=None
            if verdict is None
            else VerdictView(
                outcome=verdict.decision.outcome,
                exit_code=verdict.exit_code,
                reason=verdict.decision.reason,
                by=verdict.by,
            ),
        )

    def _state(self, nodes: tuple[NodeView, ...]) -> str:
        control, round_ = self._control, self._round
        if control is not None and control.verdict is not None:
            decision = control.verdict.decision
            return STOPPED if decision.rule == STOPPED_BY else decision.outcome
        if round_ is None:
            return "waiting for a round"
        ending = None if control is None else control.ending
        if ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce):
            if not self._members:
                return NO_NODE
            return {"restart": "restarting", "asked": "restarting", "regroup": "regrouping"}.get(
                ending.kind, ending.kind
            )
        stopping = None if control is None else control.stopping
        if stopping is not None and (stopping.token, stopping.nonce) == (round_.token, round_.nonce):
            return "stopping"
        placed = [node.state for node in nodes if node.first_rank is not None]
        if placed and all(state in (LOST, SILENT) for state in placed):
            return "all nodes lost"
        return "starting" if any(state in ("ready", "starting") for state in placed) else "running"

    def _nodes(self) -> tuple[NodeView, ...]:
        """Return the round's nodes in rank order, then all others that have a seat."""
        round_ = self._round
        over = self._control is not None and self._control.verdict is not None
        seats = dict(self._members)
        nodes, rank = [], 0
        roster = () if round_ is None else round_.roster
        for number, entry in enumerate(roster):
            record = seats.pop(entry.incarnation, None)
            nodes.append(
                NodeView(
                    node_id=entry.node,
                    address=entry.host,
                    state=(LEFT if over else LOST) if record is None else self._said(entry.incarnation, record),
                    node_rank=number,
                    first_rank=rank,
                    worker_count=entry.nproc,
                    role=entry.role,
                )
            )
            rank += entry.nproc
        nodes += [
            NodeView(
                node_id=record.node,
                address=record.address,
                state=OUT if record.absence is not None else self._said(incarnation, record),
                worker_count=record.nproc,
                role=record.role,
                absence=_absence(record),
            )
            for incarnation, record in seats.items()
        ]
        return tuple(nodes)

    def _said(self, incarnation: str, record: StoredMember) -> str:
        """Return a member's published state, if its seat was renewed recently."""
        if incarnation in self._silent:
            return SILENT
        round_ = self._round
        if (
            record.state == "running"
            and round_ is not None
            and (record.token, record.nonce)
            != (
                round_.token,
                round_.nonce,
            )
        ):
            return "starting"
        return record.state


def _absence(record: StoredMember) -> AbsenceView | None:
    absence = record.absence
    if absence is None:
        return None
    return AbsenceView(by=absence.by, reason=absence.reason, refused=absence.refused, for_s=absence.for_s)


def _round_view(document: StoredRound) -> RoundView:
    return RoundView(
        index=document.index,
        token=document.token,
        node_count=len(document.roster),
        world_size=sum(entry.nproc for entry in document.roster),
        master_addr=document.master_addr,
        master_port=document.master_port,
    )


def short_failure(failure: StoredFailure) -> IncidentView:
    """Return the summary of a failure in the history."""
    decision = failure.decision
    return IncidentView(
        failure_class=failure.failure_class,
        summary=failure.summary,
        node_id=failure.node_id,
        rank=failure.global_rank,
        round_index=failure.round_index,
        decision="" if decision is None else decision_words(decision),
    )
