"""Moments in the life of an agent, as hooks observe them, and what hooks may answer."""

import enum
from collections.abc import Mapping, Sequence

from elastic_core.reports import FieldValue, RunSteps
from elastic_core.types import Decision, FailedWorker, Failure, Record, Round, RoundChange, WorkerExit


class AgentStarted(Record, frozen=True, kw_only=True):
    """The agent has begun. Called: once, before anything else."""

    run_id: str
    """The run's id."""
    node_id: str
    """This node's id."""
    run_dir: str
    """The run directory."""
    pid: int
    """The agent's process."""
    start_up: Mapping[str, float] = {}
    """What the agent's process has done before, in order, each with when it ended in monotonic seconds."""


class RoundJoining(Record, frozen=True, kw_only=True):
    """This node asks for a place in the next round; a hook may answer `Refuse`."""

    round_index: int
    """The index of the round that this node asks for, if nobody else has begun one."""


class RoundJoined(Record, frozen=True, kw_only=True):
    """A round was formed with this node in it."""

    round: Round
    """The round, with this node's place in it."""


class WorkersStarting(Record, frozen=True, kw_only=True):
    """Workers are about to be started; a hook may answer `Launches` or `Refuse`."""

    round: Round
    """The round that they will be in."""
    restart_count: int
    """Restarts after failures so far, of the whole run."""
    dry_run: bool = False
    """The answer is only shown (`--dry-run`), by a process that starts nothing."""
    asked_again: bool = False
    """A hook has refused this start, and its round goes on without this node: nothing is started on the answer."""


class WorkersStarted(Record, frozen=True, kw_only=True):
    """All workers of this node exist."""

    round: Round
    """The round that they are in."""
    pids: tuple[int, ...]
    """Their processes, by local rank."""


class WorkerEnded(Record, frozen=True, kw_only=True):
    """A worker of this node ended."""

    round_index: int
    """The round of the worker."""
    exit: WorkerExit
    """How its process ended."""


class FailureSeen(Record, frozen=True, kw_only=True):
    """A failure was examined; its decision follows."""

    failure: Failure
    """The first cause."""
    workers: tuple[FailedWorker, ...] = ()
    """This node's workers that had failed by then, in no order; empty: none is to blame."""


class DecisionTaken(Record, frozen=True, kw_only=True):
    """The policy has answered; of a decision for the whole run, every node of the round gets this."""

    failure: Failure
    """About which failure."""
    decision: Decision
    """What follows."""
    policy: str
    """Who decided."""
    fallback_reason: str = ""
    """Why the chosen policy did not, and `intensity` did; empty: it decided itself, or on another node."""
    decided_here: bool = True
    """This agent has asked the policy: of all nodes of a decision for the whole run, one. That node sends a message of
    which people want one; none does if the node is lost before the decision reaches it."""


class Draining(Record, frozen=True, kw_only=True):
    """The agent was told to stop by a signal."""

    signum: int
    """The signal's number."""
    deadline_s: float
    """Seconds that workers have from now: less than the grace period if they were being stopped already."""


class WorkersStopping(Record, frozen=True, kw_only=True):
    """The stop ladder begins."""

    round_index: int
    """The round whose workers are stopped."""
    reason: str
    """A line for people."""
    grace_s: float
    """Seconds until they are killed."""


class MembershipChanged(Record, frozen=True, kw_only=True):
    """The round ends because nodes came or went."""

    round_index: int
    """The round that ends."""
    change: RoundChange
    """What changed."""


class StepsAsked(Record, frozen=True, kw_only=True):
    """Some node asks how far the workers of all are; a hook that knows answers by `run.report_steps`.

    Its workers may hang: whoever answers does well to note where those of this node stand, too.
    """

    serial: int
    """The question's number: the answer has it, too."""


class StepsSeen(Record, frozen=True, kw_only=True):
    """What all nodes have answered; those that did not in time are left out."""

    seen: RunSteps
    """The answers of all nodes, put together."""


class StopPlanned(Record, frozen=True, kw_only=True):
    """All workers of the run are to be stopped though they are healthy, and hooks hold that until they have saved.

    `self.run.release_stop()` says that this hook needs no more time; the stop ladder begins when all that hold have.
    """

    round_index: int
    """The round whose workers will be stopped."""
    reason: str
    """A line for people."""
    hold_s: float
    """Seconds until the stop ladder begins in any case."""


class Agreed(Record, frozen=True, kw_only=True):
    """All nodes of the round that have workers have stated a number about a topic (`self.run.agree`)."""

    topic: str
    """About what."""
    value: int
    """The largest of their numbers."""


class AgentStopped(Record, frozen=True, kw_only=True):
    """The agent is done. Called: once, last."""

    exit_code: int
    """The agent's exit code."""
    reason: str
    """A line for people."""
    outcome: str = ""
    """`succeeded`, `failed`, or `stopped` by a signal or a request."""


Moment = (
    AgentStarted
    | RoundJoining
    | RoundJoined
    | WorkersStarting
    | WorkersStarted
    | WorkerEnded
    | FailureSeen
    | DecisionTaken
    | Draining
    | WorkersStopping
    | MembershipChanged
    | StepsAsked
    | StepsSeen
    | StopPlanned
    | Agreed
    | AgentStopped
)


# --- what only the feed has


class RanksAssigned(Record, frozen=True, kw_only=True):
    """The nodes of a round have agreed on their ranks."""

    took_s: float
    """How much of forming the round that took, in seconds."""


class StoreReachable(Record, frozen=True, kw_only=True):
    """The rendezvous store is away, or back."""

    reachable: bool
    """It is back."""
    text: str = ""
    """The line about it."""


class StoreCall(Record, frozen=True, kw_only=True):
    """A call to the rendezvous store has come back."""

    call: str
    """The store's method."""
    took_s: float
    """How many seconds it took."""
    failed: bool
    """It raised."""


class FieldsPublished(Record, frozen=True, kw_only=True):
    """A hook has set its fields (`self.run.publish`), in place of those before."""

    hook: str
    """The hook's name."""
    fields: Mapping[str, FieldValue]
    """By name."""


FeedMoment = RanksAssigned | StoreReachable | StoreCall | FieldsPublished


# --- what hooks may do


class Power(enum.StrEnum):
    """What a hook may do beside observing; a class states its own in `powers`."""

    LAUNCHES = "launches"
    """Change what is started: answer `on_workers_starting` with `Launches`."""
    RUN = "run"
    """Use the run's handle, `self.run`: report failures, ask for a restart or a drain, know the workers, set timers."""
    HOLDS = "holds"
    """Hold a planned stop until the workers have saved: for `hold_s` seconds, or until `self.run.release_stop()`."""
    FEED = "feed"
    """Take all that happens in the run, with its number and its time: `on_run_event`."""
    REFUSAL = "refusal"
    """Keep this node out: answer `on_joining` or `on_workers_starting` with `Refuse`."""
    STARTS = "starts"
    """Start workers' processes: `worker_starter` gives a `WorkerStarter`."""
    HOSTS = "hosts"
    """Host what workers meet at, in the place of rank 0's worker: `master_server` gives a `MasterServer`."""


class LaunchChange(Record, frozen=True, kw_only=True):
    """What a hook changes about the start of one worker."""

    environment: Mapping[str, str] = {}
    """Variables to add; those that say what the worker is are the agent's."""
    processors: frozenset[int] | None = None
    """Those that it may run on, from its first instruction on; None: as inherited."""
    command: tuple[str, ...] = ()
    """A program with its arguments to put in front of the worker's command, as `numactl` or a profiler is."""
    startup: tuple[str, ...] = ()
    """Functions (`module:function`) that the worker's interpreter calls, without arguments, before its script. What
    they raise, and that a module is missing, is noted beside its error file; the script runs all the same."""


class Launches(Record, frozen=True, kw_only=True):
    """Answer to `on_workers_starting`: what to change about the start of this node's workers."""

    workers: Mapping[int, LaunchChange] = {}
    """Changes of single workers, by local rank."""
    environment: Mapping[str, str] = {}
    """Variables to add to every worker of this node; those that say what a worker is are the agent's."""


def merged_changes(changes: Sequence[LaunchChange]) -> LaunchChange:
    """Return what several hooks change about one worker: of two values the later, of two commands both, in order."""
    return LaunchChange(
        environment={name: value for change in changes for name, value in change.environment.items()},
        processors=next((each.processors for each in reversed(changes) if each.processors is not None), None),
        command=tuple(word for change in changes for word in change.command),
        startup=tuple(name for change in changes for name in change.startup),
    )


class Refuse(Record, frozen=True, kw_only=True):
    """Answer to `on_joining` or `on_workers_starting`: this node must not start workers now (a health gate)."""

    reason: str
    """A line for people: why this node is not fit."""
    again_s: float | None = None
    """In how many seconds to ask again, from 1 to 3600; None: in 2, 4, 8 … at most 60, less up to a third."""
