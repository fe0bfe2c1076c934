"""The states of an agent, one frozen record each; the step from one to the next, and the moves that several share."""

import enum
from collections.abc import Iterable

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.history import remembered
from elastic_core.reports import Absence
from elastic_core.types import (
    Decided,
    Decision,
    Failure,
    FailureClass,
    Record,
    Round,
    RoundEnded,
    StopOrdered,
    WorkerExit,
)

RoundOver = RoundEnded | Decided | StopOrdered
"""What ends a round for all its nodes."""


class Gates(Record, frozen=True, kw_only=True):
    """How this node waits while a hook refuses, and the refusals since its workers last ran."""

    aside: bool = False
    """The rendezvous lets this node wait beside the rounds of the others."""
    join_timeout_s: float = 600.0
    """How long a node waits that can't, in seconds."""
    spread: float = 0.0
    count: int = 0
    since_s: float = 0.0
    """When the first refusal came, if there was one."""
    shown: str = ""
    """The reason that was printed last."""


class Ledger(Record, frozen=True, kw_only=True):
    """What the run has been through; carried from state to state."""

    restart_count: int = 0
    """Restarts after failures: exported as TORCHELASTIC_RESTART_COUNT."""
    rounds: int = 0
    """Rounds that this node was part of: the next one's index."""
    membership_changes: int = 0
    """New rounds because nodes came or went; they never cost restart budget."""
    history: tuple[Failure, ...] = ()
    """Failures so far, oldest first, each with its decision."""
    control: bool = False
    """The rendezvous takes one decision for the whole run: ours is published to it, and its own stands."""
    gathers: bool = False
    """It does so on the evidence of all nodes: a failure here stops them all, and we wait for what is decided."""
    stop_signals: tuple[int, ...] = ()
    """What tells the agent to stop: a worker that dies of one may have got it together with the agent."""
    gates: Gates = Gates()


class AgentEnd(enum.StrEnum):
    """How an agent ends."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Outcome(Record, frozen=True, kw_only=True):
    """The agent's result. Source of the exit codes: the design's section on the agent."""

    ending: AgentEnd
    exit_code: int
    reason: str


class Rejoin(Record, frozen=True, kw_only=True):
    """After the workers are gone: wait `delay_s`, then begin the next round."""

    delay_s: float = 0.0


class End(Record, frozen=True, kw_only=True):
    """After the workers are gone: leave."""

    outcome: Outcome


class Await(Record, frozen=True, kw_only=True):
    """After the workers are gone: report the evidence, and wait for the run's decision."""


Then = Rejoin | End | Await


class Created(Record, frozen=True, kw_only=True):
    """Nothing has happened."""

    ledger: Ledger = Ledger()


class Gating(Record, frozen=True, kw_only=True):
    """Hooks are being asked whether this node may join. `refused`: they have refused to start workers of that round."""

    ledger: Ledger
    refused: Round | None = None


class Refused(Record, frozen=True, kw_only=True):
    """A hook refuses: no worker exists, and this node waits until it is asked again. `round` as in Gating."""

    ledger: Ledger
    absence: Absence
    round: Round | None = None


class Joining(Record, frozen=True, kw_only=True):
    """The rendezvous is forming a round."""

    ledger: Ledger


class Preparing(Record, frozen=True, kw_only=True):
    """Hooks are being asked before workers start. `over`: the round is over already."""

    ledger: Ledger
    round: Round
    over: RoundOver | None = None


class Starting(Record, frozen=True, kw_only=True):
    """Workers are being started. `over`: the round is over already."""

    ledger: Ledger
    round: Round
    over: RoundOver | None = None


class Running(Record, frozen=True, kw_only=True):
    """Workers run. `done` have exited with 0; `ignored` failed, and the policy chose to go on without them.

    None is `alive` while this node has finished and waits for the others.
    """

    ledger: Ledger
    round: Round
    alive: frozenset[int]
    done: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()


class Settling(Record, frozen=True, kw_only=True):
    """A worker has failed by itself: its peers may report what they saw, and the agent get a stop signal."""

    running: Running
    exits: tuple[WorkerExit, ...]


class Deciding(Record, frozen=True, kw_only=True):
    """The evidence is being read, then the policy asked. `running` is None if no worker of the round was started."""

    ledger: Ledger
    running: Running | None
    round: Round
    exits: tuple[WorkerExit, ...] = ()
    alone: bool = False
    """No other node decides for the run."""


class Stopping(Record, frozen=True, kw_only=True):
    """The stop ladder runs. `stop_asked_s`: when a stop signal came first."""

    ledger: Ledger
    round: Round
    then: Then
    incident: m.RecordIncident | None = None
    stop_asked_s: float | None = None


class Awaiting(Record, frozen=True, kw_only=True):
    """No worker exists; the run was stopped for a failure, and what follows is being decided for all nodes."""

    ledger: Ledger
    round: Round


class Waiting(Record, frozen=True, kw_only=True):
    """No worker exists; the delay before a restart runs."""

    ledger: Ledger


class Leaving(Record, frozen=True, kw_only=True):
    """The rendezvous is being left."""

    ledger: Ledger
    outcome: Outcome
    stop_asked_s: float | None = None


class Ended(Record, frozen=True, kw_only=True):
    """Final."""

    ledger: Ledger
    outcome: Outcome


AgentState = (
    Created
    | Gating
    | Refused
    | Joining
    | Preparing
    | Starting
    | Running
    | Settling
    | Deciding
    | Stopping
    | Awaiting
    | Waiting
    | Leaving
    | Ended
)


SETTLE_S = 0.1
"""How long peers of a worker that failed by itself may still report what they saw; a signal death settles at once."""
STOP_SETTLE_S = 0.5
"""How long a worker's death by a stop signal that we had not sent may turn out to be the stop of this whole node.

A scheduler that signals all processes of a node needs milliseconds, on a busy machine some tens of them.
"""
PEERS_SETTLE_S = 0.5
"""The same for peers on other nodes, where all that failed here has merely lost one: it may be on its way out."""
URGE_S = 0.5
"""A second stop signal counts only this long after the first: one Ctrl-C can arrive twice."""
LEAVE_S = 3.0
"""The longest that leaving the rendezvous may hold the agent up."""
PARKED_WATCH_S = 1.0
"""While newcomers have to wait, the round is looked at this often."""

REPORT_S = 1.0
"""Workers that take longer to stop do not hold up what this node has seen so far."""

SETTLE, BACKOFF, LEAVE, REPORT, GATE = "settle", "backoff", "leave", "report", "gate"
SIGTERM = 15


class Step(Record, frozen=True, kw_only=True):
    """What `advance` returns: the next state, the commands in order, and why."""

    state: AgentState
    commands: tuple[m.AgentCommand, ...] = ()
    reason: str = ""


def gate(ledger: Ledger, reason: str, first: Iterable[m.AgentCommand] = (), refused: Round | None = None) -> Step:
    """Ask the hooks whether this node may join the next round."""
    ask = m.AskToJoin(round_index=ledger.rounds, refused=refused, restart_count=ledger.restart_count)
    return Step(state=Gating(ledger=ledger, refused=refused), commands=(*first, ask), reason=reason)


def leave(ledger: Ledger, outcome: Outcome, first: Iterable[m.AgentCommand] = (), asked_s: float | None = None) -> Step:
    """Leave the rendezvous.

    One that decides for the whole run is not closed by a node that goes: its verdict says when the run is over.
    """
    # A stop signal is for this node: if it closed the rendezvous, the nodes that go on could form no further round.
    close = outcome.ending is not AgentEnd.STOPPED and not ledger.control
    commands = (*first, m.SetTimer(name=LEAVE, delay_s=LEAVE_S), m.LeaveRendezvous(close=close))
    return Step(
        state=Leaving(ledger=ledger, outcome=outcome, stop_asked_s=asked_s), commands=commands, reason=outcome.reason
    )


def leave_on_stop(ledger: Ledger, signum: int, now_s: float, *first: m.AgentCommand) -> Step:
    """Leave the rendezvous without workers because a stop was requested; hooks are notified as of a drain."""
    return leave(ledger, stopped_by(signum), (m.AnnounceDrain(signum=signum), *first), asked_s=now_s)


def end(ledger: Ledger, outcome: Outcome) -> Step:
    """End now."""
    return Step(state=Ended(ledger=ledger, outcome=outcome), reason=outcome.reason)


def stopped_by(signum: int) -> Outcome:
    """Return the outcome of an agent that was told to stop."""
    return Outcome(ending=AgentEnd.STOPPED, exit_code=128 + signum, reason=f"stopped by signal {signum}")


def stop(
    ledger: Ledger,
    round: Round,
    then: Then,
    reason: str,
    *,
    first: Iterable[m.AgentCommand] = (),
    incident: m.RecordIncident | None = None,
    grace_s: float | None = None,
    planned: bool = False,
    ends_run: bool = False,
) -> Step:
    """Stop the workers, and watch on for what the run decides meanwhile; `ends_run`: it is bound to be the end."""
    stopping = Stopping(ledger=ledger, round=round, then=then, incident=incident)
    # With other nodes, exit handlers get no extra time: workers there wait in collectives until the workers here are
    # gone.
    ends = (ends_run or isinstance(then, End)) and round.node_count == 1
    halt = m.StopWorkers(signum=SIGTERM, reason=reason, grace_s=grace_s, planned=planned, ends_run=ends)
    return Step(state=stopping, commands=(*first, halt, *watch_on(ledger)), reason=reason)


def stop_and_wait(
    ledger: Ledger, round: Round, reason: str, first: Iterable[m.AgentCommand] = (), *, ends_run: bool = False
) -> Step:
    """Stop the workers because the run was stopped; then wait for what it decides. `ends_run` as in `stop`."""
    timer = m.SetTimer(name=REPORT, delay_s=REPORT_S)
    return stop(ledger, round, Await(), reason, first=(*first, timer), ends_run=ends_run)


def wait_for_run(ledger: Ledger, round: Round, reason: str, first: Iterable[m.AgentCommand] = ()) -> Step:
    """Report this node's evidence, and wait for the run's decision; no worker exists."""
    report = m.ReportEvidence(round=round, final=True)
    return Step(state=Awaiting(ledger=ledger, round=round), commands=(*first, report, *watch_on(ledger)), reason=reason)


def drain(
    ledger: Ledger,
    round: Round,
    signum: int,
    now_s: float,
    first: Iterable[m.AgentCommand] = (),
    *,
    finished: bool = False,
    grace_s: float | None = None,
    planned: bool = False,
) -> Step:
    """Stop the workers with the signal that we got, then leave; `grace_s` bounds their grace period.

    `finished`: none is left, so that the others lose nothing by it and need not know. `planned`: none has failed.
    """
    outcome = stopped_by(signum)
    stopping = Stopping(ledger=ledger, round=round, then=End(outcome=outcome), stop_asked_s=now_s)
    halt = m.StopWorkers(signum=signum, reason=outcome.reason, drain=True, grace_s=grace_s, planned=planned)
    gone = () if finished else depart(ledger)
    return Step(state=stopping, commands=(*first, *gone, halt, *watch_on(ledger)), reason=outcome.reason)


def watch_on(ledger: Ledger) -> tuple[m.AgentCommand, ...]:
    """The next look at a run that is decided about elsewhere."""
    return (m.WatchRound(),) if ledger.control else ()


def depart(ledger: Ledger) -> tuple[m.AgentCommand, ...]:
    """The announcement to the run that this node will go."""
    return (m.AnnounceDeparture(),) if ledger.control else ()


def without_workers(summary: str, kind: FailureClass, round_index: int = -1) -> Failure:
    """Return a failure that no worker is to blame for."""
    return Failure(
        failure_class=kind,
        summary=summary,
        node_id="",
        round_index=round_index,
        at_s=0.0,
        uptime_s=0.0,
        message=summary,
    )


def noted(ledger: Ledger, failure: Failure, decision: Decision, *, restarts: int) -> Ledger:
    """Add a failure with its decision to the ledger's history, and the restarts that it costs to its count."""
    history = remembered(ledger.history, replace(failure, decision=decision))
    return replace(ledger, restart_count=ledger.restart_count + restarts, history=history)


def after_stop(ledger: Ledger, then: Rejoin | End, incident: m.RecordIncident | None, asked_s: float | None) -> Step:
    """Record the incident, then do what was to follow: no worker exists any more."""
    # The incident lists how each worker ended, which is known only now.
    recorded: tuple[m.AgentCommand, ...] = () if incident is None else (incident,)
    match then:
        case End(outcome=outcome):
            return leave(ledger, outcome, recorded, asked_s)
        case Rejoin(delay_s=delay_s) if delay_s > 0:
            timer = m.SetTimer(name=BACKOFF, delay_s=delay_s)
            return Step(
                state=Waiting(ledger=ledger), commands=(*recorded, timer), reason=f"next round in {delay_s:g} s"
            )
        case Rejoin():
            return gate(ledger, "next round", recorded)
