"""What a member of a run knows, hears, asks of the store, and tells its agent: the values of `machine`.

Times `_s` are seconds of this host's monotonic clock.
"""

import enum
from collections.abc import Mapping

from elastic_core.rendezvous.documents import (
    ControlDocument,
    Ending,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.duties import Notes
from elastic_core.rendezvous.roster import Candidate
from elastic_core.rendezvous.store import Document, Renewal, Revisions, Seat, Swapped, Topic, Watched
from elastic_core.types import Failure, NodeReport, Record, RoundChange

NEVER_S = float("inf")
LONG_AGO_S = float("-inf")


class Me(Record, frozen=True, kw_only=True):
    """What does not change about this member.

    `where` names the store in texts. `hosted`: the store is hosted by a member of the run, so
    that its loss is final. `fresh_epoch` and `secret` are random, for the case that this member begins the run.
    """

    node: str
    incarnation: str
    run_id: str
    where: str
    fresh_epoch: str
    secret: str
    min_nodes: int
    max_nodes: int
    nproc: int = 1
    role: str = "default"
    rank_hint: int | None = None
    boot: str = ""
    master: str = ""
    ttl_s: float = 5.0
    first_call_s: float = 30.0
    last_call_s: float = 2.0
    join_timeout_s: float = 600.0
    connect_timeout_s: float = 60.0
    outage_grace_s: float = 120.0
    fail_on_loss: bool = False
    hosted: bool = False
    attempt: int = 0
    spares: int | None = None
    max_changes: int | None = None
    fingerprint: Mapping[str, str] = {}
    allow_mismatch: tuple[str, ...] = ()

    @property
    def period_s(self) -> float:
        """Return the time from one renewal to the next."""
        return self.ttl_s / 3

    @property
    def cut_s(self) -> float:
        """Return how long after the last word of a lease that holds a member that hears nothing begins to stop."""
        return 0.75 * self.ttl_s

    @property
    def fence_s(self) -> float:
        """Return how long after it the last of its workers must be dead: with a margin before the lease ends."""
        return 0.88 * self.ttl_s


class Want(enum.StrEnum):
    """What the agent wants of the member."""

    NOTHING = "nothing"
    JOIN = "join"
    """A place in the next round; no worker exists."""
    RUN = "run"
    """Workers of a round exist, or are being started."""
    STOP = "stop"
    """The agent was told that the round is over, or found so itself: its workers are being stopped."""
    LEAVE = "leave"
    """To be gone."""


class Progress(enum.StrEnum):
    """How far the workers of this node are."""

    RUNNING = "running"
    FINISHING = "finishing"
    DONE = "done"


class Trouble(Record, frozen=True, kw_only=True):
    """The store can't be reached. `asked_s`: when peers were last asked."""

    since_s: float
    count: int
    retry_s: float
    text: str
    hint: str = ""
    refused: bool = False
    own: bool = False
    asked_s: float = LONG_AGO_S


class State(Record, frozen=True, kw_only=True):
    """All that a member knows.

    `control` and `round` are the last that were read; `fresh` names what need not be read again (`members`, too).
    `kept` and `kept_round` are the last of this run: copies to offer to a store that has lost them.
    `live` counts the members, `most` how many there were at once since this one began to wait.
    `mine` is the round that this member runs or ran last. `confirmed_s` is when the last lease operation that the store
    confirmed was sent, `evidence_s` when peers were asked who then said that the store is away for all.
    `recorded` is what the store has of it, as far as is known; at `repeat_s` it is told again, come what may.
    `stop_told` is the token of the round of which this node has ordered the stop, or was told it, at `stopped_s`;
    `stands` that order, `order` one that is still to be published, `report` what this node has seen of that round;
    `alone`: the agent was told to decide by itself. `asked` is the round about which this node's agent was asked to
    decide, at `asked_s`.
    """

    me: Me
    want: Want = Want.NOTHING
    progress: Progress = Progress.RUNNING
    leaving: bool = False
    mine: RoundDocument | None = None
    seen: int = 0
    told: int = 0
    verdict_told: bool = False
    post: Ending | Verdict | None = None
    order: StopOrder | None = None
    stands: StopOrder | None = None
    report: NodeReport | None = None
    stop_told: int = 0
    stopped_s: float = 0.0
    alone: bool = False
    asked: tuple[int, str] | None = None
    asked_s: float = LONG_AGO_S
    leave_s: float = 0.0

    connected: bool = False
    ever_connected: bool = False
    address: str = ""
    alternative: str = ""
    agent_port: int = 0
    master_port: int = 0

    seat: Seat | None = None
    ahead: int = 0
    live: int = 0
    most: int = 0
    recorded: bytes = b""
    repeat_s: float = NEVER_S
    confirmed_s: float = LONG_AGO_S
    evidence_s: float = LONG_AGO_S
    renew_s: float = LONG_AGO_S
    expiry_s: float = NEVER_S

    epoch: str = ""
    control: ControlDocument | None = None
    control_version: str | None = None
    kept: ControlDocument | None = None
    begin: bool = False
    round: RoundDocument | None = None
    round_version: str | None = None
    kept_round: RoundDocument | None = None
    members: tuple[Candidate, ...] = ()
    members_read_s: float = LONG_AGO_S
    fresh: frozenset[str] = frozenset()
    since: Revisions | None = None

    notes: Notes = Notes()
    owed: str = ""
    owed_s: float = 0.0
    look_s: float = NEVER_S
    serial: int = 0
    trouble: Trouble | None = None
    away_said: bool = False
    began_s: float = 0.0
    waiting_s: float = 0.0
    spare: bool = False
    say_s: float = NEVER_S
    spare_said: bool = False

    @property
    def lease_s(self) -> float:
        """Return the last moment of which it is known that the lease held, or that nobody could have ended it."""
        return max(self.confirmed_s, self.evidence_s)

    @property
    def fence_s(self) -> float:
        """Return by when this node's workers must be dead unless there is a newer word."""
        return self.lease_s + self.me.fence_s

    @property
    def awaiting(self) -> bool:
        """Return whether the round of this node was stopped, and it waits for what is decided about it."""
        mine = self.mine
        stopped = self.want is Want.STOP and mine is not None and self.stop_told == mine.token
        return stopped and mine is not None and self.told < mine.token and not self.verdict_told


# --- what a member hears


class JoinAsked(Record, frozen=True, kw_only=True):
    """The agent wants a round; no worker of it exists. `master_port` is held by it."""

    master_port: int


class FinishingReported(Record, frozen=True, kw_only=True):
    """A worker of this node has ended well, the first of them."""


class DoneReported(Record, frozen=True, kw_only=True):
    """All workers of this node have ended well."""


class DecisionPosted(Record, frozen=True, kw_only=True):
    """The agent decided for the run, because of what happened on this node; token and nonce are filled in."""

    post: Ending | Verdict


class AnswerGiven(Record, frozen=True, kw_only=True):
    """The agent decided for the whole run, as it was asked to; token and nonce are filled in."""

    post: Ending | Verdict


class StopPosted(Record, frozen=True, kw_only=True):
    """Something failed on this node: all are to stop their workers."""

    reason: str
    report: NodeReport


class ReportPosted(Record, frozen=True, kw_only=True):
    """What this node has seen of its stopped round, so far or in all."""

    report: NodeReport


class DepartureAnnounced(Record, frozen=True, kw_only=True):
    """The agent was told to stop; its workers may go on for a grace period."""


class LeaveAsked(Record, frozen=True, kw_only=True):
    """The agent goes; no worker of it exists."""


class Connected(Record, frozen=True, kw_only=True):
    """The store answered; `address` is this host's on the connection, `alternative` another one of it.

    `node` is the node's id where that depends on the address; empty: it does not.
    """

    address: str
    node: str = ""
    alternative: str
    agent_port: int


class Enlisted(Record, frozen=True, kw_only=True):
    """There is a seat, and `record` in it."""

    seat: Seat
    record: bytes
    sent_s: float


class Updated(Record, frozen=True, kw_only=True):
    """The record was replaced; not `kept`: the seat is gone."""

    record: bytes
    kept: bool


class Renewed(Record, frozen=True, kw_only=True):
    """The lease was extended; None: the seat is gone."""

    renewal: Renewal | None
    sent_s: float


class Withdrawn(Record, frozen=True, kw_only=True):
    """The seat was given back."""


class MembersRead(Record, frozen=True, kw_only=True):
    """All live members."""

    members: tuple[Candidate, ...]


class Loaded(Record, frozen=True, kw_only=True):
    """A document as it stands."""

    key: str
    document: Document | None
    value: ControlDocument | RoundDocument | None


class SwapAnswered(Record, frozen=True, kw_only=True):
    """A swap was applied or refused; `value` is what stands now."""

    key: str
    swapped: Swapped
    value: ControlDocument | RoundDocument | None


class WatchEnded(Record, frozen=True, kw_only=True):
    """The wait is over; None: it was cut short because there is something else to do."""

    watched: Watched | None


class PeersAnswered(Record, frozen=True, kw_only=True):
    """Of the peers asked at `asked_s`, so many could tell, and so many of those had reached the store since.

    The others of those who could tell had tried, and failed. One that has not tried since it was asked can't tell.
    """

    asked_s: float
    answered: int
    reaching: int


class PeerAsked(Record, frozen=True, kw_only=True):
    """Another agent asks whether this one reaches the store."""


class Failed(Record, frozen=True, kw_only=True):
    """A store operation failed; `unknown`: it may have been carried out; `refused`: trying again won't help.

    `key` is the document that it was about, if any; `own`: it is not the store but this agent that is in trouble.
    """

    text: str
    unknown: bool = False
    refused: bool = False
    own: bool = False
    key: str = ""
    hint: str = ""


Event = (
    JoinAsked
    | FinishingReported
    | DoneReported
    | DecisionPosted
    | AnswerGiven
    | StopPosted
    | ReportPosted
    | DepartureAnnounced
    | LeaveAsked
    | Connected
    | Enlisted
    | Updated
    | Renewed
    | Withdrawn
    | MembersRead
    | Loaded
    | SwapAnswered
    | WatchEnded
    | PeersAnswered
    | PeerAsked
    | Failed
)


# --- what a member does next: exactly one of these


class Connect(Record, frozen=True, kw_only=True):
    """Open the connection; answers Connected."""


class Enlist(Record, frozen=True, kw_only=True):
    """Take a seat; answers Enlisted."""

    record: bytes


class Update(Record, frozen=True, kw_only=True):
    """Replace the record; answers Updated."""

    seat: Seat
    record: bytes


class Renew(Record, frozen=True, kw_only=True):
    """Extend the lease; answers Renewed."""

    seat: Seat


class Withdraw(Record, frozen=True, kw_only=True):
    """Give the seat back; answers Withdrawn."""

    seat: Seat


class ReadMembers(Record, frozen=True, kw_only=True):
    """Read all members; answers MembersRead."""


class Load(Record, frozen=True, kw_only=True):
    """Read a document; answers Loaded."""

    key: str


class Swap(Record, frozen=True, kw_only=True):
    """Replace a document; answers SwapAnswered."""

    key: str
    document: ControlDocument | RoundDocument
    expect: str | None
    keep_s: float


class Watch(Record, frozen=True, kw_only=True):
    """Wait for a change, or `until_s`; answers WatchEnded."""

    since: Revisions | None
    topics: tuple[Topic, ...]
    until_s: float


class AskPeers(Record, frozen=True, kw_only=True):
    """Ask other agents whether they reach the store; answers PeersAnswered."""

    peers: tuple[RosterEntry, ...]
    secret: str
    until_s: float


class Ask(Record, frozen=True, kw_only=True):
    """Have the agent decide about what the nodes report; answers AnswerGiven, some time."""

    reports: tuple[NodeReport, ...]
    history: tuple[Failure, ...]


class Pause(Record, frozen=True, kw_only=True):
    """Wait without the store until then; answers WatchEnded(None)."""

    until_s: float


class Gone(Record, frozen=True, kw_only=True):
    """Nothing more: the member has left."""


Operation = (
    Connect | Enlist | Update | Renew | Withdraw | ReadMembers | Load | Swap | Watch | AskPeers | Ask | Pause | Gone
)


# --- what a member tells its agent


class Formed(Record, frozen=True, kw_only=True):
    """There is a round with this node in it."""

    document: RoundDocument
    rank: int
    history: tuple[Failure, ...]


class Changed(Record, frozen=True, kw_only=True):
    """The round that runs is over, or the run."""

    change: RoundChange


class JoinFailed(Record, frozen=True, kw_only=True):
    """There will be no round for this node.

    `kind`: `timeout`, `connection`, `refused`, `closed` (the run is over), `not needed`.
    """

    kind: str
    what: str
    hint: str = ""
    exit_code: int = 4


class Said(Record, frozen=True, kw_only=True):
    """One line for people."""

    text: str


class Fenced(Record, frozen=True, kw_only=True):
    """By then this node's workers must be dead, unless a later word comes."""

    until_s: float


Announcement = Formed | Changed | JoinFailed | Said | Fenced


class Step(Record, frozen=True, kw_only=True):
    """What a member does next, what it tells its agent before, and why."""

    state: State
    operation: Operation
    announcements: tuple[Announcement, ...] = ()
    reason: str = ""
