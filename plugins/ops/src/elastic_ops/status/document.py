"""`status.json` in the run directory: what an agent is doing, for `elastic status` and other tools."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from elastic_core.api import ConfigError, Record, Round, decode_json
from elastic_core.api.feed import Absence
from elastic_core.api.tools import AgentIdentity, read_file

STATUS_FILE: Final = "status.json"
SCHEMA_VERSION: Final = 3
_MOST_BYTES: Final = 4 << 20
"""The longest that is read: anybody may have put a file of that name there. One of a thousand workers has 100 kB."""


class WorkerStatus(Record, frozen=True, kw_only=True):
    """One worker of this node. `state`: `alive`, `done` (it ended well by itself), or `ended`."""

    local_rank: int
    global_rank: int
    pid: int
    state: str


class PastRound(Record, frozen=True, kw_only=True):
    """One of the rounds that this node was in.

    `ended_ns` 0: it is not over, or this agent did not see its end. `ended_by`: `membership` (nodes came or went),
    `failure`, or `restart` (it was asked for).
    """

    index: int
    token: int = 0
    node_count: int = 1
    world_size: int = 1
    began_ns: int = 0
    ended_ns: int = 0
    ended_by: str = ""
    reason: str = ""


class AbsenceStatus(Absence, frozen=True, kw_only=True):
    """Why this node is left out of rounds.

    `until_ns`: when the hook is asked again, or the policy's time is over; 0: with the policy's next decision.
    """

    since_ns: int
    until_ns: int = 0


class EndStatus(Record, frozen=True, kw_only=True):
    """How the agent ended. `outcome`: `succeeded`, `failed` or `stopped`."""

    outcome: str
    exit_code: int
    reason: str


class AgentStatus(Record, frozen=True, kw_only=True):
    """What an agent is doing. Times `_ns` are nanoseconds since the Unix epoch, by this node's clock.

    `state` is a word of the agent's state machine in lower case; `since_ns` when it came into it; `reason` why. What
    has a limit has it in `max_…`, None where there is none. `trouble`: what keeps the rendezvous, empty if nothing.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    node_id: str
    script: str = ""
    agent: AgentIdentity
    backend: str
    where: str = ""
    """The store as people know it, without secrets; empty where there is none."""
    state: str
    since_ns: int = 0
    reason: str = ""
    round: Round | None = None
    """This node's place in its last round, without its nonce and history; None: there was none yet."""
    rounds: tuple[PastRound, ...] = ()
    """Its last 16 rounds, oldest first."""
    workers: tuple[WorkerStatus, ...] = ()
    """Its workers, by local rank; empty: none were started."""
    restart_count: int = 0
    max_restarts: int | None = None
    membership_changes: int = 0
    max_membership_changes: int | None = None
    absence: AbsenceStatus | None = None
    """Why this node is left out of rounds; None: it is not."""
    control: str = ""
    """The path of the agent's socket; empty: it listens to nobody."""
    trouble: str = ""
    trouble_since_ns: int = 0
    hooks: Mapping[str, Mapping[str, object]] = {}
    """What hooks publish, by their names."""
    end: EndStatus | None = None
    """How the agent ended; None: it runs."""
    written_ns: int = 0


class _Version(Record, frozen=True, kw_only=True):
    schema_version: int


class OtherVersionError(ConfigError):
    """The file has another version than this program reads."""


def read_status(path: Path) -> AgentStatus:
    """Return what the agent of a run directory has written last.

    Raises:
        OSError: it can't be read, or is too long.
        OtherVersionError: it was written by another version.
        msgspec.DecodeError: it is no status.
    """
    raw = read_file(path, most_bytes=_MOST_BYTES)
    version = decode_json(raw, _Version).schema_version
    if version != SCHEMA_VERSION:
        what = f"{str(path)!r} has schema version {version}; expected {SCHEMA_VERSION}"
        raise OtherVersionError(what, hint="the elastic-ops that the agent has")
    return decode_json(raw, AgentStatus)


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""What `read_status` raises of a file that is no status."""
