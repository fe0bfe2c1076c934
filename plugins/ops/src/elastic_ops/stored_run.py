"""A run as its store has it, for readers outside the run.

Its nodes may be of another version than the reader: unknown fields are ignored, and missing ones have a default.
"""

from typing import TypeVar

import msgspec

from elastic_core.api import Ignore, Record, Restart, Stop, decode_json
from elastic_core.api.rendezvous import RendezvousStateError
from elastic_core.api.stores import CONTROL_KEY, ROUND_KEY, STORE_FORMAT, Survey


class StoredFailure(msgspec.Struct):
    """A failure in the run's history."""

    failure_class: str
    """Its class."""
    summary: str
    """One line for people."""
    node_id: str = ""
    """The node that caused it."""
    round_index: int = -1
    """Index of its round."""
    at_s: float = 0.0
    """Seconds since the run began."""
    uptime_s: float = 0.0
    """Seconds since the round's workers were started."""
    exit_code: int = 1
    """The failed worker's exit code."""
    global_rank: int | None = None
    """Its rank. `None` if no worker caused it."""
    exception_type: str = ""
    """The class of its exception; empty if there is none."""
    message: str = ""
    """Its text."""
    decision: Restart | Stop | Ignore | None = None
    """The decision. `None` if there is none yet."""
    spent: int = 0
    """The number of restarts until then."""


class StoredEnding(msgspec.Struct):
    """How the round ended."""

    token: int = 0
    nonce: str = ""
    kind: str = ""
    """`restart` after a failure, `regroup` or `outage` after a membership change, `asked` after a user's request."""
    reason: str = ""
    """One line for people; empty after a failure."""
    decision: Restart = Restart()
    """The decision."""
    lost: tuple[str, ...] = ()
    """The nodes that left or were lost."""
    unclean: tuple[str, ...] = ()
    """Those that were lost."""
    arrived: int = 0
    """How many nodes joined."""
    age_s: float = 0.0
    """The age of the round at its end, in seconds."""
    failure: StoredFailure | None = None
    """The failure after which the run restarted."""
    evidence: str = ""


class StoredStop(msgspec.Struct):
    """The round that is being stopped."""

    token: int = 0
    nonce: str = ""


class StoredVerdict(msgspec.Struct):
    """How the run ended."""

    decision: Stop
    exit_code: int = 1
    by: str = ""
    evidence: str = ""


class StoredDrain(msgspec.Struct):
    """An order from outside the run that a node ends, or all nodes."""

    incarnation: str = ""
    """Its incarnation; empty means all nodes, and with them the run."""
    node: str = ""
    """Its id."""
    by: str = ""
    """The requesting user."""
    grace_s: float | None = None
    """The time limit of its workers, if the order has one."""


class StoredControl(msgspec.Struct):
    """The run's identity and decisions."""

    v: int = 0
    epoch: str = ""
    ending: StoredEnding | None = None
    stopping: StoredStop | None = None
    verdict: StoredVerdict | None = None
    history: tuple[StoredFailure, ...] = ()
    user: str = ""
    """The node that began the run."""
    drains: tuple[StoredDrain, ...] = ()
    """Orders from outside the run that nodes end."""
    secret: str = ""
    """The secret by which the run's agents authenticate each other."""
    """Words, and a row for each failure before those in the history."""


class StoredNode(msgspec.Struct, array_like=True):
    """A node of the round, as an array. An empty address is the part of the node id after its last `@`."""

    incarnation: str
    node: str
    address: str = ""
    agent_port: int = 0
    nproc: int = 1
    named_role: str = ""
    """Its role; empty means `default`."""

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
    """The incarnation of its run in the store."""
    token: int = 0
    """Its fencing token."""
    nonce: str = ""
    """Its random text."""
    index: int = 0
    """Its index in the run."""
    restarts: int = 0
    """Restarts before it."""
    changes: int = 0
    """Membership changes before it."""
    master_addr: str = ""
    """Address of rank 0."""
    master_port: int = 0
    """Its port."""
    at_s: float = 0.0
    """The age of the run when the round was formed, in seconds."""
    roster: tuple[StoredNode, ...] = ()
    """Its nodes, in rank order."""


class StoredAbsence(msgspec.Struct):
    """Why a node is left out."""

    by: str = ""
    """The hook with its distribution, or the policy."""
    reason: str = ""
    """Why."""
    for_s: float | None = None
    """Time from its publication. `None` means until the policy's next decision."""
    refused: bool = True
    """Whether one of its hooks rejects rounds; else the policy excludes it."""


class StoredMember(msgspec.Struct):
    """The record that a node publishes."""

    v: int = 0
    """The version of this content."""
    epoch: str = ""
    """The incarnation of its run in the store."""
    node: str = ""
    """The node's id."""
    state: str = ""
    """`ready`, `out`, `running`, `finishing`, `done` or `leaving`."""
    token: int = 0
    """The token of its current round."""
    nonce: str = ""
    """The nonce of that round."""
    address: str = ""
    """Its address for other nodes."""
    nproc: int = 1
    """The number of its workers."""
    role: str = ""
    """`--role`."""
    absence: StoredAbsence | None = None
    """Why it is left out. `None` if it is not."""


class StoredRun(Record, frozen=True, kw_only=True):
    """A run in a store. `None` means missing, or (a round) of an earlier run. `members` have their incarnation."""

    control: StoredControl | None = None
    """The run's control document. `None` if there is none."""
    round: StoredRound | None = None
    """Its last round. `None` if there was none."""
    members: tuple[tuple[str, StoredMember], ...] = ()
    """Its live nodes, in the order in which they joined."""
    silent: frozenset[str] = frozenset()
    """The incarnations of those that have not renewed their seats."""


_D = TypeVar("_D", StoredControl, StoredRound, StoredMember)


def stored_run(survey: Survey) -> StoredRun:
    """Return a run from a store's content.

    Raises:
        RendezvousStateError: the content is of another format, or not elastic-core's.
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
