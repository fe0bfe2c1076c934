"""The input of a check, and its findings."""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from elastic_core.api import Record
from elastic_core.api.commands import StoreChoice

CHECKS_GROUP: Final = "elastic_doctor.checks"
"""The group of entry points with checks."""
WORKERS: Final = "--nproc-per-node"
"""The fact with the number of workers on a node."""


class Level(enum.StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """The run starts, but may have problems."""
    FAIL = "fail"
    """The run can't work here in this state."""


class Finding(Record, frozen=True, kw_only=True):
    """One finding: its subject, a line about its state, and its remedy."""

    check: str
    """The subject: `open files`."""
    level: Level
    """Its severity."""
    what: str
    """Its state, in a line."""
    remedy: str = ""
    """Its remedy; empty if none is needed."""


class NodeFindings(Record, frozen=True, kw_only=True):
    """The findings of one node. `facts` are values that should be the same on all nodes, by name."""

    node: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, str] = {}


class Asked(Record, frozen=True, kw_only=True):
    """The planned run, as far as it is known."""

    environ: Mapping[str, str] = {}
    """The variables that a run here would have."""
    store: StoreChoice | None = None
    """The rendezvous store. `None` if not given."""
    node_count: int = 1
    """The number of nodes that run this check together and meet in the store."""
    worker_count: int | None = None
    """The number of workers on the node. `None` if not given."""
    log_dir: str = ""
    """The folder of their logs; empty means the run directory."""
    run_dir: str = ""
    """The run directory; empty means below the temporary directory."""
    agent_port: int = 0
    """The UDP port of the agent; 0 means any free port."""
    master_port: int = 0
    """The port of rank 0; 0 means any free port."""

    @property
    def many_nodes(self) -> bool:
        """Whether the run has a rendezvous store."""
        return self.store is not None


Check = Callable[[Asked], Iterable[Finding]]
