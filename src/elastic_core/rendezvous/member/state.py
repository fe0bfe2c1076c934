"""The state of `machine`: what a member of a run knows. Times `_s` are seconds of this host's monotonic clock."""

import enum
from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core.messages import AnswerNodes
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    DrainOrder,
    Ending,
    NodesQuestion,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import LeaderMemory
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Record, RendezvousSettings

NEVER_S = float("inf")
LONG_AGO_S = float("-inf")
CUT_SHARE = 0.75
"""The share of a lease, since its last confirmation, after which a member begins to stop its workers."""
FENCE_SHARE = 0.88
"""The share of a lease after which the last worker must be dead, with a margin before the lease ends."""
PATIENCE_SHARE = 8
"""A lease divided by this is the time limit of a store request; then other members are asked, and try the store too."""
# The same in a crowd before the first seat: no lease can end, and thousands of nodes may join at the same moment.
FIRST_PATIENCE_SHARE = 2
# Runs with more members are a crowd: a store can't reply to all of them at once in time.
SMALL_RUN = 256
# The seconds between the requests of two members of a crowd that react to the same change.
TURN_S = 0.0002
# The seconds that a store needs to send one entry of a roster.
ENTRY_S = 1e-7


class Me(RendezvousSettings, frozen=True, kw_only=True):
    """The constant data of this member: its settings and its identity.

    `where` names the store in texts. `hosted` means that a member of the run hosts the store, so that its loss is
    final. `fresh_epoch` and `secret` are random values, used if this member begins the run.
    """

    node: str
    where: str
    fresh_epoch: str
    secret: str
    user: str = ""
    boot: str = ""
    ttl_s: float = 5.0
    first_call_s: float = 30.0
    last_call_s: float = 2.0
    join_timeout_s: float = 600.0
    connect_timeout_s: float = 60.0
    hosted: bool = False

    @property
    def over_s(self) -> float:
        """How long no member may be alive before a run that this member begins is over, in seconds."""
        return self.ttl_s + self.last_call_s


class Want(enum.StrEnum):
    """The current request of the agent."""

    NOTHING = "nothing"
    JOIN = "join"
    """A place in the next round; no worker exists."""
    RUN = "run"
    """Workers of a round exist, or are being started."""
    STOP = "stop"
    """The agent was notified that the round is over, or ended it itself: its workers are being stopped."""
    LEAVE = "leave"
    """To leave the run."""


class Progress(enum.StrEnum):
    """The progress of this node's workers."""

    RUNNING = "running"
    FINISHING = "finishing"
    DONE = "done"


def question_about(token: int, nonce: str) -> str:
    """Return the name of the decision request about a stopped round; there is one per round."""
    return f"{token} {nonce}"


class EndedRun(Record, frozen=True, kw_only=True):
    """A run with a verdict, and when it ended. If not `known`, `at_s` is when the verdict was first read."""

    epoch: str
    at_s: float
    known: bool


class RunLiveness(Record, frozen=True, kw_only=True):
    """The members of the run in the store, as seen by a new node that has not decided yet whether to join it.

    `alive`: at `looked_s`, a member was alive. `empty_s`: since when none is, as far as this node could see.
    """

    epoch: str
    alive: bool
    looked_s: float
    empty_s: float
    silent: bool = False
    """Whether members of its round may still have workers: their leases ended, and their seats were not given back."""


class Trouble(Record, frozen=True, kw_only=True):
    """The store can't be reached. Of `asked` other members, `granted` gave a grant, and `reaching` reach the store.

    `no_write`: the last failed operation was a write, so only a write ends this trouble. `answers`: the store has
    replied since, as a full store does: it also renews leases.
    """

    since_s: float
    count: int = 0
    retry_s: float = LONG_AGO_S
    text: str = ""
    hint: str = ""
    refused: bool = False
    own: bool = False
    no_write: bool = False
    answers: bool = False
    asked: int = 0
    granted: int = 0
    reaching: int = 0


class OwnRun(Record, frozen=True, kw_only=True):
    """The run of this member, and its knowledge about another run in the store."""

    epoch: str = ""
    """The epoch of the run; empty if this member has no run yet."""
    kept_control: ControlDocument | None = None
    kept_round: RoundDocument | None = None
    """The last control and round documents that were read of the run: copies in case the store loses them."""
    seen_token: int = 0
    """The highest token of a round that this member has read, in any run."""
    clock: tuple[str, float] | None = None
    """The epoch of a run, and when that run's age was 0: the earliest time that its rounds give."""
    begin: bool = False
    """Whether this member replaces the run in the store with a new one."""
    ended: EndedRun | None = None
    liveness: RunLiveness | None = None

    def none(self) -> "OwnRun":
        """Return this for a member without a run; the highest token that it has seen is kept."""
        return replace(self, epoch="", kept_control=None, kept_round=None)


class SeenStore(Record, frozen=True, kw_only=True):
    """The content of the store as this member last read it."""

    control: ControlDocument | None = None
    control_version: str | None = None
    round: RoundDocument | None = None
    round_version: str | None = None
    members: tuple[Candidate, ...] = ()
    members_read_s: float = LONG_AGO_S
    live: int = 0
    """The number of members with a lease."""
    fresh: frozenset[str] = frozenset()
    """The keys that need not be read again because they have not changed; `MEMBERS` for the members."""
    round_s: float = LONG_AGO_S
    """When it is this member's turn to read the round again."""
    since: Revisions | None = None
    """The revisions up to which the store has reported changes; `None` means that they must be read first."""


class StoreConnection(Record, frozen=True, kw_only=True):
    """The connection to the store, and the addresses at which others reach this node."""

    connected: bool = False
    ever_connected: bool = False
    address: str = ""
    alternative: str = ""
    """The address for members on other hosts, if `address` is a loopback address."""
    agent_port: int = 0
    master_port: int = 0
    """A port that the agent has reserved for the worker of rank 0."""


class OwnLease(Record, frozen=True, kw_only=True):
    """This member's seat in the store, with its lease and its record."""

    seat: Seat | None = None
    ahead: int = 0
    """The number of members with a lower seat; 0 means that this member leads."""
    recorded: bytes = b""
    """The record in the seat, as far as known; empty means that it must be written again."""
    repeat_s: float = NEVER_S
    """When the record is written again even if it has not changed."""
    confirmed_s: float = LONG_AGO_S
    """When the last lease operation that the store confirmed was sent."""
    length_s: float = 0.0
    """The length of the confirmed lease, in seconds; 0 if there is none yet."""
    renew_s: float = LONG_AGO_S
    """When the lease is next renewed."""
    expiry_s: float = NEVER_S
    """When the lease of another member next ends."""
    unseated_s: float | None = None
    """The lease's age when the seat was found lost too early; `None` if it was not, or a line was printed about it."""


class PeerGrants(Record, frozen=True, kw_only=True):
    """The grants that members of the round exchange by datagrams while the store is away."""

    evidence_s: float = LONG_AGO_S
    """When the oldest of the other members' last grants was made."""
    granted_s: float = LONG_AGO_S
    """When this member made its last grant."""
    needed_s: float = LONG_AGO_S
    """When another member last requested a grant of this one."""
    silent_s: float = LONG_AGO_S
    """When a member without a lease last reported that it has workers of the last round."""
    unreachable: frozenset[int] = frozenset()
    """The ranks of `mine` that this member could not reach in two tries."""


class RoundEnd(Record, frozen=True, kw_only=True):
    """The end of this member's round: the order to stop it, this node's report about it, and the decision."""

    order: StopOrder | None = None
    """The order to stop that this node must still publish."""
    order_in_force: StopOrder | None = None
    """The order by which this node stopped its workers: its own, or another node's in its place."""
    report: NodeReport | None = None
    """The failures and the state of this node's workers in the round that was stopped."""
    stop_token: int = 0
    """The token of the round for which this node gave or received an order to stop."""
    stopped_s: float = 0.0
    """When it gave or received that order."""
    order_delay_s: float = 0.0
    """Seconds from this node's own order to the published one, relative to which all nodes report ages."""
    alone: bool = False
    """Whether the agent was notified to decide for this node alone."""
    post: Ending | Verdict | None = None
    """The decision of this node's agent that must still be published."""
    announced: int = 0
    """The token of the last round of which the agent was notified that it has ended."""
    verdict_announced: bool = False
    """Whether the agent was notified of the run's verdict."""


class RoundWork(Record, frozen=True, kw_only=True):
    """The work of this node in its round, and what the nodes of the round exchange about it."""

    progress: Progress = Progress.RUNNING
    wanted: Mapping[str, float] = {}
    """The questions that this node wants to publish: the time limit for answers by topic, in seconds."""
    asked: int = 0
    asked_s: float = 0.0
    concluded: int = 0
    """The number of the last question that this node has read, when, and of the last one with a conclusion."""
    answer: AnswerNodes | None = None
    """This node's answer to the last question."""
    stated: Mapping[str, int] = {}
    """The numbers that this node has stated, by topic."""
    agreed: frozenset[str] = frozenset()
    """The topics for which the agent was notified of the agreed number."""


class Departure(Record, frozen=True, kw_only=True):
    """The leaving of this member: orders to leave, and its progress."""

    leaving: bool = False
    """Whether the agent was ordered to stop."""
    drain: DrainOrder | None = None
    """The last drain order in the store of which the agent was notified."""
    parting: bool = False
    """Whether this node has no workers any more, and stays until other members have seen why."""
    leave_s: float = 0.0
    """When that stay began; without `parting`, when the member began to leave."""
    farewell: int | None = None
    """The number of the seat that it gave up for its last seat, in which its record is `gone` for a moment."""


class LeaderDuty(Record, frozen=True, kw_only=True):
    """The work of a leader, which its deputies compute too."""

    memory: LeaderMemory = LeaderMemory()
    outstanding: str = ""
    """The name of the outstanding duty; empty if there is none."""
    outstanding_s: float = 0.0
    """When that duty was first outstanding."""
    obstacle: str = ""
    """Why there is no duty now, by the last judgement."""
    look_s: float = NEVER_S
    """When to judge again even if nothing changes."""
    serial: int = 0
    """The number of duties that this member has tried to do."""
    asked: tuple[int, str] | None = None
    """The token and the nonce of the round for which a decision was requested from this node's agent."""
    asked_s: float = LONG_AGO_S
    conclusion: NodesQuestion | None = None
    """The question that this node's hook has concluded, with the conclusion."""


class JoinWait(Record, frozen=True, kw_only=True):
    """The wait of this node for a place in a round."""

    began_s: float = 0.0
    """When the agent requested a place."""
    since_s: float = 0.0
    """The start of the join timeout."""
    line_s: float = NEVER_S
    """When the next line about the wait is due."""
    spare: bool = False
    """Whether a round runs without this node."""
    most: int = 0
    """The most members with a lease at one time since the wait began."""
    refusals: Mapping[str, str] = {}
    """The nodes that were `out` when last seen during the wait, each with the reason."""
    absence: Absence | None = None
    """Why this node waits without wanting a place; `None` if it wants one."""
    left_out: Absence | None = None
    """Why a policy gives this node no place; `None` if no policy leaves it out."""
    ending: tuple[int, str] = (-1, "")
    """The token and the nonce of the previous round, whose ending this node has seen."""
    ending_s: float = 0.0
    """When this node first saw that ending."""


class PrintedLines(Record, frozen=True, kw_only=True):
    """The lines that were already printed, so that each is printed once."""

    outage: bool = False
    grace: bool = False
    newcomer: bool = False
    """That this new node has not decided yet whether it joins the run in the store."""
    spare: bool = False
    unreachable_of: str = ""
    silence_of: str = ""
    """The nonces of the rounds that have a line about unreachable members, and about silent members."""
    lost_seat_s: float = LONG_AGO_S
    """When the last line about a lost seat was printed."""


class State(Record, frozen=True, kw_only=True):
    """The complete state of a member."""

    me: Me
    want: Want = Want.NOTHING
    mine: RoundDocument | None = None
    """The round that this member runs or ran last."""
    trouble: Trouble | None = None
    run: OwnRun = OwnRun()
    seen: SeenStore = SeenStore()
    connection: StoreConnection = StoreConnection()
    lease: OwnLease = OwnLease()
    peers: PeerGrants = PeerGrants()
    end: RoundEnd = RoundEnd()
    work: RoundWork = RoundWork()
    departure: Departure = Departure()
    duty: LeaderDuty = LeaderDuty()
    waiting: JoinWait = JoinWait()
    printed: PrintedLines = PrintedLines()
    settled: bool = False
    """Whether all rules have run on this state and changed nothing, so that only an event or a time gives them work."""

    @property
    def own_control(self) -> ControlDocument | None:
        """The control document of this member's run in the store; `None` if there is none or it is not known."""
        control = self.seen.control if CONTROL_KEY in self.seen.fresh else None
        return control if control is not None and control.epoch == self.run.epoch else None

    @property
    def own_round(self) -> RoundDocument | None:
        """The last round of this member's run in the store; `None` if there is none or it is not known."""
        round_ = self.seen.round if ROUND_KEY in self.seen.fresh else None
        return round_ if round_ is not None and round_.epoch == self.run.epoch else None

    @property
    def ttl_s(self) -> float:
        """The length of a lease in seconds: the last round sets it for all its members and for waiting nodes."""
        return (self.run.kept_round.lease_s if self.run.kept_round is not None else 0.0) or self.me.ttl_s

    @property
    def grant_s(self) -> float:
        """The length of a grant for this member's round, in seconds."""
        return (self.mine.lease_s if self.mine is not None else 0.0) or self.me.ttl_s

    @property
    def had_seat(self) -> bool:
        """Whether the store has ever accepted a write of this member: its first write requests a seat."""
        return self.lease.confirmed_s > LONG_AGO_S

    @property
    def patience_s(self) -> float:
        """The time limit of a store request, in seconds."""
        return self.ttl_s / (FIRST_PATIENCE_SHARE if self.crowd and not self.had_seat else PATIENCE_SHARE)

    @property
    def crowd(self) -> int:
        """The number of members, as far as known, of a run so large that they take turns; 0 in a smaller run."""
        size = max(self.seen.live, self.me.min_nodes)
        return size if size > SMALL_RUN else 0

    @property
    def period_s(self) -> float:
        """The time between two renewals, in seconds."""
        return self.ttl_s / 3

    @property
    def last_lease_s(self) -> float:
        """The length of the lease that the store confirmed last, in seconds."""
        return self.lease.length_s or self.ttl_s

    @property
    def lease_s(self) -> float:
        """The last moment at which the lease is known to be valid, or at which no member could have ended it."""
        return max(self.lease.confirmed_s, self.peers.evidence_s)

    @property
    def cut_s(self) -> float:
        """When this node begins to stop its workers if there is no reply until then."""
        return self._share_s(CUT_SHARE)

    @property
    def fence_s(self) -> float:
        """When this node's workers must be dead unless the lease is renewed, with a margin before its end.

        Never, after the verdict of a run with a hosted store: the host leaves while other nodes still have their grace
        periods, and without its store no other round of this run is possible.
        """
        if self.end.verdict_announced and self.me.hosted:
            return NEVER_S
        return self._share_s(FENCE_SHARE)

    def _share_s(self, share: float) -> float:
        """Return when `share` of the lease has passed, or of the time for which grants of other members replace it."""
        leased_s = self.lease.confirmed_s + share * self.last_lease_s
        return max(leased_s, self.peers.evidence_s + share * self.grant_s)

    @property
    def watches_silent(self) -> bool:
        """Whether this member waits for members of the last round that may still train without the store."""
        return self.duty.memory.silent_s is not None or (self.run.liveness is not None and self.run.liveness.silent)

    def run_s(self, now_s: float) -> float:
        """Return the run's age since its first round was formed, in seconds."""
        epoch, began_s = self.run.clock or ("", now_s)
        return max(0.0, now_s - began_s) if epoch == self.run.epoch else 0.0

    @property
    def awaiting(self) -> bool:
        """Whether this node's round was stopped and the node waits for the decision about it."""
        mine, end = self.mine, self.end
        stopped = self.want is Want.STOP and mine is not None and end.stop_token == mine.token
        return stopped and mine is not None and end.announced < mine.token and not end.verdict_announced
