"""Events, operations and announcements of a member of a run: the inputs and outputs of `machine`.

Times `_s` are seconds of this host's monotonic clock.
"""

from elastic_core import messages as m
from elastic_core.errors import RendezvousError
from elastic_core.rendezvous.member.documents import ControlDocument, RoundDocument
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import State
from elastic_core.rendezvous.store import Document, Renewal, Revisions, Seat, Swapped, Topic, Watched
from elastic_core.reports import NodeReport
from elastic_core.types import Decided, Record, RendezvousInfo

# --- events


class JoinAsked(Record, frozen=True, kw_only=True):
    """The agent requests a round; it has no workers. `master_port` is a port that it has reserved."""

    master_port: int


class Connected(Record, frozen=True, kw_only=True):
    """The store replied. `address` is this host's address on the connection, `alternative` another address of it.

    `node` is the node's id if it depends on the address, else empty.
    """

    address: str
    node: str = ""
    alternative: str
    agent_port: int


class Enlisted(Record, frozen=True, kw_only=True):
    """The member has a seat with `record` in it."""

    seat: Seat
    record: bytes
    sent_s: float
    ttl_s: float


class Updated(Record, frozen=True, kw_only=True):
    """The record was replaced, if `kept`; otherwise the seat is gone."""

    record: bytes
    kept: bool


class Renewed(Record, frozen=True, kw_only=True):
    """The lease was extended; a `renewal` of `None` means that the seat is gone."""

    renewal: Renewal | None
    sent_s: float
    ttl_s: float


class Withdrawn(Record, frozen=True, kw_only=True):
    """The seat was given back."""


class MembersRead(Record, frozen=True, kw_only=True):
    """All live members were read.

    `alternative` is this host's address on the route to a member on another host; empty if not needed or not known.
    """

    members: tuple[Candidate, ...]
    alternative: str = ""


class Loaded(Record, frozen=True, kw_only=True):
    """A document was read.

    `age_s` is how long ago the run of its verdict ended; `None` if it has no verdict or the store can't determine it.
    """

    key: str
    document: Document | None
    value: ControlDocument | RoundDocument | None
    age_s: float | None = None


class SwapAnswered(Record, frozen=True, kw_only=True):
    """A swap was applied or refused; `value` is the current document."""

    key: str
    swapped: Swapped
    value: ControlDocument | RoundDocument | None


class Surveyed(Record, frozen=True, kw_only=True):
    """A survey from outside found live members; `epochs` are the epochs of their runs.

    `silent` are the members with ended leases that may still have workers; `None` if the store can't list them.
    """

    epochs: frozenset[str]
    silent: frozenset[str] | None = frozenset()


class WatchEnded(Record, frozen=True, kw_only=True):
    """The wait is over; a `watched` of `None` means that it was cut short because of other work."""

    watched: Watched | None


class PeersAnswered(Record, frozen=True, kw_only=True):
    """The known grants of a round: the oldest of the `asked` other members' grants was made at `oldest_s`.

    `oldest_s` is `LONG_AGO_S` if one is missing. `granted` members gave one within a lease; `reaching` reach the store.
    """

    token: int
    nonce: str
    oldest_s: float
    asked: int
    granted: int
    reaching: int


class PeerAsked(Record, frozen=True, kw_only=True):
    """Another member of the round asks whether this one reaches the store; `needs`: it needs this one's grant."""

    token: int
    nonce: str
    needs: bool


class StillRuns(Record, frozen=True, kw_only=True):
    """A member of the round, silent in the store, has replied that it has workers of it."""

    token: int
    nonce: str


class PeersUnreachable(Record, frozen=True, kw_only=True):
    """These ranks of the round did not respond to datagrams, directly or through other members, in two tries."""

    token: int
    nonce: str
    ranks: tuple[int, ...]


class Failed(Record, frozen=True, kw_only=True):
    """A store operation failed, but may have been carried out. `refused`: a retry does not help.

    `key` is the document of the operation, if any. `own`: this agent is in trouble, not the store. `silent`: no reply
    came in time, and nothing else is known. `write`: the operation writes more than the end of a lease.
    """

    text: str
    refused: bool = False
    silent: bool = False
    write: bool = False
    own: bool = False
    key: str = ""
    hint: str = ""


Request = (
    JoinAsked
    | m.StandAside
    | m.PublishDecision
    | m.OrderStop
    | NodeReport
    | m.NodesRequest
    | m.StateNumber
    | m.ReportFinishing
    | m.ReportDone
    | m.AnnounceDeparture
    | m.LeaveRendezvous
)
"""The requests of the agent, except those that become a document or need data of the driver."""

StoreAnswer = (
    Connected | Enlisted | Updated | Renewed | Withdrawn | MembersRead | Loaded | Surveyed | SwapAnswered | WatchEnded
)
"""The results of store operations."""

Event = Request | StoreAnswer | PeersAnswered | PeerAsked | StillRuns | PeersUnreachable | Failed


# --- operations: a member does one at a time


class Connect(Record, frozen=True, kw_only=True):
    """Open the connection; the result is Connected."""


class Enlist(Record, frozen=True, kw_only=True):
    """Take a seat with a lease of `ttl_s` seconds; the result is Enlisted."""

    record: bytes
    ttl_s: float


class Update(Record, frozen=True, kw_only=True):
    """Replace the record; the result is Updated."""

    seat: Seat
    record: bytes


class Renew(Record, frozen=True, kw_only=True):
    """Extend the lease; the result is Renewed."""

    seat: Seat
    ttl_s: float


class Withdraw(Record, frozen=True, kw_only=True):
    """Give the seat back; the result is Withdrawn."""

    seat: Seat


class ReadMembers(Record, frozen=True, kw_only=True):
    """Read all members; the result is MembersRead."""


class SurveyRun(Record, frozen=True, kw_only=True):
    """Survey which members are alive, without a seat and without side effects; the result is Surveyed."""


class Load(Record, frozen=True, kw_only=True):
    """Read a document; the result is Loaded."""

    key: str


class Swap(Record, frozen=True, kw_only=True):
    """Replace a document; the result is SwapAnswered."""

    key: str
    document: ControlDocument | RoundDocument
    expect: str | None
    keep_s: float


class Watch(Record, frozen=True, kw_only=True):
    """Wait for a change, or until `until_s`; the result is WatchEnded."""

    since: Revisions | None
    topics: tuple[Topic, ...]
    until_s: float


class Pause(Record, frozen=True, kw_only=True):
    """Wait without the store until `until_s`; the result is WatchEnded(None)."""

    until_s: float


class Gone(Record, frozen=True, kw_only=True):
    """No further operation: the member has left."""


Operation = (
    Connect
    | Enlist
    | Update
    | Renew
    | Withdraw
    | ReadMembers
    | SurveyRun
    | Load
    | Swap
    | Watch
    | m.DecisionAsked
    | m.AnswersGathered
    | Pause
    | Gone
)


# --- announcements to the agent


class JoinFailed(Record, frozen=True, kw_only=True):
    """This node gets no place in a round.

    `error` is the class of the error that the agent gets. `exit_code` is the run's if the run is over. `decided` is the
    result of this node's run if it ended with a failure.
    """

    error: type[RendezvousError] = RendezvousError
    what: str
    hint: str = ""
    exit_code: int | None = None
    decided: Decided | None = None


Announcement = (
    RendezvousInfo
    | JoinFailed
    | m.RoundChanged
    | m.LeftOut
    | m.DrainOrdered
    | m.PrintLine
    | m.NodesAsked
    | m.Concluded
    | m.Agreed
)


class MemberStep(Record, frozen=True, kw_only=True):
    """A member's next operation, the announcements that its agent gets first, and the rule that chose the operation."""

    state: State
    operation: Operation
    announcements: tuple[Announcement, ...] = ()
    reason: str = ""
