"""The states of an agent, one frozen record each."""

import enum

from elastic_core.reports import Absence
from elastic_core.types import Decided, Decision, Failure, Record, Round, RoundEnded, StopOrdered, WorkerExit

RoundOver = RoundEnded | Decided | StopOrdered
"""What ends a round for all its nodes."""


class Gates(Record, frozen=True, kw_only=True):
    """What a refusal of a hook's leads to on this node, and those since its workers last ran."""

    aside: bool = False
    """The rendezvous lets this node wait beside the rounds of the others."""
    join_timeout_s: float = 600.0
    """How long a node waits that can't."""
    spread: float = 0.0
    count: int = 0
    since_s: float = 0.0
    """When the first came, if there was one."""
    shown: str = ""
    """The last that people were told."""


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


class Ending(enum.StrEnum):
    """How an agent ends."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Outcome(Record, frozen=True, kw_only=True):
    """The agent's result. Source of the exit codes: the design's section on the agent."""

    ending: Ending
    exit_code: int
    reason: str


class Rejoin(Record, frozen=True, kw_only=True):
    """After the workers are gone: wait `delay_s`, then begin the next round."""

    delay_s: float = 0.0


class End(Record, frozen=True, kw_only=True):
    """After the workers are gone: leave."""

    outcome: Outcome


class Await(Record, frozen=True, kw_only=True):
    """After the workers are gone: say what was seen, and wait for what the run decides."""


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
    started_s: float
    alive: frozenset[int]
    done: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()


class Settling(Record, frozen=True, kw_only=True):
    """A worker has failed by itself: its peers may report what they saw, and the agent get a stop signal."""

    running: Running
    exits: tuple[WorkerExit, ...]


class Deciding(Record, frozen=True, kw_only=True):
    """The evidence is being read, then the policy asked.

    `running` is None where no worker had been started, `round` where there was no round either.
    """

    ledger: Ledger
    running: Running | None
    round: Round | None = None
    exits: tuple[WorkerExit, ...] = ()
    alone: bool = False
    """Nobody else decides for the run."""


class Stopping(Record, frozen=True, kw_only=True):
    """The stop ladder runs. `stop_asked_s`: when a stop signal came first."""

    ledger: Ledger
    round: Round
    then: Then
    incident: tuple[Failure, Decision, str] | None = None
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
