"""Closed unions: events and commands of the agent machine, what agent and rendezvous exchange, moments of hooks."""

from elastic_core.moments import Agreed as Agreed
from elastic_core.moments import LaunchChange, Moment
from elastic_core.moments import StepsAsked as StepsAsked
from elastic_core.moments import StepsSeen as StepsSeen
from elastic_core.moments import StoreCall as StoreCall
from elastic_core.reports import Absence, NodeReport, NodeSteps
from elastic_core.types import Decided, Decision, Failure, Record, Restart, Round, RoundChange, Stop, WorkerExit

# --- events of the agent machine ---


class StartRequested(Record, frozen=True, kw_only=True):
    """The agent was told to run; `control`: its rendezvous takes one decision for the whole run.

    `gathers`: it does so on the evidence of all nodes, when all workers are gone. `stop_signals`: those that the agent
    takes for an order to stop. `stands_aside`: this node can wait beside the rounds of the others; if not, it waits at
    most `join_timeout_s` for a hook that refuses. `spread`, below 1, makes its pauses another node's no more.
    """

    control: bool = False
    gathers: bool = False
    stop_signals: tuple[int, ...] = ()
    stands_aside: bool = False
    join_timeout_s: float = 600.0
    spread: float = 0.0


class JoinAllowed(Record, frozen=True, kw_only=True):
    """No hook objects to joining."""


class JoinRefused(Record, frozen=True, kw_only=True):
    """A hook refused to let this node join; `hook` has its distribution, too, `again_s` is its wish (None: none)."""

    hook: str
    reason: str
    again_s: float | None = None


class RoundFormed(Record, frozen=True, kw_only=True):
    """The rendezvous gave this node a place."""

    round: Round


class RendezvousFailed(Record, frozen=True, kw_only=True):
    """The rendezvous gave up; `exit_code` is the error's (0: this node is not needed).

    `refused`: nodes are missing because their hooks refuse. `decided`: how the run has ended for a failure, of which
    this node was without a place in its last round.
    """

    summary: str
    exit_code: int = 4
    refused: bool = False
    decided: Decided | None = None


class RoundChanged(Record, frozen=True, kw_only=True):
    """The rendezvous reports something about the round in progress."""

    change: RoundChange


class StartAllowed(Record, frozen=True, kw_only=True):
    """Hooks were asked; `changes` are theirs, by local rank; empty: none."""

    changes: tuple[LaunchChange, ...] = ()


class StartRefused(Record, frozen=True, kw_only=True):
    """A hook refused to let workers start; the rest as in JoinRefused."""

    hook: str
    reason: str
    again_s: float | None = None


class WorkersSpawned(Record, frozen=True, kw_only=True):
    """All workers of the round exist."""


class SpawnFailed(Record, frozen=True, kw_only=True):
    """A worker could not be started; `alive` names the local ranks that were."""

    failure: Failure
    alive: frozenset[int] = frozenset()


class HangFound(Record, frozen=True, kw_only=True):
    """Workers have failed that still run: they give no sign of life, or do not end after an uncaught exception."""

    failure: Failure


class WorkerExited(Record, frozen=True, kw_only=True):
    """A worker ended."""

    exit: WorkerExit


class Examined(Record, frozen=True, kw_only=True):
    """The evidence was read: this was the first cause."""

    failure: Failure


class DecisionMade(Record, frozen=True, kw_only=True):
    """The failure policy has answered."""

    failure: Failure
    decision: Decision


class WorkersStopped(Record, frozen=True, kw_only=True):
    """Every worker of the round and everything that they started is gone."""


class TimerFired(Record, frozen=True, kw_only=True):
    """A timer that the machine had set has come due."""

    name: str


class StopRequested(Record, frozen=True, kw_only=True):
    """The agent was told to stop by signal `signum`, or as if by one; `grace_s` bounds the workers' grace period."""

    signum: int
    grace_s: float | None = None


class RestartRequested(Record, frozen=True, kw_only=True):
    """Somebody wants all workers of the run started again; nothing has failed."""

    reason: str


class SignalForwarded(Record, frozen=True, kw_only=True):
    """A signal that is for the workers (USR1, USR2)."""

    signum: int


class RendezvousLeft(Record, frozen=True, kw_only=True):
    """The rendezvous was left."""


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
    """Ask the hooks whether this node may join; answers with JoinAllowed or JoinRefused.

    `refused`: the round whose start they have refused; about that they are asked first.
    """

    round_index: int
    refused: Round | None = None
    restart_count: int = 0


class JoinRendezvous(Record, frozen=True, kw_only=True):
    """Begin the next round; answers with RoundFormed or RendezvousFailed."""


class StandAside(Record, frozen=True, kw_only=True):
    """Wait beside the rounds of the others, without a place; answers with RendezvousFailed when there is no more use.

    A round that this node has is over for it, and none of its workers was started.
    """

    absence: Absence


class WatchRound(Record, frozen=True, kw_only=True):
    """After `delay_s`, report what changes about the round; answers with one RoundChanged."""

    delay_s: float = 0.0


class CancelRendezvous(Record, frozen=True, kw_only=True):
    """End whatever the rendezvous thread blocks in."""


class AskToStart(Record, frozen=True, kw_only=True):
    """Ask the hooks before workers start; answers with StartAllowed or StartRefused."""

    round: Round
    restart_count: int


class SpawnWorkers(Record, frozen=True, kw_only=True):
    """Start all workers of a round; answers with WorkersSpawned or SpawnFailed."""

    round: Round
    restart_count: int
    membership_changes: int
    changes: tuple[LaunchChange, ...] = ()


class StopWorkers(Record, frozen=True, kw_only=True):
    """Run the stop ladder: signal, grace period, KILL, sweep; answers with WorkersStopped.

    `drain`: the agent itself was told to stop. `grace_s` bounds the grace period; None: it is the user's. `planned`:
    the workers are healthy, and so are those of all other nodes, so that hooks may hold it until all have saved.
    `ends_run`: no worker is started after it, and none runs on another node.
    """

    signum: int
    reason: str
    drain: bool = False
    grace_s: float | None = None
    planned: bool = False
    ends_run: bool = False


class ShortenGrace(Record, frozen=True, kw_only=True):
    """Let a running stop ladder KILL after `grace_s` from now, unless it would before.

    `at_once`: one that is held is held no longer: there is no time to save.
    """

    grace_s: float
    at_once: bool = False


class AnnounceDrain(Record, frozen=True, kw_only=True):
    """Announce that the agent was told to stop, while the workers are being stopped for another reason."""

    signum: int


class KillWorkers(Record, frozen=True, kw_only=True):
    """Cut a running stop ladder short: KILL now."""


class ForwardSignal(Record, frozen=True, kw_only=True):
    """Have every worker get a signal when it is ready for it; where none runs, those that are started next."""

    signum: int


class Examine(Record, frozen=True, kw_only=True):
    """Read the evidence of the exits; answers with Examined."""

    exits: tuple[WorkerExit, ...]
    round: Round


class AskPolicy(Record, frozen=True, kw_only=True):
    """Ask the failure policy; answers with DecisionMade."""

    failure: Failure
    history: tuple[Failure, ...]


class RecordIncident(Record, frozen=True, kw_only=True):
    """Write the incident with its decision; nothing that goes wrong from here on replaces it.

    `evidence` is what was known of all nodes where it was decided; empty: this node's own is all there is.
    """

    failure: Failure
    decision: Decision
    evidence: str = ""


class PublishDecision(Record, frozen=True, kw_only=True):
    """Take what was decided here to the whole run; what stands then arrives as RoundChanged with a Decided.

    `failure` None: nothing has failed. `question`: that of the DecisionAsked of which this is the answer, some time
    later perhaps; empty: this node was not asked. `evidence` as in RecordIncident; `policy`: the one that decided.
    """

    failure: Failure | None = None
    decision: Restart | Stop
    evidence: str = ""
    question: str = ""
    policy: str = ""


class RequestRestart(Record, frozen=True, kw_only=True):
    """Report to the run that its workers are to be started again, though nothing has failed."""

    reason: str


class ReportDecision(Record, frozen=True, kw_only=True):
    """Print what was decided elsewhere for the whole run; `evidence` as in RecordIncident.

    `restart_count` has this restart in it.
    """

    failure: Failure
    decision: Restart | Stop
    evidence: str = ""
    restart_count: int


class OrderStop(Record, frozen=True, kw_only=True):
    """Have all nodes stop their workers, for a failure on this one; what follows arrives as RoundChanged.

    `report`: what this node has seen by then, which the shell fills in.
    """

    failure: Failure
    report: NodeReport | None = None


class ReportEvidence(Record, frozen=True, kw_only=True):
    """Give the run a NodeReport of what has ended here, and how; `final`: no worker of this node lives."""

    round: Round
    final: bool


class DecideAlone(Record, frozen=True, kw_only=True):
    """Decide on this node's own evidence, as nobody decides for the run; answers with DecisionMade.

    `final`: without a policy, as there is no further round.
    """

    round: Round
    reason: str
    final: bool
    history: tuple[Failure, ...] = ()


class ReportFinishing(Record, frozen=True, kw_only=True):
    """Report to the run that the first worker of this node has ended well."""


class ReportDone(Record, frozen=True, kw_only=True):
    """Report to the run that all workers of this node have ended well."""


class AnnounceDeparture(Record, frozen=True, kw_only=True):
    """Report to the run that this node was told to stop, and will leave when its workers have ended."""


class PrintLine(Record, frozen=True, kw_only=True):
    """Print one line on the console; `store_reachable`: it says that the rendezvous store is away (False), or back."""

    text: str
    store_reachable: bool | None = None


class SetTimer(Record, frozen=True, kw_only=True):
    """Answer with TimerFired(name) after `delay_s`; replaces a timer of that name."""

    name: str
    delay_s: float


class CancelTimer(Record, frozen=True, kw_only=True):
    """Forget a timer."""

    name: str


class LeaveRendezvous(Record, frozen=True, kw_only=True):
    """Leave; `close` ends the run for all nodes. Answers with RendezvousLeft."""

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


class AskSteps(Record, frozen=True, kw_only=True):
    """A question to all nodes, as workers of this one may hang: how far are yours? Each gets StepsAsked."""


class ReportSteps(Record, frozen=True, kw_only=True):
    """How far the workers of this node are: the answer to StepsAsked."""

    steps: NodeSteps


class StateNumber(Record, frozen=True, kw_only=True):
    """This node's number for what the nodes of its round agree about; all get Agreed once all have stated theirs."""

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
    | AskSteps
    | ReportSteps
    | StateNumber
    | ReportFinishing
    | ReportDone
    | AnnounceDeparture
    | LeaveRendezvous
)


class DecisionAsked(Record, frozen=True, kw_only=True):
    """This node is to decide for the whole run, by its policy; the answer is PublishDecision with `question`."""

    reports: tuple[NodeReport, ...]
    history: tuple[Failure, ...]
    question: str


class LeftOut(Record, frozen=True, kw_only=True):
    """This node waits without a place as a policy has left it out; None: no longer."""

    absence: Absence | None


class DrainOrdered(Record, frozen=True, kw_only=True):
    """Somebody outside the run wants this node to end, as SIGTERM would; `text` says who, and whether the run ends."""

    text: str
    grace_s: float | None = None


class Fenced(Record, frozen=True, kw_only=True):
    """By then this node's workers must be dead, whatever becomes of the agent; a later one replaces it."""

    until_s: float


class SeatHeld(Record, frozen=True, kw_only=True):
    """The seat to give back when the agent has died: the store's class (`module:Class`) and the seat as JSON.

    Empty: there is none to give back.
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
    | StepsAsked
    | StepsSeen
    | Agreed
    | LeftOut
    | DrainOrdered
    | Fenced
    | SeatHeld
    | StoreCall
)
