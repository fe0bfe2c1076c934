"""The states of an agent, one frozen record each; `Step`, and transitions that several states share."""

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
"""The changes that end a round for all its nodes."""


class Gates(Record, frozen=True, kw_only=True):
    """How this node waits while a hook refuses, and the refusals since its workers last ran."""

    aside: bool = False
    """Whether the rendezvous lets this node wait beside the rounds of other nodes."""
    join_timeout_s: float = 600.0
    """How long this node waits if the rendezvous does not, in seconds."""
    spread: float = 0.0
    count: int = 0
    since_s: float = 0.0
    """The time of the first refusal, if any."""
    shown: str = ""
    """The last printed reason."""


class Ledger(Record, frozen=True, kw_only=True):
    """The history of the run, carried from state to state."""

    restart_count: int = 0
    """Restarts after failures: exported as TORCHELASTIC_RESTART_COUNT."""
    rounds: int = 0
    """The number of rounds so far, which is the next round's index."""
    membership_changes: int = 0
    """New rounds because nodes joined or left; they never cost restart budget."""
    history: tuple[Failure, ...] = ()
    """Failures so far, oldest first, each with its decision."""
    control: bool = False
    """Whether the rendezvous makes one decision for the run: this node publishes its own, and the run's counts."""
    gathers: bool = False
    """Whether that decision uses all nodes' evidence: a failure here stops all nodes, and this node waits for it."""
    stop_signals: tuple[int, ...] = ()
    """The signals that stop the agent: a worker that dies of one may have received it together with the agent."""
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
    """After the workers have ended: wait `delay_s`, then begin the next round."""

    delay_s: float = 0.0


class End(Record, frozen=True, kw_only=True):
    """After the workers have ended: leave."""

    outcome: Outcome


class Await(Record, frozen=True, kw_only=True):
    """After the workers have ended: report the evidence, and wait for the run's decision."""


Then = Rejoin | End | Await


class Created(Record, frozen=True, kw_only=True):
    """The agent was created; no event has happened."""

    ledger: Ledger = Ledger()


class Gating(Record, frozen=True, kw_only=True):
    """Hooks decide whether this node may join. `refused` is the round in which they refused to start workers."""

    ledger: Ledger
    refused: Round | None = None


class Refused(Record, frozen=True, kw_only=True):
    """A hook refuses: no worker exists, and this node waits until the hook is called again. `round` is as in Gating."""

    ledger: Ledger
    absence: Absence
    round: Round | None = None


class Joining(Record, frozen=True, kw_only=True):
    """The rendezvous is forming a round."""

    ledger: Ledger


class Preparing(Record, frozen=True, kw_only=True):
    """Hooks decide whether workers may start. `over` is set if the round is over already."""

    ledger: Ledger
    round: Round
    over: RoundOver | None = None


class Starting(Record, frozen=True, kw_only=True):
    """Workers are being started. `over` is set if the round is over already."""

    ledger: Ledger
    round: Round
    over: RoundOver | None = None


class Running(Record, frozen=True, kw_only=True):
    """Workers run. `done` workers have exited with 0; `ignored` workers failed, and the policy continues without them.

    If none is `alive`, this node has finished and waits for the others.
    """

    ledger: Ledger
    round: Round
    alive: frozenset[int]
    done: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()


class Deciding(Record, frozen=True, kw_only=True):
    """The evidence is gathered, then the policy decides. `running` is `None` if no worker of the round was started."""

    ledger: Ledger
    running: Running | None
    round: Round
    exits: tuple[WorkerExit, ...] = ()
    alone: bool = False
    """Whether no other node decides for the run."""


class Stopping(Record, frozen=True, kw_only=True):
    """The stop sequence runs. `stop_asked_s` is the time of the first stop signal, if any."""

    ledger: Ledger
    round: Round
    then: Then
    incident: m.RecordIncident | None = None
    stop_asked_s: float | None = None


class Awaiting(Record, frozen=True, kw_only=True):
    """No worker exists; the run was stopped after a failure, and the decision for all nodes is pending."""

    ledger: Ledger
    round: Round


class Waiting(Record, frozen=True, kw_only=True):
    """No worker exists; the delay before a restart runs."""

    ledger: Ledger


class Leaving(Record, frozen=True, kw_only=True):
    """The node is leaving the rendezvous."""

    ledger: Ledger
    outcome: Outcome
    stop_asked_s: float | None = None


class Ended(Record, frozen=True, kw_only=True):
    """The final state."""

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
    | Deciding
    | Stopping
    | Awaiting
    | Waiting
    | Leaving
    | Ended
)


URGE_S = 0.5
"""A second stop signal counts only this many seconds after the first, because one Ctrl-C can arrive twice."""
LEAVE_S = 3.0
"""How long leaving the rendezvous may delay the agent's end, in seconds."""
PARKED_WATCH_S = 1.0
"""Seconds between two watches of the round while new nodes have to wait."""

REPORT_S = 1.0
"""Seconds until this node's report is sent even if its workers have not stopped."""

BACKOFF, LEAVE, REPORT, GATE = "backoff", "leave", "report", "gate"
SIGTERM = 15


class Step(Record, frozen=True, kw_only=True):
    """The result of `advance`: the next state, the commands in order, and the reason."""

    state: AgentState
    commands: tuple[m.AgentCommand, ...] = ()
    reason: str = ""


def gate(ledger: Ledger, reason: str, first: Iterable[m.AgentCommand] = (), refused: Round | None = None) -> Step:
    """Request the hooks' permission to join the next round."""
    ask = m.AskToJoin(round_index=ledger.rounds, refused=refused, restart_count=ledger.restart_count)
    return Step(state=Gating(ledger=ledger, refused=refused), commands=(*first, ask), reason=reason)


def leave(ledger: Ledger, outcome: Outcome, first: Iterable[m.AgentCommand] = (), asked_s: float | None = None) -> Step:
    """Leave the rendezvous.

    A rendezvous that decides for the whole run is not closed by a leaving node: its verdict ends the run.
    """
    # A stop signal is for this node: if it closed the rendezvous, the remaining nodes could form no further round.
    close = outcome.ending is not AgentEnd.STOPPED and not ledger.control
    commands = (*first, m.SetTimer(name=LEAVE, delay_s=LEAVE_S), m.LeaveRendezvous(close=close))
    return Step(
        state=Leaving(ledger=ledger, outcome=outcome, stop_asked_s=asked_s), commands=commands, reason=outcome.reason
    )


def leave_on_stop(ledger: Ledger, signum: int, now_s: float, *first: m.AgentCommand) -> Step:
    """Leave the rendezvous without workers after a stop request; hooks are notified of a drain."""
    return leave(ledger, stopped_by(signum), (m.AnnounceDrain(signum=signum), *first), asked_s=now_s)


def end(ledger: Ledger, outcome: Outcome) -> Step:
    """End immediately."""
    return Step(state=Ended(ledger=ledger, outcome=outcome), reason=outcome.reason)


def stopped_by(signum: int) -> Outcome:
    """Return the outcome of an agent that was stopped by a signal."""
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
    """Stop the workers, and keep watching for the run's decision; `ends_run` means that the run will end."""
    stopping = Stopping(ledger=ledger, round=round, then=then, incident=incident)
    # With several nodes, exit handlers get no extra time: workers on other nodes wait in collectives until the workers
    # here have ended.
    ends = (ends_run or isinstance(then, End)) and round.node_count == 1
    halt = m.StopWorkers(
        signum=SIGTERM,
        reason=reason,
        grace_s=grace_s,
        planned=planned,
        ends_run=ends,
        may_leave=not ends_run and not isinstance(then, End),
    )
    return Step(state=stopping, commands=(*first, halt, *watch_on(ledger)), reason=reason)


def stop_and_wait(
    ledger: Ledger, round: Round, reason: str, first: Iterable[m.AgentCommand] = (), *, ends_run: bool = False
) -> Step:
    """Stop the workers because the run was stopped, then wait for the run's decision. `ends_run` is as in `stop`."""
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
    *,
    finished: bool = False,
    grace_s: float | None = None,
    planned: bool = False,
) -> Step:
    """Stop the workers with the agent's stop signal, then leave; `grace_s` limits their grace period.

    `finished` means that no worker is left, so that other nodes need no announcement. `planned` means that none failed.
    """
    outcome = stopped_by(signum)
    stopping = Stopping(ledger=ledger, round=round, then=End(outcome=outcome), stop_asked_s=now_s)
    halt = m.StopWorkers(signum=signum, reason=outcome.reason, drain=True, grace_s=grace_s, planned=planned)
    gone = () if finished else depart(ledger)
    return Step(state=stopping, commands=(*gone, halt, *watch_on(ledger)), reason=outcome.reason)


def watch_on(ledger: Ledger) -> tuple[m.AgentCommand, ...]:
    """Return the next watch of a run that is decided elsewhere."""
    return (m.WatchRound(),) if ledger.control else ()


def depart(ledger: Ledger) -> tuple[m.AgentCommand, ...]:
    """Return the announcement to the run that this node will leave."""
    return (m.AnnounceDeparture(),) if ledger.control else ()


def without_workers(summary: str, kind: FailureClass, round_index: int = -1) -> Failure:
    """Return a failure that no worker caused."""
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
    """Return the ledger with a failure and its decision in the history, and its restarts counted."""
    history = remembered(ledger.history, replace(failure, decision=decision))
    return replace(ledger, restart_count=ledger.restart_count + restarts, history=history)


def after_stop(ledger: Ledger, then: Rejoin | End, incident: m.RecordIncident | None, asked_s: float | None) -> Step:
    """Record the incident, then carry out `then`; no worker exists any more."""
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
