"""What the sources found about a run: the input of `combine`."""

from elastic_core.api import Record
from elastic_core.api.commands import FoundIncident, Incident
from elastic_report.ledger.document import Ledger


class AgentEvidence(Record, frozen=True, kw_only=True):
    """What was found about one agent. Times `_ns` are nanoseconds since the Unix epoch, by its node's clock."""

    node_id: str
    run_id: str = ""
    """The run's id, as a status or record has it. Empty if not known."""
    host: str = ""
    ledger: Ledger | None = None
    """`None` if there is none, or if it can't be read."""
    started_ns: int = 0
    """0 means not known."""
    ended_ns: int = 0
    """0 means that no end was recorded."""
    outcome: str = ""
    """`succeeded`, `failed` or `stopped`. Empty if no end was recorded."""
    exit_code: int | None = None
    result: str = ""
    """One line for users about the end."""
    boot_id: str = ""
    """The boot of its host. Empty if not known."""
    alive: bool = False
    """Whether the agent runs."""
    current: bool = False
    """Whether the ledger was requested from the agent: then its last line is the present."""
    script: str = ""
    backend: str = ""
    run_dir: str = ""
    """Its run directory. Empty if it is gone."""
    log_paths: tuple[str, ...] = ()
    incidents: tuple[FoundIncident, ...] = ()


class StoreEvidence(Record, frozen=True, kw_only=True):
    """What the run's store has."""

    where: str
    outcome: str = ""
    """`done`, `failed` or `stopped`. Empty if the run has no result."""
    exit_code: int | None = None
    reason: str = ""
    failures: tuple[Incident, ...] = ()
    """The run's last failures, oldest first. Only the last one may have its time and details."""
    members: tuple[str, ...] = ()
    """The node ids of the last round, in rank order."""
    round_index: int | None = None
    round_token: int = 0
    lost: tuple[str, ...] = ()
    """Those of them without a live seat, while the run has no result."""


class RunEvidence(Record, frozen=True, kw_only=True):
    """Everything that was found about a run."""

    run_id: str
    now_ns: int
    """When it was read, in nanoseconds since the Unix epoch, by this machine's clock."""
    source: str
    agents: tuple[AgentEvidence, ...] = ()
    """In any order; those of earlier runs of this id may be among them."""
    store: StoreEvidence | None = None
    earlier: tuple[AgentEvidence, ...] = ()
    """The agents of the last good run of that name, to compare with."""
    missing: tuple[str, ...] = ()
    """What could not be read, a line each."""
