"""A run as its store has it: read with an open mind, as the nodes may be of another version than this reader."""

from typing import Final, TypeVar

import msgspec

from elastic_core.api import (
    CONTROL_KEY,
    ROUND_KEY,
    ConfigError,
    RendezvousStateError,
    StoreChoice,
    StoreReading,
    decode_json,
)
from elastic_core.rendezvous.member.documents import FORMAT, RosterEntry
from elastic_ops.status.view import (
    IncidentView,
    NodeView,
    RoundView,
    RunView,
    StoreView,
    VerdictView,
    decision_words,
)

LOST: Final = "lost"
LEFT: Final = "left"
"""No longer there, and nothing is wrong with that: the run has its verdict."""
SILENT: Final = "silent"


class StoredDecision(msgspec.Struct):
    """What was decided about a failure; `type` is its kind."""

    type: str = ""
    delay_s: float = 0.0
    rule: str = ""
    reason: str = ""
    outcome: str = ""
    exclude_nodes: tuple[str, ...] = ()


class StoredFailure(msgspec.Struct):
    """A failure in the run's history."""

    failure_class: str
    summary: str
    node_id: str = ""
    round_index: int = -1
    at_s: float = 0.0
    uptime_s: float = 0.0
    exit_code: int = 1
    global_rank: int | None = None
    exception_type: str = ""
    message: str = ""
    decision: StoredDecision | None = None
    spent: int = 0


class _Ending(msgspec.Struct):
    token: int = 0
    nonce: str = ""
    kind: str = ""
    reason: str = ""
    evidence: str = ""


class _Stopping(msgspec.Struct):
    token: int = 0
    nonce: str = ""


class _Verdict(msgspec.Struct):
    outcome: str = ""
    exit_code: int = 1
    reason: str = ""
    by: str = ""
    evidence: str = ""


class _Control(msgspec.Struct):
    v: int = 0
    epoch: str = ""
    ending: _Ending | None = None
    stopping: _Stopping | None = None
    verdict: _Verdict | None = None
    history: tuple[StoredFailure, ...] = ()
    older: tuple[tuple[msgspec.Raw, ...], ...] = ()
    """Words, and a row for each failure before those in the history."""


class _Round(msgspec.Struct):
    v: int = 0
    epoch: str = ""
    token: int = 0
    nonce: str = ""
    index: int = 0
    restarts: int = 0
    changes: int = 0
    master_addr: str = ""
    master_port: int = 0
    roster: tuple[RosterEntry, ...] = ()


class _Member(msgspec.Struct):
    v: int = 0
    epoch: str = ""
    node: str = ""
    state: str = ""
    token: int = 0
    nonce: str = ""
    address: str = ""
    nproc: int = 1
    role: str = ""


_D = TypeVar("_D", _Control, _Round, _Member)


class StoredRun:
    """What was read of a run, decoded.

    Raises:
        ConfigError: there is no such run.
        RendezvousStateError: what is there is of another version, or not ours.
    """

    def __init__(self, reading: StoreReading, choice: StoreChoice, where: str) -> None:
        """Decode it."""
        documents = reading.survey.documents
        self._where, self._choice, self._latency_s = where, choice, reading.latency_s
        if not documents and not reading.survey.members:
            raise ConfigError(
                f"no run {choice.run_id!r} in {where}",
                hint="the --rdzv-id that its nodes were started with; a run that is over is forgotten after a while",
            )
        self._control = _decode(documents.get(CONTROL_KEY), _Control, "control document")
        self._round = _decode(documents.get(ROUND_KEY), _Round, "round document")
        if self._round is not None and self._control is not None and self._round.epoch != self._control.epoch:
            self._round = None  # of an earlier run
        self._members = [
            (member.incarnation, record)
            for member in reading.survey.members
            if (record := _decode(member.record, _Member, "member's record")) is not None
        ]
        self._silent = reading.survey.silent

    @property
    def history(self) -> tuple[StoredFailure, ...]:
        """The run's last failures, oldest first."""
        return () if self._control is None else self._control.history

    @property
    def _failure_count(self) -> int:
        older = () if self._control is None else self._control.older
        return len(self.history) + (len(older[1]) if len(older) > 1 else 0)

    @property
    def evidence(self) -> str:
        """What all nodes know of the last failure, as the JSON of an incident; empty: they left none."""
        said = (self._control.verdict, self._control.ending) if self._control is not None else ()
        return next((one.evidence for one in said if one is not None and one.evidence), "")

    def view(self) -> RunView:
        """Return what is to be shown."""
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
            waiting=tuple(node.node_id for node in nodes if node.first_rank is None),
            incident_count=self._failure_count,
            last_incident=short_failure(self.history[-1]) if self.history else None,
            store=StoreView(where=self._where, reachable=True, latency_s=round(self._latency_s, 6)),
            verdict=None
            if verdict is None
            else VerdictView(
                outcome=verdict.outcome, exit_code=verdict.exit_code, reason=verdict.reason, by=verdict.by
            ),
        )

    def _state(self, nodes: tuple[NodeView, ...]) -> str:
        control, round_ = self._control, self._round
        if control is not None and control.verdict is not None:
            return control.verdict.outcome
        if round_ is None:
            return "waiting for a round"
        ending = None if control is None else control.ending
        if ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce):
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
        """Return the roster in rank order, then everybody else who has a seat."""
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
                state=self._said(incarnation, record),
                worker_count=record.nproc,
                role=record.role,
            )
            for incarnation, record in seats.items()
        ]
        return tuple(nodes)

    def _said(self, incarnation: str, record: _Member) -> str:
        """Return a member's word of itself, if it was heard lately."""
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


def _round_view(document: _Round) -> RoundView:
    return RoundView(
        index=document.index,
        token=document.token,
        node_count=len(document.roster),
        world_size=sum(entry.nproc for entry in document.roster),
        master_addr=document.master_addr,
        master_port=document.master_port,
    )


def short_failure(failure: StoredFailure) -> IncidentView:
    """Return a failure of the history in short."""
    decision = failure.decision
    return IncidentView(
        failure_class=failure.failure_class,
        summary=failure.summary,
        node_id=failure.node_id,
        rank=failure.global_rank,
        round_index=failure.round_index,
        decision="" if decision is None else decision_words(decision.type, decision.delay_s, decision.rule),
    )


def _decode(raw: bytes | None, kind: type[_D], what: str) -> _D | None:
    if raw is None:
        return None
    try:
        document = decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise RendezvousStateError(
            f"the store holds a {what} that can't be read ({err})", hint="another --rdzv-id"
        ) from err
    if document.v != FORMAT:
        raise RendezvousStateError(
            f"the store holds a {what} of format {document.v!r}; this version of elastic-core reads {FORMAT}",
            hint="the version of elastic-core that the run's nodes have",
        )
    return document
