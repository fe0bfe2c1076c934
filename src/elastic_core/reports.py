"""What a hook says and knows of a run: failures that it has found, workers that run, and the events of the feed."""

from collections.abc import Mapping

from elastic_core.system.clock import duration_text
from elastic_core.types import ErrorRecord, Failure, FailureClass, Record

FieldValue = str | int | float | bool | None


class RunEvent(Record, frozen=True, kw_only=True):
    """One thing that happened in a run, for hooks that take its feed."""

    name: str
    """What happened."""
    number: int = 0
    """Its place among all events of this agent, from 1 on; a gap stands for events that this hook did not get."""
    at_s: float
    """When, seconds of this host's monotonic clock."""
    at_ns: int
    """When, nanoseconds since the Unix epoch."""
    values: Mapping[str, object] = {}
    """What else is known of it, by name."""
    source: str = ""
    """The hook that has added it; empty: the agent."""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of the agent that is over."""

    name: str
    """What the agent did."""
    took_s: float
    """For how many seconds."""
    well: bool
    """Whether what it was for was reached."""


class AgentChannel(Record, frozen=True, kw_only=True):
    """How agents of a run know each other, and people who can read its store.

    A process that asks, by TCP or by a datagram, proves that it knows the secret, and does not send it.
    """

    secret: str
    """What only those know who can read the run's store."""
    incarnation: str
    """This agent's in the run's store: a question or answer whose proof covers it is of no use to another one."""
    port: int
    """The number at which this agent is reached by the others, at all its addresses: by UDP they ask each other."""


class RunningWorker(Record, frozen=True, kw_only=True):
    """One worker of this node that runs."""

    local_rank: int
    """Its number on this node."""
    global_rank: int
    """Its number in the round."""
    pid: int
    """Its process."""
    stdout: str = ""
    """The file with its output; empty: there is none."""
    stderr: str = ""
    """The file with its errors; empty: there is none."""
    error_file: str = ""
    """Where it writes what it fails of; empty: nowhere."""


class WorkerFault(Record, frozen=True, kw_only=True):
    """One worker that is to blame for a failure, while it still runs."""

    local_rank: int
    """Which worker."""
    quiet_s: float = 0.0
    """Seconds since it was last seen well, which is when it failed."""
    error: ErrorRecord | None = None
    """Where it stands; None: not known."""
    signal: int = 0
    """What it is sent if the report is taken, before anything is decided; 0: nothing."""


class Absence(Record, frozen=True, kw_only=True):
    """Why a node is left out of rounds though it is there."""

    by: str
    """A hook of its own with its distribution, or the run's policy."""
    reason: str
    """Why, for people."""
    for_s: float | None = None
    """Seconds until the hook is asked again, or the policy's time is over; None: until the policy's next decision."""
    refused: bool = True
    """A hook refuses; else a policy has left the node out."""

    @property
    def text(self) -> str:
        """The absence as part of a sentence about the node."""
        if self.refused:
            return f"{self.by} refused: {self.reason}"
        time = "until its next decision" if self.for_s is None else f"for {duration_text(self.for_s)}"
        return f"left out {time} by {self.by}: {self.reason}"


class FailureReport(Record, frozen=True, kw_only=True):
    """A failure that a hook has found while workers run, with its evidence."""

    summary: str
    """One line for people."""
    failure_class: FailureClass = FailureClass.HEALTH_CHECK
    """What kind of failure it is."""
    workers: tuple[WorkerFault, ...] = ()
    """Those to blame, the first cause in front; empty: this node is."""
    retryable: bool = True
    """Whether another try on this node may help."""
    fields: Mapping[str, object] = {}
    """What the incident has of it besides; `hang` among them has the shape that incident.json has."""


class Answer(Record, frozen=True, kw_only=True):
    """What somebody who asks the agent gets."""

    content: str
    """The body."""
    content_type: str = "text/plain"
    """Its type, for HTTP."""


# --- what nodes and workers say of a round


class NodeReport(Record, frozen=True, kw_only=True):
    """What one node has seen of a round that was stopped, for one decision about the whole run."""

    node_id: str
    """Which node."""
    failure: Failure | None = None
    """The first of its workers' that happened by itself; None: there was none."""
    age_s: float = 0.0
    """Seconds from that failure until this node ordered the stop, or was ordered to; below 0: it came after."""
    collateral: bool = False
    """It says no more than that a peer was lost."""
    timed: bool = True
    """Its worker has said when it failed; else that is when it ended."""
    failed_count: int = 0
    """How many of its workers failed by themselves."""
    stopped_count: int = 0
    """How many the agent stopped."""
    finished_count: int = 0
    """How many ended well."""
    progress: int | None = None
    """The furthest step that a worker of this node has said; None: none has."""
    evidence: str = ""
    """Text for whoever decides, which the rendezvous only carries; empty: none."""
    final: bool = False
    """No worker of it lives."""
    absence: Absence | None = None
    """Set of a node that had no part in the round, as it was left out; it has seen nothing."""


class RankStep(Record, frozen=True, kw_only=True):
    """How far one worker is."""

    global_rank: int
    """Which worker."""
    step: int
    """The last step that it has said."""
    node_id: str = ""
    """Its node; empty: this one."""


class NodeSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far the workers of one node are, for nodes whose own may hang."""

    serial: int
    """Which question it answers."""
    node_id: str
    """Which node."""
    ranks: tuple[int, ...] = ()
    """All global ranks that say steps, at most 8."""
    max_step: int | None = None
    """The furthest step of its workers; None: none says steps."""
    min_step: int | None = None
    """The least; None: none says steps."""
    behind: tuple[RankStep, ...] = ()
    """Workers that have not reached `max_step`, at most 8."""
    protected_s: float = 0.0
    """For how many seconds yet a section is open; 0: none is."""
    quiet_s: float | None = None
    """Seconds since any of them read or wrote; None: not known."""


class RunSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The same of all nodes that have answered."""

    serial: int
    """Which question it answers."""
    node_count: int = 0
    """How many nodes have answered."""
    max_step: int | None = None
    """The furthest step of any; None: none says steps."""
    min_step: int | None = None
    """The least; None: none says steps."""
    behind: tuple[RankStep, ...] = ()
    """Workers that have not reached `max_step`, at most 16."""
    protected_s: float = 0.0
    """For how many seconds yet a section is open anywhere; 0: none is."""
    quiet_s: float | None = None
    """Seconds since any worker read or wrote; None: not known."""
