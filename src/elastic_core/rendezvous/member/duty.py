"""The data of a leader: what it reads, what it remembers, and its duties."""

from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.messages import AnswersGathered, DecisionAsked
from elastic_core.rendezvous.member.documents import ControlDocument, RoundDocument
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.types import Record

LAST_CALL: Final = "last call"
"""The `why` of a judgement that only waits for more nodes than the minimum."""


class View(Record, frozen=True, kw_only=True):
    """The basis of a leader's decision: documents and members as read, and this host's monotonic clock."""

    now_s: float
    node: str
    nonce: str
    incarnation: str = ""
    """This node's incarnation if it leads, else empty: only the leader publishes which nodes are done."""
    min_nodes: int
    max_nodes: int
    first_call_s: float
    last_call_s: float
    max_changes: int | None
    control: ControlDocument
    round: RoundDocument | None
    members: Sequence[Candidate]
    ttl_s: float = 5.0
    """The lease of the last round, in seconds."""
    shortest_ttl_s: float = 5.0
    """The configured lease, in seconds: rounds use it unless nodes were lost while their workers started."""
    grace_s: float = 0.0
    run_s: float = 0.0
    """The run's age."""
    still_runs_s: float = float("-inf")
    """When a member without a lease last reported that it runs the last round."""

    @property
    def current(self) -> RoundDocument | None:
        """The run's last round; `None` if there was none."""
        return self.round if self.round is not None and self.round.epoch == self.control.epoch else None


class LeaderMemory(Record, frozen=True, kw_only=True):
    """The memory of a leader between two judgements. Times are of its own clock."""

    token: int = -1
    """The token of the round to which the other fields belong; 0 if the run has had no round."""
    ending: tuple[int, str] = (-1, "")
    ending_s: float = 0.0
    """The token and the nonce of the last round that ended, and when this node first saw its ending."""
    stopping_s: float | None = None
    """When this node first saw the order to stop the round."""
    enough_s: float | None = None
    """When the number of waiting nodes reached the minimum: the last call begins then."""
    back_s: Mapping[str, float] = {}
    """When each node that had left without notice was seen again, by incarnation."""
    question: tuple[int, float] = (0, 0.0)
    gathered: int = 0
    """The number of the last question, when this node first saw it, and the last number whose answers its hook got."""
    done: frozenset[str] = frozenset()
    clean: frozenset[str] = frozenset()
    """The members with workers that all exited with 0 (`done`), and those that left with notice (`clean`)."""
    rested: frozenset[str] = frozenset()
    """The members that were seen without workers of the round."""
    silent_s: float | None = None
    """Since when no member of the round is alive, although some may have workers."""
    losses_from_s: float = float("-inf")
    """After trouble with the store, no missing member counts as lost before this time, and no round is formed: each
    member that was alive has had the length of a lease to renew its own."""


class Publish(Record, frozen=True, kw_only=True):
    """A duty: replace the control or round document that was read with `document`; `name` identifies the duty."""

    name: str
    document: ControlDocument | RoundDocument


Duty = Publish | DecisionAsked | AnswersGathered


class Judgement(Record, frozen=True, kw_only=True):
    """The leader's duty, or why there is none, and when to judge again without a change (`None` means never)."""

    memory: LeaderMemory
    duty: Duty | None = None
    look_s: float | None = None
    why: str = ""


def ended(control: ControlDocument, round_: RoundDocument) -> bool:
    """Return whether a round has been ended."""
    ending = control.ending
    return ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce)
