"""Moments in the life of an agent, as hooks observe them."""

from elastic_core.types import Decision, FailedWorker, Failure, Record, Round, RoundChange, RunSteps, WorkerExit


class AgentStarted(Record, frozen=True, kw_only=True):
    """The agent has begun. Called: once, before anything else."""

    run_id: str
    node_id: str
    run_dir: str
    pid: int


class Joining(Record, frozen=True, kw_only=True):
    """This node asks for a place in the next round; a hook may answer `Refuse`."""

    round_index: int


class RoundJoined(Record, frozen=True, kw_only=True):
    """A round was formed with this node in it."""

    round: Round


class WorkersStarting(Record, frozen=True, kw_only=True):
    """Workers are about to be started; a hook may answer `Launches`, `AddEnvironment` or `Refuse`."""

    round: Round
    restart_count: int
    dry_run: bool = False
    """The answer is only shown (`--dry-run`), by a process that starts nothing."""
    asked_again: bool = False
    """A hook has refused this start, and its round goes on without this node: nothing is started on the answer."""


class WorkersStarted(Record, frozen=True, kw_only=True):
    """All workers of this node exist. `pids` by local rank."""

    round: Round
    pids: tuple[int, ...]


class WorkerEnded(Record, frozen=True, kw_only=True):
    """A worker of this node ended."""

    round_index: int
    exit: WorkerExit


class FailureSeen(Record, frozen=True, kw_only=True):
    """A failure was examined; its decision follows.

    `workers` are those of this node that had failed by then, in no order; empty where no worker was to blame.
    """

    failure: Failure
    workers: tuple[FailedWorker, ...] = ()


class DecisionTaken(Record, frozen=True, kw_only=True):
    """The policy has answered; where it was asked for the whole run, every node is told.

    `fallback_reason` is set where it raised or was slow and `intensity` answered in its place.
    """

    failure: Failure
    decision: Decision
    policy: str
    fallback_reason: str = ""


class Draining(Record, frozen=True, kw_only=True):
    """The agent was told to stop by signal `signum`: workers have `deadline_s` seconds from now.

    Less than the whole grace period where the signal came while they were being stopped for another reason.
    """

    signum: int
    deadline_s: float


class WorkersStopping(Record, frozen=True, kw_only=True):
    """The stop ladder begins."""

    round_index: int
    reason: str
    grace_s: float


class MembershipChanged(Record, frozen=True, kw_only=True):
    """The round ends because nodes came or went."""

    round_index: int
    change: RoundChange


class StepsAsked(Record, frozen=True, kw_only=True):
    """Some node asks how far the workers of all are; a hook that knows answers by `run.report_steps`.

    Its workers may hang: whoever answers does well to note where those of this node stand, too.
    """

    serial: int


class StepsSeen(Record, frozen=True, kw_only=True):
    """What all nodes have answered; those that did not in time are left out."""

    seen: RunSteps


class AgentStopped(Record, frozen=True, kw_only=True):
    """The agent is done. Called: once, last."""

    exit_code: int
    reason: str


Moment = (
    AgentStarted
    | Joining
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
    | AgentStopped
)
