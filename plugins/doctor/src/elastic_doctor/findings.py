"""What a check is asked about, and what it finds."""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from elastic_core.api import Record
from elastic_core.api.commands import StoreChoice

CHECKS_GROUP: Final = "elastic_doctor.checks"
"""The group of entry points that bring checks."""
WORKERS: Final = "--nproc-per-node"
"""The fact of how many workers a node is to have."""


class Level(enum.StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"
    """A run works, and may fare badly."""
    FAIL = "fail"
    """A run can't work here as it is."""


class Finding(Record, frozen=True, kw_only=True):
    """One thing that was found: what was looked at, in a line what it is like, and what helps."""

    check: str
    """What was looked at: `open files`."""
    level: Level
    """How much it matters."""
    what: str
    """What it is like, in a line."""
    remedy: str = ""
    """What helps; empty: nothing needs to."""


class NodeFindings(Record, frozen=True, kw_only=True):
    """What was found on one node; `facts` are what should be the same on all, by name."""

    node: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, str] = {}


class Asked(Record, frozen=True, kw_only=True):
    """The run that the node is to be fit for, as far as it was said."""

    environ: Mapping[str, str] = {}
    """The variables that a run here would have."""
    store: StoreChoice | None = None
    """Where its nodes meet; None: it was not said."""
    node_count: int = 1
    """How many nodes look together, which meet there."""
    worker_count: int | None = None
    """How many workers the node is to have; None: it was not said."""
    log_dir: str = ""
    """Where their logs go; empty: into the run directory."""
    run_dir: str = ""
    """The run directory; empty: below the temporary directory."""
    agent_port: int = 0
    """The UDP port of the agent; 0: a free one."""
    master_port: int = 0
    """The port of rank 0; 0: a free one."""

    @property
    def many_nodes(self) -> bool:
        """Whether the run has a place in which nodes meet."""
        return self.store is not None


Check = Callable[[Asked], Iterable[Finding]]
