"""What a run keeps in a coordination store: two documents and a record for each member, as versioned JSON.

`control` is small and says what is now: which run this is, how the current round ended, the verdict. `round` has the
roster, is written once for each round and read once by each node; its entries are short because there may be a
thousand of them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.encoding import decode_json
from elastic_core.errors import RendezvousStateError
from elastic_core.history import remembered
from elastic_core.messages import PublishDecision
from elastic_core.rendezvous.store import Seat
from elastic_core.reports import Absence, NodeReport, NodeSteps, RunSteps
from elastic_core.types import Decided, Failure, Record, Restart, Stop

STORE_FORMAT = 5
"""The version of everything in this module; a node that finds another one refuses to join."""

DEFAULT_ROLE = "default"

MemberState = Literal["ready", "out", "running", "finishing", "done", "stopped", "leaving", "gone"]
"""What a member says of itself.

`ready`: no worker of it exists, it waits for a round. `out`: so, but it wants no place in one. `running`: workers of a
round exist or may exist. `finishing`: so, and the first has ended well. `done`: all have ended well, it waits for the
verdict. `stopped`: none is left after the run was stopped, it waits for what is decided. `leaving`: it was told to
stop. `gone`: it has none any more, will have none, and gives its seat back in a moment.
"""
EVIDENCE_BYTES = 16_384
"""The longest evidence of one node."""
LARGEST_BYTES = 16 << 20
"""A longer document is none of ours: that of a thousand nodes, or of 500 failures, has some 100 kB."""
RUN_EVIDENCE_BYTES = 24_576
"""The longest evidence that a decision has with it."""
MESSAGE_CHARS = 4_096
"""How much of a failure's message a node's report has, besides its evidence."""


class MemberRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one member says of itself.

    `seen` is the highest token that it has seen; (`token`, `nonce`) the round that it runs or ran last. `master_port`
    is a port that its agent holds for the worker of rank 0. `alternative` is the address to use in place of a loopback
    one when nodes of several hosts (`boot`: the host's boot id) take part; `master` the one that the user wants workers
    to be told.
    """

    v: int = STORE_FORMAT
    epoch: str
    node: str
    state: MemberState
    seen: int = 0
    token: int = 0
    nonce: str = ""
    address: str = ""
    alternative: str = ""
    master: str = ""
    agent_port: int = 0
    master_port: int = 0
    nproc: int = 1
    role: str = DEFAULT_ROLE
    rank_hint: int | None = None
    boot: str = ""
    report: NodeReport | None = None
    """What it has seen of that round, once it was stopped."""
    steps: NodeSteps | None = None
    """How far its workers are, once that was asked."""
    absence: Absence | None = None
    """Why it is left out."""
    stated: Mapping[str, int] = {}
    """Its numbers in that round, by topic, for what the nodes agree about."""


class HeldSeat(Seat, frozen=True, kw_only=True):
    """What the guard of a dead agent gives back, and the record by which it says that no worker is left.

    A seat that is given back looks like one whose lease has ended. Who waits for the next round tells them apart by
    this record; empty: it was in no round.
    """

    gone: str = ""


class RosterEntry(msgspec.Struct, frozen=True, array_like=True):
    """One node of a round. An empty address is the part of the node id behind its last `@`.

    An empty `named_role` is the default's: nobody pays for it a thousand times.
    """

    incarnation: str
    node: str
    address: str
    agent_port: int
    nproc: int = 1
    named_role: str = ""

    @property
    def role(self) -> str:
        """Return the role."""
        return self.named_role or DEFAULT_ROLE

    @property
    def host(self) -> str:
        """Return the address."""
        return self.address or self.node.rpartition("@")[2]


class RoundDocument(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One round: its fencing token, who wrote it, and its nodes in rank order.

    `left` has the last ranks of nodes that are not in it; `strikes` counts how often a node left without a word. `at_s`
    is the run's age when it was written, as its writer knew it: whoever reads it takes its own clock from there.
    `lease_s`: the length of its members' leases and grants. `grace_s`: for how long members that are all silent may
    have workers, which the next round waits for.
    """

    v: int = STORE_FORMAT
    epoch: str
    token: int
    nonce: str
    index: int
    restarts: int = 0
    changes: int = 0
    at_s: float = 0.0
    lease_s: float = 0.0
    grace_s: float = 0.0
    master_addr: str
    master_port: int
    roster: tuple[RosterEntry, ...]
    left: Mapping[str, int] = {}
    strikes: Mapping[str, int] = {}

    @property
    def incarnations(self) -> frozenset[str]:
        """Return who is in it."""
        return frozenset(entry.incarnation for entry in self.roster)

    def rank_of(self, incarnation: str) -> int | None:
        """Return a node's rank; None: it is not in it."""
        return next((rank for rank, entry in enumerate(self.roster) if entry.incarnation == incarnation), None)


class Ending(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a round ended, for all its nodes: they stop their workers and join the next one.

    `kind`: `restart` after a failure, `regroup` because nodes came or went, `asked` because a user wants it, `outage`
    because nodes have stopped their workers for want of the store, and are back. `lost` are node ids; `unclean` those
    among the lost that went without a word, `out` those whose hooks refused to start their workers.
    """

    token: int
    nonce: str
    kind: Literal["restart", "regroup", "asked", "outage"]
    by: str
    reason: str = ""
    """Of `regroup` and `outage`: a line for people."""
    decision: Restart = Restart()
    """The decision; of `regroup` and `outage` the rest of the last one: the nodes that it still leaves out."""
    policy: str = ""
    """The policy that has left nodes out."""
    lost: tuple[str, ...] = ()
    unclean: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    arrived: int = 0
    age_s: float = 0.0
    """How old the round was when it ended."""
    failure: Failure | None = None
    evidence: str = ""

    @property
    def decided(self) -> Decided:
        """The decision as each node gets it."""
        return Decided(decision=self.decision, failure=self.failure, evidence=self.evidence)


class Verdict(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the run ended; it stands. `token` and `nonce` say after which round."""

    decision: Stop
    exit_code: int
    by: str
    token: int = 0
    nonce: str = ""
    failure: Failure | None = None
    evidence: str = ""

    @property
    def decided(self) -> Decided:
        """The decision as each node gets it."""
        return Decided(decision=self.decision, failure=self.failure, evidence=self.evidence)

    @property
    def from_outside(self) -> bool:
        """Return whether somebody outside has stopped the run: so it stands whatever becomes of the round."""
        return self.decision.rule == STOP_RULE


STOP_RULE: Final = "elastic stop"
"""The rule of a run's verdict that somebody outside has stopped; no policy's is called so."""


class StopOrder(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All nodes of this round stop their workers, and say what they saw: `by` has failed, and that is its report.

    The report is here, too, because that node may be gone before anybody decides.
    """

    token: int
    nonce: str
    by: str
    incarnation: str
    reason: str
    report: NodeReport


class StepsOrder(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All nodes of this round say how far their workers are, and write down where they stand: some of `by` hang.

    `seen` is what they have answered, once the leader has put it together.
    """

    token: int
    nonce: str
    serial: int
    by: str
    seen: RunSteps | None = None


class Agreement(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the nodes of this round have agreed about: the largest of their numbers, by topic."""

    token: int
    nonce: str
    values: Mapping[str, int]


class DrainOrder(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody who takes no part in the run wants a node to end, as SIGTERM to its agent would have it.

    An empty `incarnation`: all nodes, those that come later as well, and with them the run. `by`: who, for people.
    `grace_s` bounds the workers' grace period.
    """

    incarnation: str = ""
    node: str = ""
    by: str = ""
    grace_s: float | None = None

    @property
    def reason(self) -> str:
        """Return who wanted it, for people."""
        return f"{self.by or 'somebody'} asked for it"


class ControlDocument(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Which run this is, and what is decided.

    `epoch` is random and another for each run; `secret` is what agents of the run know each other by; `user` is who has
    begun it. `given`: somebody has said which attempt this is; `job` is the scheduler's name of it. `over_s`: the run
    is over when for so long nobody of it has been alive; 0: as the reader's own would be. `history` has the last
    failures with their decisions, oldest first. `done` are the incarnations of the round with the
    nonce `done_of` whose workers had all ended well when the leader's had: it may be gone before the others are done.
    """

    v: int = STORE_FORMAT
    epoch: str
    attempt: int
    secret: str
    fingerprint: Mapping[str, str] = {}
    stopping: StopOrder | None = None
    ending: Ending | None = None
    verdict: Verdict | None = None
    history: tuple[Failure, ...] = ()
    steps: StepsOrder | None = None
    agreement: Agreement | None = None
    done_of: str = ""
    done: tuple[str, ...] = ()
    given: bool = False
    job: str = ""
    user: str = ""
    over_s: float = 0.0
    drains: tuple[DrainOrder, ...] = ()
    silent_of: str = ""
    """The nonce of a round of which somebody saw no member alive, and not all of them leave: they may train on."""

    @property
    def stop_order(self) -> DrainOrder | None:
        """Return the order that all nodes end; None: there is none."""
        return next((order for order in self.drains if not order.incarnation), None)

    def after(self, post: Ending | Verdict) -> "ControlDocument":
        """Return this with a decision in force, and the failure that it is about in the history."""
        history = self.history
        if post.failure is not None:
            history = remembered(history, replace(post.failure, decision=post.decision))
        # The order to stop goes in the same write: in the next round it would be about nothing.
        if isinstance(post, Ending):
            return replace(self, history=history, ending=post, stopping=None)
        return replace(self, history=history, verdict=post, stopping=None)


_D = TypeVar("_D", MemberRecord, RoundDocument, ControlDocument)


_VERSIONED = b'{"v":%d,' % STORE_FORMAT
"""How everything of this format begins: what does is not read twice."""


class _Versioned(msgspec.Struct):
    v: Any = None


def encode(document: MemberRecord | RoundDocument | ControlDocument) -> bytes:
    """Return the JSON text; the version is in it although it is the default."""
    text = msgspec.json.encode(document)
    return _VERSIONED + text[1:] if not text.startswith(b'{"v":') else text


def decode(raw: bytes, kind: type[_D]) -> _D:
    """Return what was encoded.

    Raises:
        RendezvousStateError: it is not JSON of this kind, or longer than any, or of another version of the format.
    """
    what = kind.__name__
    if len(raw) > LARGEST_BYTES:
        raise RendezvousStateError(
            f"the store holds a {what} of {len(raw)} bytes; no version writes more than {LARGEST_BYTES}",
            hint="another --rdzv-id",
        )
    if not raw.startswith(_VERSIONED):
        _check_version(raw, what)
    try:
        return decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise RendezvousStateError(
            f"the store holds a {what} that can't be read ({err})", hint="another --rdzv-id"
        ) from err


def _check_version(raw: bytes, what: str) -> None:
    try:
        version = decode_json(raw, _Versioned).v
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise RendezvousStateError(
            f"the store holds a {what} that this version can't read ({err})", hint="another --rdzv-id"
        ) from err
    if version != STORE_FORMAT:
        raise RendezvousStateError(
            f"{what} in the store: format {version!r}; expected {STORE_FORMAT}",
            hint="the same version of elastic-core on every node, or another --rdzv-id",
        )


def document_of(decided: PublishDecision, *, by: str, token: int, nonce: str) -> Ending | Verdict:
    """Return what is published of a decision about a round; `by` is the node that decided, where nothing failed."""
    decision, failure, evidence = decided.decision, decided.failure, decided.evidence
    # None at all would be a decision of one node alone, of which the hooks of the others get none.
    evidence = evidence if len(evidence.encode()) <= RUN_EVIDENCE_BYTES else "{}"
    by = by if failure is None else failure.node_id
    if isinstance(decision, Restart):
        return Ending(
            token=token,
            nonce=nonce,
            kind="asked" if failure is None else "restart",
            by=by,
            decision=decision,
            policy=decided.policy if decision.exclude_nodes else "",
            failure=failure,
            evidence=evidence,
        )
    code = 1 if failure is None else failure.exit_code
    return Verdict(
        decision=decision,
        exit_code=0 if decision.outcome == "done" else code,
        by=by,
        token=token,
        nonce=nonce,
        failure=failure,
        evidence=evidence,
    )


def bounded(report: NodeReport) -> NodeReport:
    """Return a report that fits into a member's record."""
    failure = report.failure
    if failure is not None and len(failure.message) > MESSAGE_CHARS:
        report = replace(report, failure=replace(failure, message=failure.message[:MESSAGE_CHARS]))
    return report if len(report.evidence.encode()) <= EVIDENCE_BYTES else replace(report, evidence="")
