"""A run as its store has it, for those who take no part in it.

Read with an open mind, as its nodes may be of another version than the reader: what they added is left out, and what
they left out has a default.
"""

from typing import TypeVar

import msgspec

from elastic_core.api import Ignore, Record, Restart, Stop, decode_json
from elastic_core.api.rendezvous import RendezvousStateError
from elastic_core.api.stores import CONTROL_KEY, ROUND_KEY, STORE_FORMAT, Survey


class StoredFailure(msgspec.Struct):
    """A failure in the run's history."""

    failure_class: str
    """What kind of failure it was."""
    summary: str
    """One line for people."""
    node_id: str = ""
    """The node to blame."""
    round_index: int = -1
    """In which round."""
    at_s: float = 0.0
    """Seconds since the run began."""
    uptime_s: float = 0.0
    """Seconds since the round's workers were started."""
    exit_code: int = 1
    """The failed worker's."""
    global_rank: int | None = None
    """Its rank; None: no worker was to blame."""
    exception_type: str = ""
    """The class of its exception; empty: none."""
    message: str = ""
    """Its text."""
    decision: Restart | Stop | Ignore | None = None
    """What was decided; None: not yet."""
    spent: int = 0
    """How many restarts the run had cost by then."""


class StoredEnding(msgspec.Struct):
    """How the round ended."""

    token: int = 0
    nonce: str = ""
    kind: str = ""
    evidence: str = ""


class StoredStop(msgspec.Struct):
    """Which round is being stopped."""

    token: int = 0
    nonce: str = ""


class StoredVerdict(msgspec.Struct):
    """How the run ended."""

    decision: Stop
    exit_code: int = 1
    by: str = ""
    evidence: str = ""


class StoredDrain(msgspec.Struct):
    """Somebody outside the run wants a node to end, or all."""

    incarnation: str = ""
    """Which; empty: all nodes, and with them the run."""
    node: str = ""
    """Its id."""
    by: str = ""
    """Who wants it."""
    grace_s: float | None = None
    """How long its workers have at most, if that was said."""


class StoredControl(msgspec.Struct):
    """Which run it is, and what is decided."""

    v: int = 0
    epoch: str = ""
    ending: StoredEnding | None = None
    stopping: StoredStop | None = None
    verdict: StoredVerdict | None = None
    history: tuple[StoredFailure, ...] = ()
    user: str = ""
    """Who has begun the run."""
    drains: tuple[StoredDrain, ...] = ()
    """Which nodes somebody outside wants to end."""
    secret: str = ""
    """What the run's agents know each other by."""
    """Words, and a row for each failure before those in the history."""


class StoredNode(msgspec.Struct, array_like=True):
    """A node of the round, as an array. An empty address is the part of the node id behind its last `@`."""

    incarnation: str
    node: str
    address: str = ""
    agent_port: int = 0
    nproc: int = 1
    named_role: str = ""
    """Its role; empty: `default`."""

    @property
    def role(self) -> str:
        """The role."""
        return self.named_role or "default"

    @property
    def host(self) -> str:
        """The address."""
        return self.address or self.node.rpartition("@")[2]


class StoredRound(msgspec.Struct):
    """The round, with its nodes in rank order."""

    v: int = 0
    """The version of this content."""
    epoch: str = ""
    """Of which run in the store."""
    token: int = 0
    """Its fencing token."""
    nonce: str = ""
    """Its random text."""
    index: int = 0
    """Which round of the run it is."""
    restarts: int = 0
    """Restarts before it."""
    changes: int = 0
    """Membership changes before it."""
    master_addr: str = ""
    """Where rank 0 listens."""
    master_port: int = 0
    """Its port."""
    roster: tuple[StoredNode, ...] = ()
    """Its nodes, in rank order."""


class StoredAbsence(msgspec.Struct):
    """Why a node is left out."""

    by: str = ""
    """A hook of its own with its distribution, or the policy."""
    reason: str = ""
    """Why."""
    for_s: float | None = None
    """For how long from when it said so; None: until the policy's next decision."""
    refused: bool = True
    """A hook of its own refuses; else the policy left it out."""


class StoredMember(msgspec.Struct):
    """What a node says of itself."""

    v: int = 0
    """The version of this content."""
    epoch: str = ""
    """Of which run in the store."""
    node: str = ""
    """The node's id."""
    state: str = ""
    """`ready`, `out`, `running`, `finishing`, `done` or `leaving`."""
    token: int = 0
    """The token of the round that it is in."""
    nonce: str = ""
    """The nonce of that round."""
    address: str = ""
    """Where others reach it."""
    nproc: int = 1
    """How many workers it has."""
    role: str = ""
    """`--role`."""
    absence: StoredAbsence | None = None
    """Why it is left out; None: it is not."""


class StoredRun(Record, frozen=True, kw_only=True):
    """What a store has of a run; None: not there, or (a round) of an earlier run. `members` have their incarnation."""

    control: StoredControl | None = None
    """The run's own document; None: there is none."""
    round: StoredRound | None = None
    """Its last round; None: there was none."""
    members: tuple[tuple[str, StoredMember], ...] = ()
    """Its live nodes, in the order of arrival."""
    silent: frozenset[str] = frozenset()
    """The incarnations of those that have not renewed their seats."""


_D = TypeVar("_D", StoredControl, StoredRound, StoredMember)


def stored_run(survey: Survey) -> StoredRun:
    """Return what was read of a run.

    Raises:
        RendezvousStateError: what is there is of another format, or not ours.
    """
    documents = survey.documents
    control = _decode(documents.get(CONTROL_KEY), StoredControl, "control document")
    round_ = _decode(documents.get(ROUND_KEY), StoredRound, "round document")
    if round_ is not None and control is not None and round_.epoch != control.epoch:
        round_ = None
    members = (
        (member.incarnation, _decode(member.record, StoredMember, "member's record")) for member in survey.members
    )
    return StoredRun(
        control=control,
        round=round_,
        members=tuple((name, record) for name, record in members if record is not None and record.state != "gone"),
        silent=frozenset(survey.silent),
    )


def _decode(raw: bytes | None, kind: type[_D], what: str) -> _D | None:
    if raw is None:
        return None
    try:
        document = decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise RendezvousStateError(
            f"the store holds a {what} that can't be read ({err})", hint="another --rdzv-id"
        ) from err
    if document.v != STORE_FORMAT:
        raise RendezvousStateError(
            f"{what} in the store: format {document.v!r}; expected {STORE_FORMAT}",
            hint="the version of elastic-core that the run's nodes have",
        )
    return document
