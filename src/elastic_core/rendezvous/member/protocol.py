"""Events, operations and announcements of a member of a run: what goes into `machine` and comes out of it.

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
    """The agent wants a round; no worker of it exists. `master_port`: a port that it has reserved."""

    master_port: int


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
    ttl_s: float


class Updated(Record, frozen=True, kw_only=True):
    """The record was replaced; not `kept`: the seat is gone."""

    record: bytes
    kept: bool


class Renewed(Record, frozen=True, kw_only=True):
    """The lease was extended; None: the seat is gone."""

    renewal: Renewal | None
    sent_s: float
    ttl_s: float


class Withdrawn(Record, frozen=True, kw_only=True):
    """The seat was given back."""


class MembersRead(Record, frozen=True, kw_only=True):
    """All live members.

    `alternative` is this host's address on the way to one of them elsewhere; empty: none is needed, or none is known.
    """

    members: tuple[Candidate, ...]
    alternative: str = ""


class Loaded(Record, frozen=True, kw_only=True):
    """A document as it stands.

    `age_s`: how long ago the run has ended whose verdict it has; None: there is none, or the store can't tell.
    """

    key: str
    document: Document | None
    value: ControlDocument | RoundDocument | None
    age_s: float | None = None


class SwapAnswered(Record, frozen=True, kw_only=True):
    """A swap was applied or refused; `value` is what stands now."""

    key: str
    swapped: Swapped
    value: ControlDocument | RoundDocument | None


class Surveyed(Record, frozen=True, kw_only=True):
    """Who is alive was looked at from outside: the epochs of the runs that they are of.

    `silent` are those whose leases have ended, and who may have workers still; None: the store can't tell.
    """

    epochs: frozenset[str]
    silent: frozenset[str] | None = frozenset()


class WatchEnded(Record, frozen=True, kw_only=True):
    """The wait is over; None: it was cut short because there is something else to do."""

    watched: Watched | None


class PeersAnswered(Record, frozen=True, kw_only=True):
    """What is known of the grants of a round: the oldest of the `asked` other members' was made at `oldest_s`.

    `oldest_s` is `LONG_AGO_S` while one is missing. So many have `granted` within a lease, so many reach the store.
    """

    token: int
    nonce: str
    oldest_s: float
    asked: int
    granted: int
    reaching: int


class PeerAsked(Record, frozen=True, kw_only=True):
    """Another member of the round can't reach the store, or has heard of one: does this one? `needs`: its grant."""

    token: int
    nonce: str
    needs: bool


class StillRuns(Record, frozen=True, kw_only=True):
    """A member of the round, silent in the store, has answered that it has workers of it."""

    token: int
    nonce: str


class PeersUnreachable(Record, frozen=True, kw_only=True):
    """These ranks of the round could not be reached by datagrams, directly or by way of others, in two tries."""

    token: int
    nonce: str
    ranks: tuple[int, ...]


class Failed(Record, frozen=True, kw_only=True):
    """A store operation failed; `unknown`: it may have been carried out; `refused`: trying again won't help.

    `key` is the document that it was about, if any; `own`: it is not the store but this agent that is in trouble;
    `silent`: there was no answer in time, and that is all that is known; `write`: the operation writes more than the
    end of a lease.
    """

    text: str
    unknown: bool = False
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
    | m.AskSteps
    | m.ReportSteps
    | m.StateNumber
    | m.ReportFinishing
    | m.ReportDone
    | m.AnnounceDeparture
    | m.LeaveRendezvous
)
"""What the agent wants: its own requests, but for those that become a document or need what the driver knows."""

StoreAnswer = (
    Connected | Enlisted | Updated | Renewed | Withdrawn | MembersRead | Loaded | Surveyed | SwapAnswered | WatchEnded
)
"""What the store answers."""

Event = Request | StoreAnswer | PeersAnswered | PeerAsked | StillRuns | PeersUnreachable | Failed


# --- operations: a member does one at a time


class Connect(Record, frozen=True, kw_only=True):
    """Open the connection; answers Connected."""


class Enlist(Record, frozen=True, kw_only=True):
    """Take a seat with a lease of so many seconds; answers Enlisted."""

    record: bytes
    ttl_s: float


class Update(Record, frozen=True, kw_only=True):
    """Replace the record; answers Updated."""

    seat: Seat
    record: bytes


class Renew(Record, frozen=True, kw_only=True):
    """Extend the lease; answers Renewed."""

    seat: Seat
    ttl_s: float


class Withdraw(Record, frozen=True, kw_only=True):
    """Give the seat back; answers Withdrawn."""

    seat: Seat


class ReadMembers(Record, frozen=True, kw_only=True):
    """Read all members; answers MembersRead."""


class SurveyRun(Record, frozen=True, kw_only=True):
    """Look who is alive, without a seat and without a trace."""


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


class Pause(Record, frozen=True, kw_only=True):
    """Wait without the store until then; answers WatchEnded(None)."""

    until_s: float


class Gone(Record, frozen=True, kw_only=True):
    """Nothing more: the member has left."""


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
    | Pause
    | Gone
)


# --- announcements to the agent


class JoinFailed(Record, frozen=True, kw_only=True):
    """There will be no round for this node.

    `error` is the class of the error that the agent gets. `exit_code` is the run's, where it is over. `decided`: how
    the run of which this node was has ended for a failure.
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
    | m.StepsAsked
    | m.StepsSeen
    | m.Agreed
)


class MemberStep(Record, frozen=True, kw_only=True):
    """The next operation of a member, the announcements that its agent gets before, and the rule that named it."""

    state: State
    operation: Operation
    announcements: tuple[Announcement, ...] = ()
    reason: str = ""
