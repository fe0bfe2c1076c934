"""The status of an agent, from the events of its feed. No I/O, no clock."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import asdict, replace

from elastic_core.api import Failure, HookSettings, Restart, Round, Stop, WorkerExit
from elastic_core.api.feed import Absence, RunEvent
from elastic_core.api.rendezvous import Decided, Resumed, RosterMember, Suspended
from elastic_core.api.tools import AgentIdentity
from elastic_ops.status.document import AbsenceStatus, AgentStatus, EndStatus, PastRound, WorkerStatus
from elastic_ops.status.lost_nodes import end_of_round, lost_nodes

MOST_ROUNDS: Final = 64
MOST_NODES: Final = 32
"""The most nodes that a round lists as joined, as left, and as lost."""
_REASON_CHARS: Final = 240
_MAY_RUN: Final = frozenset({"joining", "running", "ended"})
"""States in which no hook of this node rejects rounds any more."""


class StatusKeeper:
    """The status of one agent. Threading: one call at a time.

    Args:
        settings: Settings of the hook that receives the feed.
        agent: The agent's process.
    """

    def __init__(self, settings: HookSettings, agent: AgentIdentity) -> None:
        self._now = AgentStatus(
            run_id=settings.run_id,
            node_id=settings.node_id,
            script=settings.entry_point,
            agent=agent,
            backend=settings.backend,
            state="created",
            since_ns=agent.started_ns,
            # Only the built-in policy promises a number of restarts; another's budget is its own.
            max_restarts=settings.max_restarts if settings.policy == "intensity" else None,
            max_membership_changes=settings.max_membership_changes,
        )
        self._members: tuple[str, ...] = ()
        """The nodes of the last round, in rank order; empty if not known."""
        self._lost: tuple[str, ...] = ()
        self._left: tuple[str, ...] = ()
        """The nodes by which the last round ended."""

    def status(self, *, where: str, written_ns: int) -> AgentStatus:
        """Return the status, with the store's text and the time of writing."""
        workers = () if self._now.state == "ended" else self._now.workers
        return replace(self._now, workers=workers, where=where, written_ns=written_ns)

    def observe(self, event: RunEvent) -> None:
        """Apply the next event of the feed."""
        match event.name, event.values:
            case "step", values:
                self._step(values, event.at_ns)
            case "round_joined", {"members": [*members]}:
                self._note_members(tuple(member.node_id for member in members if isinstance(member, RosterMember)))
            case "workers_started", {"round": Round() as round_, "pids": [*pids]}:
                self._change(
                    workers=tuple(
                        WorkerStatus(local_rank=rank, global_rank=round_.global_rank(rank), pid=pid, state="alive")
                        for rank, pid in enumerate(pids)
                        if isinstance(pid, int)
                    )
                )
            case "worker_ended", {"exit": WorkerExit() as exit}:
                state = "done" if exit.code == 0 and exit.stop_signal is None else "ended"
                self._change(
                    workers=tuple(
                        replace(worker, state=state) if worker.local_rank == exit.local_rank else worker
                        for worker in self._now.workers
                    )
                )
            case "left_out", {"absence": Absence() | None as absence}:
                self._take_absence(absence, event.at_ns)
            case "store_reachable", {"reachable": bool(reachable), "text": str(text)}:
                self._set_trouble("" if reachable else text, event.at_ns)
            case "fields_published", {"hook": str(hook), "fields": {**fields}}:
                self._change(hooks={**self._now.hooks, hook: fields})
            case "listening", {"address": str(address)}:
                self._change(control=address)
            case "agent_stopped", {"exit_code": int(code), "reason": str(reason), "outcome": str(outcome)}:
                self._change(end=EndStatus(outcome=outcome, exit_code=code, reason=reason))
            case _:
                pass  # nothing that is shown changes by it

    def _change(self, **fields: object) -> None:
        self._now = replace(self._now, **fields)

    def _step(self, values: Mapping[str, object], at_ns: int) -> None:
        before = self._now
        self._note_round(values, at_ns)
        round_, state = values.get("round"), str(values["state"])
        if isinstance(round_, Round):
            shown = replace(round_, nonce="", history=())
            self._change(round=shown, node_id=round_.node_id or before.node_id)
        self._change(
            state=state,
            reason=values["state_reason"],
            since_ns=at_ns if values["entered"] else before.since_ns,
            restart_count=values["restart_count"],
            membership_changes=values["membership_changes"],
        )
        absence = values.get("absence")
        if isinstance(absence, Absence):
            self._take_absence(absence, at_ns)
        elif state in _MAY_RUN and before.absence is not None and before.absence.refused:
            self._take_absence(None, at_ns)
        if state == "running":
            match values.get("change"):
                case Suspended(reason=reason):
                    self._set_trouble(reason, at_ns)
                case Resumed():
                    self._set_trouble("", at_ns)

    def _note_round(self, values: Mapping[str, object], at_ns: int) -> None:
        match values:
            case {"event": "RoundFormed", "round": Round() as round_}:
                formed = PastRound(
                    index=round_.index,
                    token=round_.token,
                    node_count=round_.node_count,
                    world_size=round_.world_size,
                    began_ns=at_ns,
                    left=self._left[:MOST_NODES],
                    left_count=len(self._left),
                    lost=self._lost[:MOST_NODES],
                    lost_count=len(self._lost),
                )
                rounds = (*self._now.rounds, formed)
                earlier = self._now.earlier_rounds + max(0, len(rounds) - MOST_ROUNDS)
                self._change(rounds=rounds[-MOST_ROUNDS:], earlier_rounds=earlier)
            case {"event": "RoundChanged", "change": Decided(failure=None, decision=decision)}:
                self._end_round("restart", decision.rule, at_ns)
            case {"event": "RoundChanged", "change": Decided(failure=Failure() as failure)}:
                self._end_round("failure", failure.summary, at_ns)
            case {"event": "DecisionMade", "failure": Failure() as failure, "decision": Restart() | Stop()}:
                self._end_round("failure", failure.summary, at_ns)
        change = end_of_round(values)
        if change is not None:
            self._end_round("membership", change.reason, at_ns)
            self._lost = lost_nodes(change)
            self._left = tuple(node for node in change.lost if node not in self._lost)

    def _note_members(self, members: tuple[str, ...]) -> None:
        """Compare the nodes of a round that has just formed with those of the round before."""
        before, lost, left = self._members, self._lost, self._left
        self._members, self._lost, self._left = members, (), ()
        rounds = self._now.rounds
        if not rounds or not before or not members:
            return
        stayed = {*before} - {*lost, *left}
        now = {*members}
        joined = tuple(node for node in members if node not in stayed)
        left = (*left, *(node for node in before if node in stayed and node not in now))
        noted = replace(
            rounds[-1],
            joined=joined[:MOST_NODES],
            joined_count=len(joined),
            left=left[:MOST_NODES],
            left_count=len(left),
        )
        self._change(rounds=(*rounds[:-1], noted))

    def _end_round(self, by: str, reason: str, at_ns: int) -> None:
        rounds = self._now.rounds
        if rounds and not rounds[-1].ended_ns:
            ended = replace(rounds[-1], ended_ns=at_ns, ended_by=by, reason=reason[:_REASON_CHARS])
            self._change(rounds=(*rounds[:-1], ended))

    def _take_absence(self, absence: Absence | None, at_ns: int) -> None:
        if absence is None:
            self._change(absence=None)
            return
        before = self._now.absence
        same = before is not None and (before.by, before.reason) == (absence.by, absence.reason)
        self._change(
            absence=AbsenceStatus(
                **asdict(absence),
                since_ns=before.since_ns if before is not None and same else at_ns,
                until_ns=0 if absence.for_s is None else at_ns + round(absence.for_s * 1e9),
            )
        )

    def _set_trouble(self, text: str, at_ns: int) -> None:
        if text != self._now.trouble:
            self._change(trouble=text, trouble_since_ns=at_ns if text else 0)
