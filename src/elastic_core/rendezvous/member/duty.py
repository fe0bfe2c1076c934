"""The records of a leader: what it looks at, what it remembers, and its duties."""

from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.messages import DecisionAsked
from elastic_core.rendezvous.member.documents import ControlDocument, RoundDocument
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.types import Record

LAST_CALL: Final = "last call"
"""The `why` of a judgement that only waits for more nodes than enough."""


class View(Record, frozen=True, kw_only=True):
    """What a decision is made from: documents and members as read, and this host's monotonic clock."""

    now_s: float
    node: str
    nonce: str
    incarnation: str = ""
    """This node's, if it leads; else empty. Only the leader notes for its successor whose workers have ended well."""
    min_nodes: int
    max_nodes: int
    first_call_s: float
    last_call_s: float
    max_changes: int | None
    control: ControlDocument
    round: RoundDocument | None
    members: Sequence[Candidate]
    ttl_s: float = 5.0
    """The lease of the last round."""
    shortest_ttl_s: float = 5.0
    """The lease that somebody asked for: rounds have it unless nodes were lost as their workers started."""
    grace_s: float = 0.0
    run_s: float = 0.0
    """The run's age."""
    still_runs_s: float = float("-inf")
    """When a member without a lease last reported that it runs the last round."""

    @property
    def current(self) -> RoundDocument | None:
        """Return the run's last round; None: it has had none."""
        return self.round if self.round is not None and self.round.epoch == self.control.epoch else None


class LeaderMemory(Record, frozen=True, kw_only=True):
    """The memory of a leader from one look to the next. Times are of its own clock."""

    token: int = -1
    """The token of the round that the rest is about; 0: the run has had none."""
    ending: tuple[int, str] = (-1, "")
    ending_s: float = 0.0
    """The token and the nonce of the last round that has ended, and when its ending was first seen."""
    stopping_s: float | None = None
    """When the order to stop the round was first seen."""
    enough_s: float | None = None
    """Since when enough nodes wait for the next round: the last call begins."""
    back_s: Mapping[str, float] = {}
    """When each node that had left without a word was seen again, by incarnation."""
    steps: tuple[int, float] = (0, 0.0)
    """The serial of the last question about steps, and when it was first seen."""
    done: frozenset[str] = frozenset()
    clean: frozenset[str] = frozenset()
    """The members whose workers have all ended well, and those that left with notice."""
    rested: frozenset[str] = frozenset()
    """The members that were seen to have no workers of the round any more."""
    silent_s: float | None = None
    """Since when no member of the round is alive though some may have workers."""
    losses_from_s: float = float("-inf")
    """After trouble with the store no missing member counts as lost before, and no round is formed: all members that
    were alive have had a lease's time to renew theirs."""


class Publish(Record, frozen=True, kw_only=True):
    """Replace the control or round document that was read with this one; `name` tells the duty from others."""

    name: str
    document: ControlDocument | RoundDocument


Duty = Publish | DecisionAsked


class Judgement(Record, frozen=True, kw_only=True):
    """What is to be done; else why not, and when to look again even if nothing changes (None: need not)."""

    memory: LeaderMemory
    duty: Duty | None = None
    look_s: float | None = None
    why: str = ""


def ended(control: ControlDocument, round_: RoundDocument) -> bool:
    """Return whether a round was declared over."""
    ending = control.ending
    return ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce)
