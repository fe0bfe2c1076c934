"""The lines of `ledger.jsonl`, which an agent's ledger hook writes. One JSON object per line, appended.

The first line is a `Begin`. Times `_s` are seconds of the node's monotonic clock unless their text differs;
`Begin.started_s` and `Begin.started_ns` are the same moment on both clocks. Readers ignore lines of unknown kinds and
unknown fields. A file without an `End` belongs to an agent that runs, or was killed: its last line is its last sign of
life.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from elastic_core.api import Record
from elastic_report.ledger.states import LedgerState

LEDGER_FILE: Final = "ledger.jsonl"
"""The file's name in the run directory, and in the folder that stays after it."""
SCHEMA_VERSION: Final = 1
MOST_BYTES: Final = 2 << 20
"""The size of a file of any number of rounds. Older lines are replaced by a `Sum` when it is reached."""


class _Line(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    pass


class Begin(_Line, frozen=True, kw_only=True, tag="begin"):
    """The agent has started."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    node_id: str
    host: str
    incarnation: str
    """Differs for each agent process."""
    pid: int
    started_s: float
    started_ns: int
    """The same moment, in nanoseconds since the Unix epoch."""
    queued_ns: int = 0
    """When the scheduler got the job, in nanoseconds since the Unix epoch. 0 means not known."""
    job: str = ""
    """The scheduler's name of the job. Empty if there is none."""
    backend: str = ""
    script: str = ""
    role: str = ""
    local_world_size: int = 1
    high_step: int | None = None
    """The highest step that earlier attempts of the run had reported. `None` means not known."""
    options: tuple[tuple[str, str, str], ...] = ()
    """Name, value and origin of each option, without secrets."""
    versions: Mapping[str, str] = {}
    """Versions of Python, the kernel, torch (if installed) and this project's distributions, by name."""
    machine: Mapping[str, str] = {}
    """Facts about the node that may differ between runs: processors, memory, GPUs, by name."""


class Span(_Line, frozen=True, kw_only=True, tag="span"):
    """The node was in one state. Spans follow each other without gaps, from the agent's start."""

    state: LedgerState
    begin_s: float
    end_s: float
    round: int | None = None
    """The number of the round, or of the last one. `None` before the first."""
    reason: str = ""
    """Why: one line for users."""


class Hung(_Line, frozen=True, kw_only=True, tag="hung"):
    """A correction: what spans count from `begin_s` to `end_s` was `hung`."""

    begin_s: float
    end_s: float


class Bound(_Line, frozen=True, kw_only=True, tag="bound"):
    """At most `seconds` of the productive time before `at_s` were redone later, as the steps are not known."""

    at_s: float
    seconds: float


class RoundLine(_Line, frozen=True, kw_only=True, tag="round"):
    """A round was formed that includes this node."""

    at_s: float
    index: int
    token: int
    node_rank: int
    node_count: int
    world_size: int
    base_rank: int
    local_world_size: int
    members: tuple[str, ...] = ()
    """The node ids in rank order; written by the nodes of rank 0 and 1. Empty otherwise, and if not known."""
    high_step: int | None = None
    """The highest step of all nodes in earlier rounds, if known by then."""


class RoundOver(_Line, frozen=True, kw_only=True, tag="round_over"):
    """The round has ended, for this node. `by`: `membership`, `failure`, `restart`, `drain` or `end`."""

    at_s: float
    index: int
    by: str
    reason: str = ""
    lost: tuple[str, ...] = ()
    """Nodes whose seats expired or whose agents died."""
    left: tuple[str, ...] = ()
    """Nodes that left by themselves."""
    arrived: int = 0
    """How many nodes joined."""


class WorkerLine(_Line, frozen=True, kw_only=True, tag="worker"):
    """One worker process, from start to end."""

    local_rank: int
    global_rank: int
    pid: int
    round: int
    begin_s: float
    end_s: float | None = None
    """`None` while it runs, in a live ledger only."""
    code: int | None = None
    """Its exit code, -N for death by signal N."""
    stopped: bool = False
    """Whether the agent stopped it."""
    marks: tuple[tuple[str, float, float], ...] = ()
    """Its saves and restores: `save` or `restore`, begin and end. At most the last 64."""
    first_step: int | None = None
    last_step: int | None = None


class Progress(_Line, frozen=True, kw_only=True, tag="progress"):
    """The highest step of this node's workers at a moment: about one per minute, and at each end of a round."""

    at_s: float
    step: int


class Note(_Line, frozen=True, kw_only=True, tag="note"):
    """An event for the timeline."""

    at_s: float
    name: str
    """`failure`, `decision`, `lost`, `left`, `joined`, `drain`, `save`, `hang`, `store_lost`, `store_back`, `excluded`,
    `clock` (the wall clock jumped), or an event that a hook recorded."""
    text: str
    node: str = ""
    rank: int | None = None


class Alive(_Line, frozen=True, kw_only=True, tag="alive"):
    """A sign of life: the agent was in this state at this moment."""

    at_s: float
    state: LedgerState
    round: int | None = None


class Sum(_Line, frozen=True, kw_only=True, tag="sum"):
    """In place of lines that were removed to bound the file: the seconds of each state between two moments."""

    begin_s: float
    end_s: float
    states: Mapping[LedgerState, float]
    bound_s: float = 0.0
    """The sum of their `Bound`s."""
    rounds: int = 0
    """How many rounds it replaces."""
    start_s: float = 0.0
    """Those of its seconds of rendezvous and starting that belong to the first round."""


class End(_Line, frozen=True, kw_only=True, tag="end"):
    """The agent has ended."""

    at_s: float
    outcome: str
    exit_code: int
    reason: str = ""


Line = Begin | Span | Hung | Bound | RoundLine | RoundOver | WorkerLine | Progress | Note | Alive | Sum | End


class Ledger(Record, frozen=True, kw_only=True):
    """All lines of one agent, in order."""

    begin: Begin
    lines: tuple[Line, ...]
    """Without the `Begin`."""
    torn: int = 0
    """How many lines could not be read."""

    @property
    def end(self) -> End | None:
        """How the agent ended. `None` if it runs, or was killed."""
        return next((line for line in reversed(self.lines) if isinstance(line, End)), None)


LINE: Final = msgspec.json.Decoder(Line)
"""Decodes one line."""
