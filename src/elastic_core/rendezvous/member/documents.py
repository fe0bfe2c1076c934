"""The content of a run in a coordination store: two documents, and a record for each member, as versioned JSON.

`control` is small and holds the current state: which run this is, how the last round ended, the verdict. `round` holds
the roster; it is written once per round and read once by each node. Its entries are short, because there may be a
thousand of them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.encoding import decode_json
from elastic_core.errors import RendezvousStateError
from elastic_core.history import remembered
from elastic_core.messages import AnswerNodes, PublishDecision
from elastic_core.rendezvous.store import Seat
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Decided, Failure, Record, Restart, Stop

STORE_FORMAT = 5
"""The version of all content in this module; a node that finds another version refuses to join."""

DEFAULT_ROLE = "default"

MemberState = Literal["ready", "out", "running", "finishing", "done", "stopped", "leaving", "gone"]
"""The state that a member publishes about itself.

`ready`: it has no workers and waits for a round. `out`: the same, but it wants no place. `running`: workers of a round
exist or may exist. `finishing`: the same, and the first worker has exited with 0. `done`: all workers exited with 0 and
it waits for the verdict. `stopped`: the round was stopped, no worker is left, and it waits for the decision. `leaving`:
it was ordered to stop. `gone`: it has no workers, will have none, and is about to give its seat back.
"""
EVIDENCE_BYTES = 16_384
"""The longest evidence of one node, in bytes."""
LARGEST_BYTES = 16 << 20
"""Longer documents are not from this program: one with a thousand nodes or 500 failures has some 100 kB."""
RUN_EVIDENCE_BYTES = 24_576
"""The longest evidence that is attached to a decision, in bytes."""
MESSAGE_CHARS = 4_096
"""The length of a failure's message in a node's report, in addition to its evidence."""


class MemberRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The record that one member publishes about itself.

    `seen` is the highest token that it has seen; (`token`, `nonce`) is the round that it runs or ran last.
    `master_port` is a port that its agent has reserved for the worker of rank 0. `alternative` is the address to use in
    place of a loopback address if nodes of several hosts (`boot` is the host's boot id) take part. `master` is the
    master address that the user gave for the workers.
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
    """The node's report about the round, after the round was stopped."""
    answer: AnswerNodes | None = None
    """Its answer to the open question of its round."""
    absence: Absence | None = None
    """The reason why it is left out."""
    stated: Mapping[str, int] = {}
    """The numbers that it stated for agreement in that round, by topic."""


class HeldSeat(Seat, frozen=True, kw_only=True):
    """The seat that the guard of a dead agent gives back, and the record by which it reports that no worker is left.

    A returned seat looks like an ended lease. Nodes that wait for the next round distinguish them by this record. An
    empty record means that the node was in no round.
    """

    gone: str = ""


class RosterEntry(msgspec.Struct, frozen=True, array_like=True):
    """One node of a round. An empty address means the part of the node id after its last `@`.

    An empty `named_role` means the default role, which keeps a thousand entries short.
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
    """One round: its fencing token, its writer, and its nodes in rank order.

    `left` has the last ranks of nodes that are not in the round; `strikes` counts how often a node left without notice.
    `at_s` is the run's age at the time of writing, by the writer's clock; each reader derives its own clock from it.
    `lease_s` is the length of its members' leases and grants. `grace_s` is how long members may have workers while all
    of them are silent; the next round waits that long.
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
        """Return the incarnations of its nodes."""
        return frozenset(entry.incarnation for entry in self.roster)

    def rank_of(self, incarnation: str) -> int | None:
        """Return a node's rank; `None` if it is not in the round."""
        return next((rank for rank, entry in enumerate(self.roster) if entry.incarnation == incarnation), None)


class Ending(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How a round ended, for all its nodes: they stop their workers and join the next one.

    `kind`: `restart` after a failure, `regroup` because nodes joined or left, `asked` after a user's request, `outage`
    because nodes that had stopped their workers while the store was away are back. `lost` are node ids. `unclean` are
    the lost nodes that left without notice, `left` those that left with notice, `out` those with hooks that refused to
    start workers.
    """

    token: int
    nonce: str
    kind: Literal["restart", "regroup", "asked", "outage"]
    by: str
    reason: str = ""
    """A line for people, with `regroup` and `outage`."""
    decision: Restart = Restart()
    """The decision; with `regroup` and `outage`, the rest of the last one: the nodes that it still leaves out."""
    policy: str = ""
    """The policy that left nodes out."""
    lost: tuple[str, ...] = ()
    unclean: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    arrived: int = 0
    age_s: float = 0.0
    """The age of the round at its end, in seconds."""
    failure: Failure | None = None
    evidence: str = ""


class Verdict(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the run ended; a verdict is final. (`token`, `nonce`) is the last round."""

    decision: Stop
    exit_code: int
    by: str
    token: int = 0
    nonce: str = ""
    failure: Failure | None = None
    evidence: str = ""

    @property
    def from_outside(self) -> bool:
        """Whether the run was stopped from outside, so that the verdict counts whatever happens to the round."""
        return self.decision.rule == STOP_RULE


def decided(end: Ending | Verdict) -> Decided:
    """Return the decision in the form that each node receives."""
    return Decided(decision=end.decision, failure=end.failure, evidence=end.evidence)


STOP_RULE: Final = "elastic stop"
"""The rule of the verdict of a run that was stopped from outside; no policy has this name."""


class StopOrder(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The order that all nodes of this round stop their workers and report; `by` failed, and `report` is its report.

    The report is also here because that node may be gone before a decision.
    """

    token: int
    nonce: str
    by: str
    incarnation: str
    reason: str
    report: NodeReport


class NodesQuestion(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The last question to all nodes of this round; `conclusion` is the result for all of them, once there is one."""

    token: int
    nonce: str
    serial: int
    topic: str
    within_s: float
    conclusion: bytes | None = None


class Agreement(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The agreement of the nodes of this round: the largest of their numbers, by topic."""

    token: int
    nonce: str
    values: Mapping[str, int]


class DrainOrder(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An order from outside the run that a node ends, as after SIGTERM to its agent.

    An empty `incarnation` means all nodes, also later ones, and so the end of the run. `by` names the user for people.
    `grace_s` limits the workers' grace period.
    """

    incarnation: str = ""
    node: str = ""
    by: str = ""
    grace_s: float | None = None

    @property
    def reason(self) -> str:
        """The reason, with the user who gave the order, for people."""
        return f"{self.by or 'somebody'} asked for it"


class ControlDocument(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of the run, and its current decisions.

    `epoch` is random and differs for each run; `secret` identifies the run's agents to each other; `user` began the
    run. `given` means that a scheduler or user gave the attempt number; `job` is the scheduler's job name. `over_s` is
    how long no member may be alive before the run is over; 0 means the reader's own value. `history` has the last
    failures with their decisions, oldest first. `done` are the incarnations, of the round with the nonce `done_of`,
    with workers that had all exited with 0 when the leader's had: the leader may leave before the other nodes are done.
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
    question: NodesQuestion | None = None
    agreement: Agreement | None = None
    done_of: str = ""
    done: tuple[str, ...] = ()
    given: bool = False
    job: str = ""
    user: str = ""
    over_s: float = 0.0
    drains: tuple[DrainOrder, ...] = ()
    silent_of: str = ""
    """The nonce of a round of which no member was seen alive though not all had left: they may still train."""

    @property
    def stop_order(self) -> DrainOrder | None:
        """The order that all nodes end; `None` if there is none."""
        return next((order for order in self.drains if not order.incarnation), None)

    def after(self, post: Ending | Verdict) -> "ControlDocument":
        """Return this document with a decision in force, and with its failure in the history."""
        history = self.history
        if post.failure is not None:
            history = remembered(history, replace(post.failure, decision=post.decision))
        # The same write removes the order to stop: it does not apply to the next round.
        if isinstance(post, Ending):
            # The end of a round ends its question; only the number is still needed.
            question = None if self.question is None else replace(self.question, conclusion=b"")
            return replace(self, history=history, ending=post, stopping=None, question=question)
        return replace(self, history=history, verdict=post, stopping=None)


_D = TypeVar("_D", MemberRecord, RoundDocument, ControlDocument)


_VERSIONED = b'{"v":%d,' % STORE_FORMAT
"""The beginning of all content of this format version: content that begins so is not parsed twice."""


class _Versioned(msgspec.Struct):
    v: Any = None


def encode(document: MemberRecord | RoundDocument | ControlDocument) -> bytes:
    """Return the JSON text; it contains the version although that is the default."""
    text = msgspec.json.encode(document)
    return _VERSIONED + text[1:] if not text.startswith(b'{"v":') else text


def decode(raw: bytes, kind: type[_D]) -> _D:
    """Return the decoded document.

    Raises:
        RendezvousStateError: the text is not JSON of this kind, is too long, or has another format version.
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
    """Return the document that publishes a decision about a round; `by` is the deciding node if nothing failed."""
    decision, failure, evidence = decided.decision, decided.failure, decided.evidence
    # Empty evidence would mean a decision of one node alone, without evidence for the hooks of the other nodes.
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
    """Return the report, shortened so that it fits into a member's record."""
    failure = report.failure
    if failure is not None and len(failure.message) > MESSAGE_CHARS:
        report = replace(report, failure=replace(failure, message=failure.message[:MESSAGE_CHARS]))
    return report if len(report.evidence.encode()) <= EVIDENCE_BYTES else replace(report, evidence="")
