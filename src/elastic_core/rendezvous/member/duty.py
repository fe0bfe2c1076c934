"""The records of a leader: what it looks at, remembers, and may find that it owes the run: the values of `leader`."""

from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.rendezvous.member.documents import (
    Agreement,
    ControlDocument,
    Ending,
    RoundDocument,
    Verdict,
)
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.reports import NodeReport, RunSteps
from elastic_core.types import Record

LAST_CALL: Final = "last call"
"""The `why` of a judgement that only waits for more nodes than enough."""


class View(Record, frozen=True, kw_only=True):
    """What a decision is made from: documents and members as read, and this host's monotonic clock."""

    now_s: float
    node: str
    nonce: str
    incarnation: str = ""
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
    heard_s: float = float("-inf")
    """When a member that is silent in the store last said that it runs the last round."""

    @property
    def current(self) -> RoundDocument | None:
        """Return the run's last round; None: it has had none."""
        return self.round if self.round is not None and self.round.epoch == self.control.epoch else None


class Notes(Record, frozen=True, kw_only=True):
    """What a member remembers from one look to the next. Times are of its own clock.

    `hold_until_s`: after trouble with the store nobody is taken for lost, and no round formed, before all who were
    alive can have been heard again. `steps`: the serial of the last question about steps, and when it saw that first.
    `stopping_s`: when it first saw that the round was stopped; `ending_s`: that the
    one before it had ended with `ending`; `silent_s`: that no member of the round was alive, though some may have
    workers. `rested` are the members that were seen to have no workers of it any more.
    """

    token: int = -1
    ending: tuple[int, str] = (-1, "")
    ending_s: float = 0.0
    stopping_s: float | None = None
    enough_s: float | None = None
    back_s: Mapping[str, float] = {}
    steps: tuple[int, float] = (0, 0.0)
    done: frozenset[str] = frozenset()
    clean: frozenset[str] = frozenset()
    rested: frozenset[str] = frozenset()
    silent_s: float | None = None
    hold_until_s: float = float("-inf")


class FormRound(Record, frozen=True, kw_only=True):
    """Write this round."""

    document: RoundDocument


class EndRound(Record, frozen=True, kw_only=True):
    """Publish that the round is over."""

    ending: Ending


class GiveVerdict(Record, frozen=True, kw_only=True):
    """Publish that the run is over."""

    verdict: Verdict


class NoteDone(Record, frozen=True, kw_only=True):
    """Write down whose workers have ended well, for the leader's successor: its own have. Of nobody but the leader."""

    nonce: str
    done: tuple[str, ...]


class AskDecision(Record, frozen=True, kw_only=True):
    """Have the failure policy decide about a stopped round."""

    token: int
    nonce: str
    reports: tuple[NodeReport, ...]


class PublishSteps(Record, frozen=True, kw_only=True):
    """Put together for all what the nodes have answered about their workers' steps."""

    seen: RunSteps


class Agree(Record, frozen=True, kw_only=True):
    """Write down what the nodes have agreed about, now that all have stated their numbers."""

    agreement: Agreement


class NoteSilent(Record, frozen=True, kw_only=True):
    """Write down that no member of the round is alive, and that some may train on: for whoever looks next."""

    nonce: str


Duty = FormRound | EndRound | GiveVerdict | NoteDone | NoteSilent | PublishSteps | Agree | AskDecision


class Judgement(Record, frozen=True, kw_only=True):
    """What is to be done; else why not, and when to look again even if nothing changes (None: need not)."""

    notes: Notes
    duty: Duty | None = None
    look_s: float | None = None
    why: str = ""


def ended(control: ControlDocument, round_: RoundDocument) -> bool:
    """Return whether a round was declared over."""
    ending = control.ending
    return ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce)
