"""The state of `machine`: what a member of a run knows. Times `_s` are seconds of this host's monotonic clock."""

import enum
from collections.abc import Mapping

from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    DrainOrder,
    Ending,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import Notes
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.store import Revisions, Seat
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


class Ended(Record, frozen=True, kw_only=True):
    """A run that has a verdict, and when it ended. Not `known`: the store can't tell, so that is when it was read."""

    epoch: str
    at_s: float
    known: bool


class Door(Record, frozen=True, kw_only=True):
    """What a newcomer has seen of the run in the store, of which it does not know yet whether to join it.

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


class State(Record, frozen=True, kw_only=True):
    """All that a member knows.

    `control` and `round` are the last that were read; `fresh` names what need not be read again (`members`, too).
    `kept` and `kept_round` are the last of this run: copies to offer to a store that has lost them. `clock` has an
    epoch and when that run's clock stood at 0: as early as the rounds that were read say.
    `live` counts the members, `most` how many there were at once since this one began to wait.
    `ended` and `door` are about a run in the store that is not this member's. `door_shown`: people know that it waits
    there. `mine` is the round that this member runs or ran last. `confirmed_s` is when the last lease operation that
    the store confirmed was sent, and `held_s` the length of that lease. `evidence_s` is when the oldest of the grants
    of all others of `mine` was made, `granted_s` when this member made its own last one, and `needed_s` when another
    member last asked for it. `silent_s` is when a silent member last said that it runs.
    `recorded` is what the store has of it, as far as is known; at `repeat_s` it is told again, come what may.
    `stop_token` is the token of the round of which this node has ordered the stop, or was told it, at `stopped_s`;
    `lag_s` is how much later an order stood that this node had given, or another's in its place: all nodes tell how
    long before that moment something happened, and while the store is away each stops by its own order.
    `stands` that order, `order` one that is still to be published, `report` what this node has seen of that round;
    `alone`: the agent was told to decide by itself. `steps_wanted`, `steps_asked` and `steps_seen` are serials of
    questions about this round's steps: what this node wants to know, was asked, and was told; `steps` is its answer.
    `stated` are its numbers in that round, by topic, and `agreed` the topics of which it knows what came of them.
    `asked` is the round about which this node's agent was asked to
    decide, at `asked_s`. `leaving`: the agent was told to stop; `parting`: it has no workers any more, and waits from
    `leave_s` on for the others to know why.
    """

    me: Me
    want: Want = Want.NOTHING
    progress: Progress = Progress.RUNNING
    leaving: bool = False
    parting: bool = False
    mine: RoundDocument | None = None
    seen: int = 0
    announced: int = 0
    verdict_announced: bool = False
    post: Ending | Verdict | None = None
    order: StopOrder | None = None
    stands: StopOrder | None = None
    report: NodeReport | None = None
    stop_token: int = 0
    stopped_s: float = 0.0
    lag_s: float = 0.0
    alone: bool = False
    steps_wanted: int = 0
    steps_asked: int = 0
    steps_seen: int = 0
    steps: NodeSteps | None = None
    stated: Mapping[str, int] = {}
    agreed: frozenset[str] = frozenset()
    asked: tuple[int, str] | None = None
    asked_s: float = LONG_AGO_S
    leave_s: float = 0.0
    farewell: int | None = None
    """The seat that it has given up for one behind all others, in which it says `gone` for a moment."""
    drain: DrainOrder | None = None
    """The order to end that the agent was given, if any."""

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
    held_s: float = 0.0
    evidence_s: float = LONG_AGO_S
    granted_s: float = LONG_AGO_S
    needed_s: float = LONG_AGO_S
    silent_s: float = LONG_AGO_S
    unreachable: frozenset[int] = frozenset()
    """The ranks of `mine` that this member could not reach in two tries."""
    unreachable_of: str = ""
    silence_of: str = ""
    """The nonces of the rounds about which people have been told: of unreachable members, and of silent ones."""
    grace_shown: bool = False
    renew_s: float = LONG_AGO_S
    expiry_s: float = NEVER_S

    epoch: str = ""
    control: ControlDocument | None = None
    control_version: str | None = None
    kept: ControlDocument | None = None
    begin: bool = False
    ended: Ended | None = None
    door: Door | None = None
    door_shown: bool = False
    round: RoundDocument | None = None
    round_version: str | None = None
    kept_round: RoundDocument | None = None
    clock: tuple[str, float] | None = None
    members: tuple[Candidate, ...] = ()
    members_read_s: float = LONG_AGO_S
    fresh: frozenset[str] = frozenset()
    since: Revisions | None = None

    notes: Notes = Notes()
    owed: str = ""
    owed_s: float = 0.0
    obstacle: str = ""
    """Why the run is owed nothing now, as the last look found; of the leader and its deputies only."""
    look_s: float = NEVER_S
    serial: int = 0
    trouble: Trouble | None = None
    outage_shown: bool = False
    unseated_s: float | None = None
    """How long after its lease was last renewed the seat was gone, if that was too early and nobody was told yet."""
    unseated_line_s: float = LONG_AGO_S
    """When the last line said so."""
    began_s: float = 0.0
    waiting_s: float = 0.0
    spare: bool = False
    line_s: float = NEVER_S
    spare_shown: bool = False
    refusals: Mapping[str, str] = {}
    """The nodes that were out when they were last seen since this one began to wait, each with the reason."""
    absence: Absence | None = None
    """Why this node, which waits, wants no place; None: it wants one."""
    left_out: Absence | None = None
    """Why it has none though it wants one, if a policy said so."""
    ending: tuple[int, str] = (-1, "")
    ending_s: float = 0.0
    """When this node, waiting, first saw that the round before had ended with `ending`."""

    @property
    def ttl_s(self) -> float:
        """Return how long a lease lasts: the last round says so for all its members, and for those that wait."""
        return (self.kept_round.lease_s if self.kept_round is not None else 0.0) or self.me.ttl_s

    @property
    def grant_s(self) -> float:
        """Return how long a grant lasts that is about this member's round."""
        return (self.mine.lease_s if self.mine is not None else 0.0) or self.me.ttl_s

    @property
    def had_seat(self) -> bool:
        """Return whether the store has ever taken a write of this member: its first one asks for a seat."""
        return self.confirmed_s > LONG_AGO_S

    @property
    def period_s(self) -> float:
        """Return the time from one renewal to the next."""
        return self.ttl_s / 3

    @property
    def last_lease_s(self) -> float:
        """Return the length of the lease that the store confirmed last."""
        return self.held_s or self.ttl_s

    @property
    def lease_s(self) -> float:
        """Return the last moment of which it is known that the lease held, or that nobody could have ended it."""
        return max(self.confirmed_s, self.evidence_s)

    @property
    def cut_s(self) -> float:
        """Return when this node begins to stop its workers if it hears nothing."""
        return max(self.confirmed_s + CUT_SHARE * self.last_lease_s, self.evidence_s + CUT_SHARE * self.grant_s)

    @property
    def fence_s(self) -> float:
        """Return by when this node's workers must be dead unless there is a newer word: with a margin before the end.

        Never, once the verdict is known of a run whose store goes with the node that hosts it: that node is not there
        for as long as the others' grace periods, and with its store every other round of this run is gone, too.
        """
        if self.verdict_announced and self.me.hosted:
            return NEVER_S
        return max(self.confirmed_s + FENCE_SHARE * self.last_lease_s, self.evidence_s + FENCE_SHARE * self.grant_s)

    @property
    def watches_silent(self) -> bool:
        """Return whether this member waits for members of the last round that may train on without the store."""
        return self.notes.silent_s is not None or (self.door is not None and self.door.silent)

    def run_s(self, now_s: float) -> float:
        """Return the run's age: since its first round was formed."""
        return max(0.0, now_s - self.clock[1]) if self.clock is not None and self.clock[0] == self.epoch else 0.0

    @property
    def awaiting(self) -> bool:
        """Return whether the round of this node was stopped, and it waits for what is decided about it."""
        mine = self.mine
        stopped = self.want is Want.STOP and mine is not None and self.stop_token == mine.token
        return stopped and mine is not None and self.announced < mine.token and not self.verdict_announced
