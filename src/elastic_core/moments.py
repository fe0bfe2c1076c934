"""Moments in an agent's life that hooks observe, and what hooks may return."""

import enum
from collections.abc import Mapping, Sequence

from elastic_core.reports import FieldValue
from elastic_core.types import Decision, FailedWorker, Failure, Record, RosterMember, Round, RoundChange, WorkerExit


class AgentStarted(Record, frozen=True, kw_only=True):
    """The agent has started. Called: once, before all other moments."""

    run_id: str
    """The run's id."""
    node_id: str
    """This node's id."""
    run_dir: str
    """The run directory."""
    pid: int
    """The id of the agent's process."""
    start_up: Mapping[str, float] = {}
    """The phases of the agent's start, in order, each with its end in monotonic seconds."""


class RoundJoining(Record, frozen=True, kw_only=True):
    """This node requests a place in the next round; a hook may return `Refuse`."""

    round_index: int
    """The number of the requested round, if no other node has begun one."""


class RoundJoined(Record, frozen=True, kw_only=True):
    """A round was formed that includes this node."""

    round: Round
    """The round, with this node's place in it."""
    members: tuple[RosterMember, ...] = ()
    """All nodes of the round, in rank order. Empty if the backend does not provide them."""


class WorkersStarting(Record, frozen=True, kw_only=True):
    """The agent is about to start workers; a hook may return `Launches` or `Refuse`."""

    round: Round
    """The workers' round."""
    restart_count: int
    """Restarts of the whole run after failures so far."""
    dry_run: bool = False
    """Whether the answer is only shown (`--dry-run`), by a process that starts no workers."""
    asked_again: bool = False
    """Whether a hook refused this start before and the round continues without this node. No worker is started then."""


class WorkersStarted(Record, frozen=True, kw_only=True):
    """All workers of this node have been started."""

    round: Round
    """The workers' round."""
    pids: tuple[int, ...]
    """The ids of their processes, by local rank."""
    kept: tuple[int, ...] = ()
    """The local ranks whose processes have left an earlier round and run on, in order."""


class WorkerEnded(Record, frozen=True, kw_only=True):
    """A worker of this node ended."""

    round_index: int
    """The number of the worker's round."""
    exit: WorkerExit
    """How its process ended."""


class FailureSeen(Record, frozen=True, kw_only=True):
    """The agent has examined a failure; its decision follows."""

    failure: Failure
    """The first cause."""
    workers: tuple[FailedWorker, ...] = ()
    """This node's workers that had failed by then, in no order. Empty if no worker failed."""


class DecisionTaken(Record, frozen=True, kw_only=True):
    """The policy has decided. Every node of the round gets a decision for the whole run."""

    failure: Failure
    """The failure that was decided about."""
    decision: Decision
    """The decision."""
    policy: str
    """The policy that decided."""
    fallback_reason: str = ""
    """Why `intensity` decided instead of the chosen policy. Empty if that policy decided, or another node did."""
    decided_here: bool = True
    """Whether this agent called the policy. For a decision for the whole run, exactly one node did: send a message that
    users want once from there. If that node is lost before the decision reaches it, no node sends one."""


class Draining(Record, frozen=True, kw_only=True):
    """The agent was ordered to stop, by a signal or a request."""

    signum: int
    """The signal's number."""
    deadline_s: float
    """Seconds from now that the workers have: less than the grace period if they were being stopped already."""


class WorkersStopping(Record, frozen=True, kw_only=True):
    """The stop sequence begins: workers are signalled (SIGTERM), and killed after the grace period (SIGKILL)."""

    round_index: int
    """The number of the round whose workers are stopped."""
    reason: str
    """One line for users."""
    grace_s: float
    """Seconds until they are killed."""


class MembershipChanged(Record, frozen=True, kw_only=True):
    """The round ends because of a membership change."""

    round_index: int
    """The number of the round that ends."""
    change: RoundChange
    """The change."""


class NodesAsked(Record, frozen=True, kw_only=True):
    """A node asks all nodes about a topic (`run.ask_nodes`). A hook with that topic calls `run.answer_nodes`."""

    serial: int
    """The number of the question, which the answer repeats."""
    topic: str
    """The topic. It begins with the name of the hook that asks."""


class AnswersGathered(Record, frozen=True, kw_only=True):
    """The nodes' answers to a question, for the leader alone. Its hook calls `run.conclude_nodes`."""

    serial: int
    """The number of the question, which the conclusion repeats."""
    topic: str
    """The topic of the question."""
    answers: Mapping[str, bytes]
    """The answers by node id."""
    missing: tuple[str, ...] = ()
    """The nodes of the round that did not answer in time."""


class Concluded(Record, frozen=True, kw_only=True):
    """The conclusion of a question, for all nodes of the round."""

    serial: int
    """The number of the question."""
    topic: str
    """The topic of the question."""
    data: bytes
    """The conclusion of the leader's hook."""


class StopPlanned(Record, frozen=True, kw_only=True):
    """All workers of the run will be stopped although they are healthy; hooks delay it until they have saved.

    A hook that needs no more time calls `self.run.release_stop()`. The stop sequence begins when all hooks have.
    """

    round_index: int
    """The number of the round whose workers will be stopped."""
    reason: str
    """One line for users."""
    hold_s: float
    """Seconds until the stop sequence begins at the latest."""


class Agreed(Record, frozen=True, kw_only=True):
    """All nodes of the round that have workers have submitted a number for a topic (`self.run.agree`)."""

    topic: str
    """The topic."""
    value: int
    """The largest of their numbers."""


class AgentStopped(Record, frozen=True, kw_only=True):
    """The agent has ended. Called: once, after all other moments."""

    exit_code: int
    """The agent's exit code."""
    reason: str
    """One line for users."""
    outcome: str = ""
    """`succeeded`, `failed`, or `stopped` (by a signal or a request)."""


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
    | NodesAsked
    | AnswersGathered
    | Concluded
    | StopPlanned
    | Agreed
    | AgentStopped
)


# --- what only the feed has


class RanksAssigned(Record, frozen=True, kw_only=True):
    """The nodes of a round have agreed on their ranks."""

    took_s: float
    """Seconds that the assignment took, as a part of forming the round."""


class StoreReachable(Record, frozen=True, kw_only=True):
    """The rendezvous store has become unreachable, or reachable again."""

    reachable: bool
    """Whether it is reachable again."""
    text: str = ""
    """The line that was printed about it."""


class StoreCall(Record, frozen=True, kw_only=True):
    """A call to the rendezvous store has returned or failed."""

    call: str
    """The name of the store's method."""
    took_s: float
    """How many seconds the call took."""
    failed: bool
    """Whether the call raised an exception."""


class FieldsPublished(Record, frozen=True, kw_only=True):
    """A hook has replaced its fields (`self.run.publish`)."""

    hook: str
    """The hook's name."""
    fields: Mapping[str, FieldValue]
    """The values by name."""


FeedMoment = RanksAssigned | StoreReachable | StoreCall | FieldsPublished


# --- what hooks may do


class Power(enum.StrEnum):
    """What a hook may do besides observing; a class states its own powers in `powers`."""

    LAUNCHES = "launches"
    """Change how workers are started: return `Launches` from `on_workers_starting`."""
    RUN = "run"
    """Use the run's handle, `self.run`: report failures, request a restart or a drain, list workers, set timers."""
    HOLDS = "holds"
    """Delay a planned stop until the workers have saved: for `hold_s` seconds, or until `self.run.release_stop()`."""
    FEED = "feed"
    """Receive all events of the run, numbered and with times: `on_run_event`."""
    REFUSAL = "refusal"
    """Keep this node out of a round: return `Refuse` from `on_joining` or `on_workers_starting`."""
    STARTS = "starts"
    """Start workers' processes: `worker_starter` returns a `WorkerStarter`."""
    HOSTS = "hosts"
    """Host the server at `MASTER_PORT` in place of rank 0's worker: `master_server` returns a `MasterServer`."""


class LaunchChange(Record, frozen=True, kw_only=True):
    """Changes that a hook makes to the start of one worker."""

    environment: Mapping[str, str] = {}
    """Variables to add. Variables that identify the worker are set by the agent alone."""
    processors: frozenset[int] | None = None
    """The processors on which the worker may run, from its first instruction. `None` means inherited."""
    command: tuple[str, ...] = ()
    """A program with its arguments to put before the worker's command, such as `numactl` or a profiler."""
    startup: tuple[str, ...] = ()
    """Functions (`module:function`) that the worker's interpreter calls without arguments before its script. If one
    raises or its module is missing, a note is written beside the error file, and the script still runs."""


class Launches(Record, frozen=True, kw_only=True):
    """Returned by `on_workers_starting`: changes to the start of this node's workers."""

    workers: Mapping[int, LaunchChange] = {}
    """Changes of single workers, by local rank."""
    environment: Mapping[str, str] = {}
    """Variables to add to every worker of this node. Variables that identify a worker are set by the agent alone."""


def merged_changes(changes: Sequence[LaunchChange]) -> LaunchChange:
    """Return the changes of several hooks to one worker: the last value overrides, and commands are joined in order."""
    return LaunchChange(
        environment={name: value for change in changes for name, value in change.environment.items()},
        processors=next((each.processors for each in reversed(changes) if each.processors is not None), None),
        command=tuple(word for change in changes for word in change.command),
        startup=tuple(name for change in changes for name in change.startup),
    )


class Refuse(Record, frozen=True, kw_only=True):
    """Returned by `on_joining` or `on_workers_starting`: this node must not start workers now (a health gate)."""

    reason: str
    """One line for users: why this node is not fit."""
    again_s: float | None = None
    """Seconds until the hook is called again, 1 to 3600. `None` means 2, 4, 8 … at most 60, less up to a third."""
