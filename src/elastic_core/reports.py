"""Records of a run that hooks read or report: failures, running workers, and events of the feed."""

from collections.abc import Mapping

from elastic_core.system.clock import duration_text
from elastic_core.types import ErrorRecord, Failure, FailureClass, Record

FieldValue = str | int | float | bool | None


class RunEvent(Record, frozen=True, kw_only=True):
    """One event of a run, for hooks that receive the feed."""

    name: str
    """The event's name."""
    number: int = 0
    """Its number among all events of this agent, from 1. A gap means events that this hook did not get."""
    at_s: float
    """When it happened, in seconds of this host's monotonic clock."""
    at_ns: int
    """When it happened, in nanoseconds since the Unix epoch."""
    values: Mapping[str, object] = {}
    """The event's other values, by name."""
    source: str = ""
    """The hook that added the event. Empty if the agent did."""


class ChosenOption(Record, frozen=True, kw_only=True):
    """One option of a run, for users."""

    name: str
    """The option's name without dashes, such as `max_restarts`; of a setting without an option, its own."""
    value: str
    """The value as text. Secrets are masked. `-` means none."""
    origin: str
    """Where the value comes from: `flag --max-restarts`, `env PET_MAX_RESTARTS`, `default`, or `call` (a library)."""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of the agent that has ended."""

    name: str
    """The phase's name."""
    took_s: float
    """How many seconds it took."""
    well: bool
    """Whether it succeeded."""


class AgentChannel(Record, frozen=True, kw_only=True):
    """How the agents of a run, and people who can read its store, authenticate each other.

    A process that connects by TCP or sends a datagram proves that it knows the secret without sending it.
    """

    secret: str
    """The secret, known only to those who can read the run's store."""
    incarnation: str
    """This agent's id in the run's store. A proof that includes it is not valid for another agent."""
    port: int
    """The port at which other agents reach this one, at all its addresses; they send datagrams (UDP)."""


class RunningWorker(Record, frozen=True, kw_only=True):
    """One worker of this node that runs."""

    local_rank: int
    """The worker's rank on this node."""
    global_rank: int
    """The worker's rank in the round."""
    pid: int
    """The id of its process."""
    stdout: str = ""
    """The file with its stdout. Empty if there is none."""
    stderr: str = ""
    """The file with its stderr. Empty if there is none."""
    error_file: str = ""
    """The file to which it writes its error. Empty if there is none."""


class WorkerFault(Record, frozen=True, kw_only=True):
    """One worker that caused a failure while it still runs."""

    local_rank: int
    """The worker's rank on this node."""
    quiet_s: float = 0.0
    """Seconds since the worker's last sign of life, which is the time of the failure."""
    error: ErrorRecord | None = None
    """Where the worker hangs. `None` if not known."""
    signal: int = 0
    """A signal to send to the worker if the report is accepted, before the decision. 0 means no signal."""


class Absence(Record, frozen=True, kw_only=True):
    """Why a node that is reachable is left out of rounds."""

    by: str
    """The hook of that node, with its distribution; or the run's policy."""
    reason: str
    """The reason, for users."""
    for_s: float | None = None
    """Seconds until the hook is called again, or the policy's exclusion ends. `None` means until the next decision."""
    refused: bool = True
    """Whether a hook refuses. If not, a policy excluded the node."""

    @property
    def text(self) -> str:
        """The absence as part of a sentence about the node."""
        if self.refused:
            return f"{self.by} refused: {self.reason}"
        time = "until its next decision" if self.for_s is None else f"for {duration_text(self.for_s)}"
        return f"left out {time} by {self.by}: {self.reason}"


class FailureReport(Record, frozen=True, kw_only=True):
    """A failure that a hook found while workers run, with its evidence."""

    summary: str
    """One line for users."""
    failure_class: FailureClass = FailureClass.HEALTH_CHECK
    """The kind of failure."""
    workers: tuple[WorkerFault, ...] = ()
    """The workers that failed, the first cause first. Empty means that this node failed."""
    retryable: bool = True
    """Whether a retry on this node may succeed."""
    fields: Mapping[str, object] = {}
    """Further fields of the incident; `hang` among them has the shape that incident.json has."""


class Answer(Record, frozen=True, kw_only=True):
    """The response to a request to the agent."""

    content: str
    """The body of the response."""
    content_type: str = "text/plain"
    """The content type, for HTTP."""


# --- reports of nodes and workers about a round


class NodeReport(Record, frozen=True, kw_only=True):
    """One node's evidence of a round that was stopped, for one decision for the whole run."""

    node_id: str
    """The node's id."""
    failure: Failure | None = None
    """The first intrinsic failure of its workers. `None` if there was none."""
    age_s: float = 0.0
    """Seconds from that failure until the stop order was sent or received here. Negative if the failure came later."""
    collateral: bool = False
    """Whether the failure only reports the loss of a peer."""
    timed: bool = True
    """Whether the worker recorded when it failed. If not, the time of its end is used."""
    failed_count: int = 0
    """How many of the node's workers failed by themselves."""
    stopped_count: int = 0
    """How many workers the agent stopped."""
    finished_count: int = 0
    """How many workers exited with 0."""
    kept_count: int = 0
    """How many workers have left the round and run on, for the next one."""
    progress: int | None = None
    """The furthest step that a worker of this node has reported. `None` if none has."""
    evidence: str = ""
    """Text for the node that decides; the rendezvous only passes it on. Empty if there is none."""
    final: bool = False
    """Whether all workers of the node have ended."""
    absence: Absence | None = None
    """Set if the node was left out of the round: it has no evidence then."""
