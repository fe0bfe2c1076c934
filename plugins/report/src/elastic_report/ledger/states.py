"""The states of a node in the ledger, in their published order, and which of them are lost time."""

import enum
from typing import Final


class LedgerState(enum.StrEnum):
    """What a node spends its time on. If several apply at once, the first of this order counts."""

    QUEUED = "queued"
    """The scheduler has the job, and has not started this node's agent. Known for Slurm only."""
    HUNG = "hung"
    """From the last sign of progress to the detection of a hang, or to the declared loss of a dead agent."""
    DRAINED = "drained"
    """The agent was ordered to stop: from the end of its workers' training to its exit."""
    EXCLUDED = "excluded"
    """A hook of the node refuses, or the policy has left the node out."""
    STORE_OUTAGE = "store outage"
    """No workers run, and the rendezvous store is unreachable."""
    STOPPING = "stopping"
    """Workers are being stopped, they have finished while other nodes' run, or the agent leaves the rendezvous."""
    DECIDING = "deciding"
    """A failure is examined, or the decision is pending."""
    RESTARTING = "restarting"
    """The pause before a restart (`--restart-backoff`, the delay of a policy)."""
    RENDEZVOUS = "rendezvous"
    """The agent starts, or the node waits for a round, also as a spare."""
    STARTING = "starting"
    """From the formed round to the first step, or else the first sign of life, of the least advanced worker."""
    RESTORING = "restoring"
    """A worker loads a checkpoint."""
    SAVING = "saving"
    """Training waits for a checkpoint to be saved, in at least one worker."""
    REDONE = "redone"
    """Workers execute steps again whose numbers an earlier round of the run had reported."""
    PRODUCTIVE = "productive"
    """Workers train."""


ORDER: Final = tuple(LedgerState)
"""The published order."""
LOST: Final = tuple(state for state in LedgerState if state is not LedgerState.PRODUCTIVE)
"""The states that are lost time, in the published order."""
