"""The messages of the agent: events and commands of its state machine, and of the rendezvous."""

from elastic_core.moments import Agreed as Agreed
from elastic_core.moments import AnswersGathered as AnswersGathered
from elastic_core.moments import Concluded as Concluded
from elastic_core.moments import LaunchChange, Moment
from elastic_core.moments import NodesAsked as NodesAsked
from elastic_core.moments import StoreCall as StoreCall
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import (
    Decided,
    Decision,
    Failure,
    Record,
    Restart,
    RosterMember,
    Round,
    RoundChange,
    Stop,
    WorkerExit,
)

# --- events of the agent machine ---


class StartRequested(Record, frozen=True, kw_only=True):
    """The agent was started; `control`: its rendezvous makes one decision for the whole run.

    `gathers`: that decision uses the evidence of all nodes, after all workers have ended. `stop_signals`: the signals
    that stop the agent. `stands_aside`: this node can wait without a place in the rounds of the others; if not, it
    waits at most `join_timeout_s` while a hook refuses. `spread` (0 to 1) is jitter, so that nodes do not retry at the
    same time.
    """

    control: bool = False
    gathers: bool = False
    stop_signals: tuple[int, ...] = ()
    stands_aside: bool = False
    join_timeout_s: float = 600.0
    spread: float = 0.0


class JoinAllowed(Record, frozen=True, kw_only=True):
    """No hook refuses to join."""


class JoinRefused(Record, frozen=True, kw_only=True):
    """A hook of this node refused to join; `hook` includes its distribution, `again_s` is its requested pause."""

    hook: str
    reason: str
    again_s: float | None = None


class RoundFormed(Record, frozen=True, kw_only=True):
    """The rendezvous returned a place for this node; `members` are the round's nodes, if the backend provides them."""

    round: Round
    members: tuple[RosterMember, ...] = ()


class RendezvousFailed(Record, frozen=True, kw_only=True):
    """The rendezvous failed; `exit_code` is the error's (0: this node is not needed).

    `refused`: nodes are missing because their hooks refuse. `decided`: the decision that ended the run after a failure,
    if this node had no place in the last round.
    """

    summary: str
    exit_code: int = 4
    refused: bool = False
    decided: Decided | None = None


class RoundChanged(Record, frozen=True, kw_only=True):
    """The rendezvous reports a change of the current round."""

    change: RoundChange


class StartAllowed(Record, frozen=True, kw_only=True):
    """The hooks allow the start; `changes` are their changes by local rank, empty if there are none."""

    changes: tuple[LaunchChange, ...] = ()


class StartRefused(Record, frozen=True, kw_only=True):
    """A hook refused to start workers; fields as in JoinRefused."""

    hook: str
    reason: str
    again_s: float | None = None


class WorkersSpawned(Record, frozen=True, kw_only=True):
    """All workers of the round were started."""


class SpawnFailed(Record, frozen=True, kw_only=True):
    """A worker could not be started; `alive` has the local ranks of the workers that were."""

    failure: Failure
    alive: frozenset[int] = frozenset()


class HangFound(Record, frozen=True, kw_only=True):
    """Workers have failed that still run: they give no sign of life, or do not end after an uncaught exception."""

    failure: Failure


class WorkerExited(Record, frozen=True, kw_only=True):
    """A worker ended."""

    exit: WorkerExit


class Examined(Record, frozen=True, kw_only=True):
    """The evidence was read; `failure` is the first cause."""

    failure: Failure


class DecisionMade(Record, frozen=True, kw_only=True):
    """The failure policy has decided."""

    failure: Failure
    decision: Decision


class WorkersStopped(Record, frozen=True, kw_only=True):
    """All workers of the round and all their processes have ended."""


class TimerFired(Record, frozen=True, kw_only=True):
    """A timer of the machine has expired."""

    name: str


class StopRequested(Record, frozen=True, kw_only=True):
    """Signal `signum`, or an equivalent request, stops the agent; `grace_s` bounds the workers' grace period."""

    signum: int
    grace_s: float | None = None


class RestartRequested(Record, frozen=True, kw_only=True):
    """A user or a hook requests a restart of all workers of the run; there is no failure."""

    reason: str


class SignalForwarded(Record, frozen=True, kw_only=True):
    """A signal for the workers (USR1, USR2) has arrived."""

    signum: int


class RendezvousLeft(Record, frozen=True, kw_only=True):
    """The agent has left the rendezvous."""


AgentEvent = (
    StartRequested
    | JoinAllowed
    | JoinRefused
    | RoundFormed
    | RendezvousFailed
    | RoundChanged
    | StartAllowed
    | StartRefused
    | WorkersSpawned
    | SpawnFailed
    | HangFound
    | WorkerExited
    | Examined
    | DecisionMade
    | WorkersStopped
    | TimerFired
    | StopRequested
    | RestartRequested
    | SignalForwarded
    | RendezvousLeft
)


# --- commands of the agent machine ---


class AskToJoin(Record, frozen=True, kw_only=True):
    """Call the hooks before this node joins; answered by JoinAllowed or JoinRefused.

    `refused`: the round whose start hooks have refused before. Its start is checked first.
    """

    round_index: int
    refused: Round | None = None
    restart_count: int = 0


class JoinRendezvous(Record, frozen=True, kw_only=True):
    """Begin the next round; answered by RoundFormed or RendezvousFailed."""


class StandAside(Record, frozen=True, kw_only=True):
    """Wait without a place in the rounds of the others; answered by RendezvousFailed when waiting is of no more use.

    If this node has a round, that round is over for it, and none of its workers was started.
    """

    absence: Absence


class WatchRound(Record, frozen=True, kw_only=True):
    """After `delay_s`, report changes of the round; answered by one RoundChanged."""

    delay_s: float = 0.0


class CancelRendezvous(Record, frozen=True, kw_only=True):
    """End the blocking call of the rendezvous thread."""


class AskToStart(Record, frozen=True, kw_only=True):
    """Call the hooks before workers start; answered by StartAllowed or StartRefused."""

    round: Round
    restart_count: int


class SpawnWorkers(Record, frozen=True, kw_only=True):
    """Start all workers of a round; answered by WorkersSpawned or SpawnFailed."""

    round: Round
    restart_count: int
    membership_changes: int
    changes: tuple[LaunchChange, ...] = ()


class StopWorkers(Record, frozen=True, kw_only=True):
    """Run the stop ladder: signal, grace period, KILL, sweep; answered by WorkersStopped.

    `drain`: the agent itself was stopped. `grace_s` bounds the grace period; `None` means the user's setting.
    `planned`: the workers of all nodes are healthy, so hooks may delay the stop until all have saved. `ends_run`: no
    worker starts after it, and none runs on another node. `may_leave`: a round may follow, so a live worker may leave
    this one in place of ending.
    """

    signum: int
    reason: str
    drain: bool = False
    grace_s: float | None = None
    planned: bool = False
    ends_run: bool = False
    may_leave: bool = False


class NoneMayLeave(Record, frozen=True, kw_only=True):
    """No round follows the stop that was ordered: workers that have not left are stopped like all others."""


class ShortenGrace(Record, frozen=True, kw_only=True):
    """Make a running stop ladder KILL after `grace_s` from now at the latest.

    `at_once`: end the delay by hooks too, because there is no time to save.
    """

    grace_s: float
    at_once: bool = False


class AnnounceDrain(Record, frozen=True, kw_only=True):
    """Notify hooks that the agent was stopped, while the workers are being stopped for another reason."""

    signum: int


class KillWorkers(Record, frozen=True, kw_only=True):
    """Make a running stop ladder KILL now."""


class ForwardSignal(Record, frozen=True, kw_only=True):
    """Send a signal to every worker that is ready for it. If none runs, the next workers get it."""

    signum: int


class Examine(Record, frozen=True, kw_only=True):
    """Read the evidence of the workers that failed, until it shows the first cause; answered by Examined."""


class AskPolicy(Record, frozen=True, kw_only=True):
    """Call the failure policy; answered by DecisionMade."""

    failure: Failure
    history: tuple[Failure, ...]


class RecordIncident(Record, frozen=True, kw_only=True):
    """Write the incident with its decision. Later errors do not replace it.

    `evidence` is the evidence of all nodes on which the decision was based. Empty means only this node's own.
    """

    failure: Failure
    decision: Decision
    evidence: str = ""


class PublishDecision(Record, frozen=True, kw_only=True):
    """Publish this node's decision to the whole run; the valid decision arrives as RoundChanged with a Decided.

    `failure` is `None` if nothing failed. `question` is that of the DecisionAsked that this answers, perhaps some time
    later; empty if this node was not asked. `evidence` is as in RecordIncident; `policy` is the policy that decided.
    """

    failure: Failure | None = None
    decision: Restart | Stop
    evidence: str = ""
    question: str = ""
    policy: str = ""


class RequestRestart(Record, frozen=True, kw_only=True):
    """Request a restart of the run's workers, although nothing has failed."""

    reason: str


class ReportDecision(Record, frozen=True, kw_only=True):
    """Print a decision that another node made for the whole run; `evidence` is as in RecordIncident.

    `restart_count` includes this restart.
    """

    failure: Failure
    decision: Restart | Stop
    evidence: str = ""
    restart_count: int


class OrderStop(Record, frozen=True, kw_only=True):
    """Make all nodes stop their workers, for a failure on this one; what follows arrives as RoundChanged.

    `report`: this node's evidence so far, which the shell adds.
    """

    failure: Failure
    report: NodeReport | None = None


class ReportEvidence(Record, frozen=True, kw_only=True):
    """Send the run a NodeReport of this node's evidence; `final`: all workers of this node have ended."""

    round: Round
    final: bool


class DecideAlone(Record, frozen=True, kw_only=True):
    """Decide on this node's own evidence, because no node decides for the run; answered by DecisionMade.

    `final`: decide without a policy, because no further round follows.
    """

    round: Round
    reason: str
    final: bool
    history: tuple[Failure, ...] = ()


class ReportFinishing(Record, frozen=True, kw_only=True):
    """Report to the run that the first worker of this node has exited with 0."""


class ReportDone(Record, frozen=True, kw_only=True):
    """Report to the run that all workers of this node have exited with 0."""


class AnnounceDeparture(Record, frozen=True, kw_only=True):
    """Report to the run that this node was stopped and leaves when its workers have ended."""


class PrintLine(Record, frozen=True, kw_only=True):
    """Print one line on the console; `store_reachable` is set if it reports a store outage (False) or its end."""

    text: str
    store_reachable: bool | None = None


class SetTimer(Record, frozen=True, kw_only=True):
    """Send TimerFired(name) after `delay_s`. It replaces a timer of that name."""

    name: str
    delay_s: float


class CancelTimer(Record, frozen=True, kw_only=True):
    """Cancel a timer."""

    name: str


class LeaveRendezvous(Record, frozen=True, kw_only=True):
    """Leave the rendezvous; `close` ends the run for all nodes. Answered by RendezvousLeft."""

    close: bool


class NotifyHooks(Record, frozen=True, kw_only=True):
    """Pass a moment to the hooks."""

    moment: "Moment"


AgentCommand = (
    AskToJoin
    | JoinRendezvous
    | StandAside
    | WatchRound
    | CancelRendezvous
    | AskToStart
    | SpawnWorkers
    | StopWorkers
    | NoneMayLeave
    | ShortenGrace
    | AnnounceDrain
    | KillWorkers
    | ForwardSignal
    | Examine
    | AskPolicy
    | RecordIncident
    | PublishDecision
    | RequestRestart
    | ReportDecision
    | OrderStop
    | ReportEvidence
    | DecideAlone
    | ReportFinishing
    | ReportDone
    | AnnounceDeparture
    | PrintLine
    | SetTimer
    | CancelTimer
    | LeaveRendezvous
    | NotifyHooks
)


# --- between agent and rendezvous: requests, and events ---


class AskNodes(Record, frozen=True, kw_only=True):
    """Ask all nodes about a topic: each gets NodesAsked, and all get Concluded. `within_s` limits the answers' time."""

    topic: str
    within_s: float


class AnswerNodes(Record, frozen=True, kw_only=True):
    """This node's answer to a question, for the leader's AnswersGathered."""

    serial: int
    data: bytes


class ConcludeNodes(Record, frozen=True, kw_only=True):
    """The conclusion of the answers that this node has gathered, for all nodes."""

    serial: int
    data: bytes


NodesRequest = AskNodes | AnswerNodes | ConcludeNodes


class StateNumber(Record, frozen=True, kw_only=True):
    """This node's number for a topic; all nodes get Agreed once all have submitted theirs."""

    topic: str
    value: int


RendezvousRequest = (
    JoinRendezvous
    | StandAside
    | WatchRound
    | CancelRendezvous
    | PublishDecision
    | RequestRestart
    | OrderStop
    | NodeReport
    | NodesRequest
    | StateNumber
    | ReportFinishing
    | ReportDone
    | AnnounceDeparture
    | LeaveRendezvous
)


class DecisionAsked(Record, frozen=True, kw_only=True):
    """This node must decide for the whole run, by its policy; it answers by PublishDecision with `question`."""

    reports: tuple[NodeReport, ...]
    history: tuple[Failure, ...]
    question: str


class LeftOut(Record, frozen=True, kw_only=True):
    """This node waits without a place, because a policy excluded it. `None` means that this has ended."""

    absence: Absence | None


class DrainOrdered(Record, frozen=True, kw_only=True):
    """A process outside the run stops this node, as SIGTERM would; `text` names it, and whether the run ends."""

    text: str
    grace_s: float | None = None


class Fenced(Record, frozen=True, kw_only=True):
    """The time by which this node's workers must have ended, even if the agent dies. A later one replaces it."""

    until_s: float


class SeatHeld(Record, frozen=True, kw_only=True):
    """The seat to release if the agent dies: the store's class (`module:Class`) and the seat as JSON.

    Both are empty if there is no seat to release.
    """

    store: str
    seat: bytes


RendezvousEvent = (
    RoundFormed
    | RendezvousFailed
    | RoundChanged
    | RendezvousLeft
    | PrintLine
    | DecisionAsked
    | NodesAsked
    | AnswersGathered
    | Concluded
    | Agreed
    | LeftOut
    | DrainOrdered
    | Fenced
    | SeatHeld
    | StoreCall
)
