"""The state of `machine`: what a member of a run knows. Times `_s` are seconds of this host's monotonic clock."""

import enum
from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    DrainOrder,
    Ending,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import LeaderMemory
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat
from elastic_core.reports import Absence, NodeReport, NodeSteps
from elastic_core.types import Record, RendezvousSettings

NEVER_S = float("inf")
LONG_AGO_S = float("-inf")
CUT_SHARE = 0.75
"""How much of a lease has passed since its last word when a member that hears nothing begins to stop."""
FENCE_SHARE = 0.88
"""How much of it when the last of its workers must be dead: with a margin before the lease ends."""
PATIENCE_SHARE = 8
"""A request to the store is given up after a lease divided by this: so late are others asked, who then try it, too."""


class Me(RendezvousSettings, frozen=True, kw_only=True):
    """What does not change about this member: its settings, and what it is.

    `where` names the store in texts. `hosted`: the store is hosted by a member of the run, so
    that its loss is final. `fresh_epoch` and `secret` are random, for the case that this member begins the run.
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
        """Return how long nobody of a run that this member begins must have been alive for it to be over."""
        return self.ttl_s + self.last_call_s


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


def question_about(token: int, nonce: str) -> str:
    """Return the name of the one question that there is about a stopped round."""
    return f"{token} {nonce}"


class EndedRun(Record, frozen=True, kw_only=True):
    """A run that has a verdict, and when it ended. Not `known`: the store can't tell, so that is when it was read."""

    epoch: str
    at_s: float
    known: bool


class RunLiveness(Record, frozen=True, kw_only=True):
    """What a newcomer has seen of the members of the run in the store, before it knows whether to join it.

    `alive`: at `looked_s` somebody of it was. `empty_s`: since when nobody is, as far as this member could see.
    """

    epoch: str
    alive: bool
    looked_s: float
    empty_s: float
    silent: bool = False
    """Whether members of its round may have workers still: their leases have ended, and nobody has given them back."""


class Trouble(Record, frozen=True, kw_only=True):
    """The store can't be reached. Of the `asked` other members so many have `granted`, and so many reach it.

    `no_write`: the operation that failed last was a write, so only a write ends this trouble; `answers`: the store has
    answered since, as one does that is full: it renews leases, too.
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
    """The run that this member is of, and what it knows of one in the store that is not its own."""

    epoch: str = ""
    """The epoch of the run; empty: this member is of none yet."""
    kept_control: ControlDocument | None = None
    kept_round: RoundDocument | None = None
    """The last control and round documents of the run that were read: copies for a store that has lost them."""
    seen_token: int = 0
    """The highest token of a round that this member has read, in any run."""
    clock: tuple[str, float] | None = None
    """The epoch of a run, and when that run's age was 0: the earliest time that its rounds give."""
    begin: bool = False
    """Whether this member replaces the run in the store with a new one."""
    ended: EndedRun | None = None
    liveness: RunLiveness | None = None

    def none(self) -> "OwnRun":
        """Return this for a member that is of no run any more; the tokens that it has seen stay."""
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
    """How many members have a lease."""
    fresh: frozenset[str] = frozenset()
    """The keys that need not be read again, as they have not changed since; `MEMBERS` for the members."""
    since: Revisions | None = None
    """The revisions up to which the store has reported changes; None: they must be read before anything else."""


class StoreConnection(Record, frozen=True, kw_only=True):
    """The connection to the store, and the addresses at which others reach this node."""

    connected: bool = False
    ever_connected: bool = False
    address: str = ""
    alternative: str = ""
    """The address for members on other hosts, where `address` is a loopback one."""
    agent_port: int = 0
    master_port: int = 0
    """A port that the agent has reserved for the worker of rank 0."""


class OwnLease(Record, frozen=True, kw_only=True):
    """This member's seat in the store, the lease of it, and the record in it."""

    seat: Seat | None = None
    ahead: int = 0
    """How many members have a lower seat; 0: this member leads."""
    recorded: bytes = b""
    """The record in the seat, as far as is known; empty: it must be written again."""
    repeat_s: float = NEVER_S
    """When the record is written again even if it has not changed."""
    confirmed_s: float = LONG_AGO_S
    """When the last lease operation was sent that the store has confirmed."""
    length_s: float = 0.0
    """The length of the lease that it confirmed; 0: none yet."""
    renew_s: float = LONG_AGO_S
    """When the lease is renewed next."""
    expiry_s: float = NEVER_S
    """When the lease of another member ends next."""
    unseated_s: float | None = None
    """The age of the lease when the seat was found gone too early; None: it was not, or a line was printed about it."""


class PeerGrants(Record, frozen=True, kw_only=True):
    """The exchange with other members of the round by datagrams, for while the store is away."""

    evidence_s: float = LONG_AGO_S
    """When the oldest of the last grants of all other members was made."""
    granted_s: float = LONG_AGO_S
    """When this member made its last grant."""
    needed_s: float = LONG_AGO_S
    """When another member last requested a grant of this one."""
    silent_s: float = LONG_AGO_S
    """When a member without a lease last reported that it has workers of the last round."""
    unreachable: frozenset[int] = frozenset()
    """The ranks of `mine` that this member could not reach in two tries."""


class RoundEnd(Record, frozen=True, kw_only=True):
    """How this member's round ends: the order to stop it, this node's report about it, and what is decided."""

    order: StopOrder | None = None
    """The order to stop that this node has yet to publish."""
    order_in_force: StopOrder | None = None
    """The order by which this node has stopped its workers: its own, or another node's in its place."""
    report: NodeReport | None = None
    """The failures and the state of this node's workers in the round that was stopped."""
    stop_token: int = 0
    """The token of the round for which this node has given or received an order to stop."""
    stopped_s: float = 0.0
    """When that was."""
    order_delay_s: float = 0.0
    """By how much the published order is later than this node's own: all nodes report ages as of the published one."""
    alone: bool = False
    """Whether the agent was notified to decide for this node alone."""
    post: Ending | Verdict | None = None
    """The decision of this node's agent that is yet to be published."""
    announced: int = 0
    """The token of the last round of which the agent was notified that it has ended."""
    verdict_announced: bool = False
    """Whether the agent was notified of the run's verdict."""


class RoundWork(Record, frozen=True, kw_only=True):
    """The work of this node in its round, and what the nodes of the round exchange about it."""

    progress: Progress = Progress.RUNNING
    steps_wanted: int = 0
    steps_asked: int = 0
    steps_seen: int = 0
    """The serial of the question about steps that this node wants to publish, has read, and has the result of."""
    steps: NodeSteps | None = None
    """This node's answer to the last question."""
    stated: Mapping[str, int] = {}
    """The numbers that this node has stated, by topic."""
    agreed: frozenset[str] = frozenset()
    """The topics of which the agent was notified what the nodes have agreed."""


class Departure(Record, frozen=True, kw_only=True):
    """The end of this member: orders to leave, and how far it is with leaving."""

    leaving: bool = False
    """Whether the agent was ordered to stop."""
    drain: DrainOrder | None = None
    """The last drain order in the store of which the agent was notified."""
    parting: bool = False
    """Whether this node has no workers any more, and stays until other members have seen why."""
    leave_s: float = 0.0
    """Since when it stays for that; without `parting`: when it began to leave."""
    farewell: int | None = None
    """The number of the seat that it has given up for the last one, in which its record is `gone` for a moment."""


class LeaderDuty(Record, frozen=True, kw_only=True):
    """The work of a leader, of which its deputies keep track too."""

    memory: LeaderMemory = LeaderMemory()
    outstanding: str = ""
    """The name of the duty that is to be done; empty: none."""
    outstanding_s: float = 0.0
    """Since when."""
    obstacle: str = ""
    """Why there is no duty now, as the last look found."""
    look_s: float = NEVER_S
    """When to look again even if nothing changes."""
    serial: int = 0
    """How many duties this member has tried to do."""
    asked: tuple[int, str] | None = None
    """The token and the nonce of the round about which this node's agent was asked for a decision."""
    asked_s: float = LONG_AGO_S


class JoinWait(Record, frozen=True, kw_only=True):
    """The wait of this node for a place in a round."""

    began_s: float = 0.0
    """When the agent asked for a place."""
    since_s: float = 0.0
    """From when the join timeout counts."""
    line_s: float = NEVER_S
    """When the next line about the wait is due."""
    spare: bool = False
    """Whether a round runs without this node."""
    most: int = 0
    """The most members with a lease at one time since the wait began."""
    refusals: Mapping[str, str] = {}
    """The nodes that were `out` when last seen since the wait began, each with the reason."""
    absence: Absence | None = None
    """Why this node wants no place though it waits; None: it wants one."""
    left_out: Absence | None = None
    """Why a policy gives this node no place; None: no policy does."""
    ending: tuple[int, str] = (-1, "")
    """The token and the nonce of the round before, of which this node has seen the ending."""
    ending_s: float = 0.0
    """When this node first saw that ending."""


class PrintedLines(Record, frozen=True, kw_only=True):
    """The lines that were printed for people, so that each is printed once."""

    outage: bool = False
    grace: bool = False
    newcomer: bool = False
    """That this newcomer does not know yet whether it joins the run in the store."""
    spare: bool = False
    unreachable_of: str = ""
    silence_of: str = ""
    """The nonces of the rounds with a line about unreachable members, and about silent ones."""
    lost_seat_s: float = LONG_AGO_S
    """When the last line about a lost seat was printed."""


class State(Record, frozen=True, kw_only=True):
    """All that a member knows."""

    me: Me
    want: Want = Want.NOTHING
    mine: RoundDocument | None = None
    """The round that this member runs, or ran last."""
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

    @property
    def own_control(self) -> ControlDocument | None:
        """Return the control document of this member's run as it is in the store; None: there is none, or not known."""
        control = self.seen.control
        fresh = CONTROL_KEY in self.seen.fresh and control is not None
        return control if fresh and control is not None and control.epoch == self.run.epoch else None

    @property
    def own_round(self) -> RoundDocument | None:
        """Return the last round of this member's run as it is in the store; None: there is none, or not known."""
        round_ = self.seen.round
        fresh = ROUND_KEY in self.seen.fresh and round_ is not None
        return round_ if fresh and round_ is not None and round_.epoch == self.run.epoch else None

    @property
    def ttl_s(self) -> float:
        """Return how long a lease lasts: the last round says so for all its members, and for those that wait."""
        return (self.run.kept_round.lease_s if self.run.kept_round is not None else 0.0) or self.me.ttl_s

    @property
    def grant_s(self) -> float:
        """Return how long a grant lasts that is about this member's round."""
        return (self.mine.lease_s if self.mine is not None else 0.0) or self.me.ttl_s

    @property
    def had_seat(self) -> bool:
        """Return whether the store has ever taken a write of this member: its first one asks for a seat."""
        return self.lease.confirmed_s > LONG_AGO_S

    @property
    def period_s(self) -> float:
        """Return the time from one renewal to the next."""
        return self.ttl_s / 3

    @property
    def last_lease_s(self) -> float:
        """Return the length of the lease that the store confirmed last."""
        return self.lease.length_s or self.ttl_s

    @property
    def lease_s(self) -> float:
        """Return the last moment of which it is known that the lease held, or that nobody could have ended it."""
        return max(self.lease.confirmed_s, self.peers.evidence_s)

    @property
    def cut_s(self) -> float:
        """Return when this node begins to stop its workers if it hears nothing."""
        return self._share_s(CUT_SHARE)

    @property
    def fence_s(self) -> float:
        """Return by when this node's workers must be dead unless there is a newer word: with a margin before the end.

        Never, once the verdict is known of a run whose store goes with the node that hosts it: that node is not there
        for as long as the others' grace periods, and with its store every other round of this run is gone, too.
        """
        if self.end.verdict_announced and self.me.hosted:
            return NEVER_S
        return self._share_s(FENCE_SHARE)

    def _share_s(self, share: float) -> float:
        """Return when so much of the lease has passed, or of the time for which the others' grants replace it."""
        leased_s = self.lease.confirmed_s + share * self.last_lease_s
        return max(leased_s, self.peers.evidence_s + share * self.grant_s)

    @property
    def watches_silent(self) -> bool:
        """Return whether this member waits for members of the last round that may train on without the store."""
        return self.duty.memory.silent_s is not None or (self.run.liveness is not None and self.run.liveness.silent)

    def run_s(self, now_s: float) -> float:
        """Return the run's age: since its first round was formed."""
        epoch, began_s = self.run.clock or ("", now_s)
        return max(0.0, now_s - began_s) if epoch == self.run.epoch else 0.0

    @property
    def awaiting(self) -> bool:
        """Return whether the round of this node was stopped, and it waits for what is decided about it."""
        mine, end = self.mine, self.end
        stopped = self.want is Want.STOP and mine is not None and end.stop_token == mine.token
        return stopped and mine is not None and end.announced < mine.token and not end.verdict_announced
