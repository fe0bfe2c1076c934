"""`status.json` in the run directory: an agent's state, for `elastic status` and other tools."""

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
"""The most bytes that are read, since any user may have written a file of that name. A thousand workers need 100 kB."""


class WorkerStatus(Record, frozen=True, kw_only=True):
    """One worker of this node. `state`: `alive`, `done` (it succeeded), or `ended`."""

    local_rank: int
    global_rank: int
    pid: int
    state: str


class PastRound(Record, frozen=True, kw_only=True):
    """One of the rounds that this node was in.

    `ended_ns` is 0 if it is not over, or this agent did not see its end. `ended_by`: `membership` (nodes joined or
    left), `failure`, or `restart` (a requested restart). `joined`, `left` and `lost` are the changes since the round
    before it in the list, each with at most 32 node ids and a count of all. A lost node that is in the round again has
    joined, too.
    """

    index: int
    token: int = 0
    node_count: int = 1
    world_size: int = 1
    began_ns: int = 0
    ended_ns: int = 0
    ended_by: str = ""
    reason: str = ""
    joined: tuple[str, ...] = ()
    joined_count: int = 0
    left: tuple[str, ...] = ()
    left_count: int = 0
    lost: tuple[str, ...] = ()
    lost_count: int = 0


class AbsenceStatus(Absence, frozen=True, kw_only=True):
    """Why this node is left out of rounds.

    `until_ns`: when the hook is called again, or the policy's time is over; 0 means the policy's next decision.
    """

    since_ns: int
    until_ns: int = 0


class EndStatus(Record, frozen=True, kw_only=True):
    """How the agent ended. `outcome`: `succeeded`, `failed` or `stopped`."""

    outcome: str
    exit_code: int
    reason: str


class AgentStatus(Record, frozen=True, kw_only=True):
    """An agent's state. Times `_ns` are nanoseconds since the Unix epoch, by this node's clock.

    `state` is the state of the agent's state machine in lower case, `since_ns` when it was entered, `reason` why.
    Limits are in `max_…`; `None` means no limit. `trouble`: the problem that delays the rendezvous, or empty.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    node_id: str
    script: str = ""
    agent: AgentIdentity
    backend: str
    where: str = ""
    """The store as text for people, without secrets; empty if there is none."""
    state: str
    since_ns: int = 0
    reason: str = ""
    round: Round | None = None
    """This node's place in its last round, without its nonce and history. `None` if there was none yet."""
    rounds: tuple[PastRound, ...] = ()
    """Its last 64 rounds, oldest first."""
    earlier_rounds: int = 0
    """The number of rounds before these."""
    workers: tuple[WorkerStatus, ...] = ()
    """Its workers, by local rank; empty if none were started."""
    restart_count: int = 0
    max_restarts: int | None = None
    membership_changes: int = 0
    max_membership_changes: int | None = None
    absence: AbsenceStatus | None = None
    """Why this node is left out of rounds. `None` if it is not."""
    control: str = ""
    """The path of the agent's socket; empty if it has none."""
    trouble: str = ""
    trouble_since_ns: int = 0
    hooks: Mapping[str, Mapping[str, object]] = {}
    """The fields that hooks publish, by their names."""
    end: EndStatus | None = None
    """How the agent ended. `None` while it runs."""
    written_ns: int = 0


class _Version(Record, frozen=True, kw_only=True):
    schema_version: int


class OtherVersionError(ConfigError):
    """The file has another version than this program reads."""


def read_status(path: Path) -> AgentStatus:
    """Return the last status that the agent of a run directory has written.

    Raises:
        OSError: it can't be read, or is too long.
        OtherVersionError: it was written by another version.
        msgspec.DecodeError: it is not a status.
    """
    raw = read_file(path, most_bytes=_MOST_BYTES)
    version = decode_json(raw, _Version).schema_version
    if version != SCHEMA_VERSION:
        what = f"{str(path)!r} has schema version {version}; expected {SCHEMA_VERSION}"
        raise OtherVersionError(what, hint="the elastic-ops that the agent has")
    return decode_json(raw, AgentStatus)


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""The exceptions of `read_status` for a file that is not a status."""
