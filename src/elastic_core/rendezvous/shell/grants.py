"""Grants, which let the members of a round continue to train while none of them can reach the store. Pure.

A *grant* is one member's promise about its round: "I can't reach the store. For the length of one lease from now I take
part in no later round, even if the store is back." A member with a grant from every other member of its round keeps its
workers, because no other round can begin. Members collect grants by questions and answers. An answer has the ages of
all grants that its sender knows, one byte per rank, so that the grants of 1,000 members reach all in some four steps.
An age counts from when the grant was made. The receiver subtracts it from when it *asked*, so that network delay makes
a grant older, never younger.

`PeerExchange` decides what to ask and what to answer; `shell.peers` sends it.
"""

import random
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, Literal

import msgspec

from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import RosterEntry, RoundDocument
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, State, Want
from elastic_core.types import Record

UNKNOWN: Final = 255
"""The age byte of a grant that is unknown or too old to be useful."""
UNITS: Final = 200
"""The number of age-byte units in a lease."""
FANOUT: Final = 8
"""How many members are asked at once: each step multiplies the known grants by nine."""
CHECK_EVERY_S: Final = 60.0
"""How often members check, while the store is reachable, that all grants would arrive, in seconds."""
MOST_SERIALS: Final = 64


class GrantTable:
    """The time of the last known grant of each member of one round, by this host's clock.

    `size` is the number of members in the round, `rank` that of this member, `lease_s` the round's lease in
    seconds.
    """

    def __init__(self, size: int, rank: int, lease_s: float) -> None:
        self._at_s = [LONG_AGO_S] * size
        self._rank = rank
        self._unit_s = lease_s / UNITS

    def give(self, at_s: float) -> None:
        """Record this member's own grant."""
        self._at_s[self._rank] = at_s

    def ages(self, now_s: float) -> bytes:
        """Return the ages of all grants for other members, each rounded up."""
        unit_s = self._unit_s
        oldest_s = now_s - (UNKNOWN - 1) * unit_s
        return bytes(UNKNOWN if at_s < oldest_s else ceil((now_s - at_s) / unit_s) for at_s in self._at_s)

    def merge(self, ages: bytes, asked_s: float) -> None:
        """Add the grants that another member knows; the question was sent at `asked_s`."""
        # A member that does not run this round, or no longer does, answers without ages.
        if len(ages) != len(self._at_s):
            return
        for rank, age in enumerate(ages):
            if age != UNKNOWN and rank != self._rank:
                # Answers arrive late and in any order: the newest grant counts, and a member knows its own grant best.
                self._at_s[rank] = max(self._at_s[rank], asked_s - age * self._unit_s)

    @property
    def oldest_s(self) -> float:
        """Return when the oldest of the other members' grants was made; `LONG_AGO_S` if one is missing."""
        return min(at_s for rank, at_s in enumerate(self._at_s) if rank != self._rank)

    def missing(self, since_s: float) -> tuple[int, ...]:
        """Return the ranks without a known grant since `since_s`."""
        return tuple(rank for rank, at_s in enumerate(self._at_s) if rank != self._rank and at_s < since_s)


# --- questions and answers

PeerTopic = Literal["grants", "practice", "runs"]
"""`grants`: the sender, or a member that asked it, can't reach the store. `practice`: would grants arrive? `runs`: does
the member have workers of the round?"""


class PeerQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question about a round, from one of its members or a waiting node to a member.

    `troubled`: the sender can't reach the store.
    """

    topic: PeerTopic
    token: int
    nonce: str
    asker: str
    addressee: str
    serial: int
    troubled: bool


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer. `ages` are those of the grants that the sender knows; empty if it is not in that round.

    `reached_age_s` is how long ago the store last replied to the sender. `runs`: it has workers of that round.
    """

    asker: str
    addressee: str
    serial: int
    ages: bytes
    reached_age_s: float
    runs: bool


class PeerView(Record, frozen=True, kw_only=True):
    """The part of a member's state that the exchange needs.

    `mine` is the round that it runs, if the store is not hosted; `vigil` is a round of silent members to wait for.
    """

    incarnation: str
    secret: str
    lease_s: float
    mine: RoundDocument | None = None
    runs: bool = False
    granted_s: float = LONG_AGO_S
    troubled_s: float | None = None
    reached_s: float = LONG_AGO_S
    vigil: RoundDocument | None = None


def peer_view(state: State, reached_s: float) -> PeerView:
    """Return the state about which other members may ask, and which decides the questions of this one."""
    mine, trouble = state.mine, state.trouble
    runs = state.want in (Want.RUN, Want.STOP) and mine is not None
    alone = mine is None or len(mine.roster) == 1 or state.me.hosted
    known = state.run.kept_control or state.seen.control
    return PeerView(
        incarnation=state.me.incarnation,
        secret="" if known is None else known.secret,
        lease_s=state.grant_s,
        mine=mine if runs and not state.me.hosted else None,
        runs=runs and not state.departure.parting,
        granted_s=state.peers.granted_s,
        troubled_s=None if trouble is None or trouble.own or trouble.answers or alone or not runs else trouble.since_s,
        reached_s=reached_s,
        vigil=state.seen.round if state.watches_silent and not state.me.hosted else None,
    )


class PeerExchange:
    """The questions and answers of one member, without I/O and clock: the caller sends and secures the messages.

    Threading: one thread at a time.

    `view` is the member's state, as `peer_view` returns it; `rng` chooses the members to ask.
    """

    def __init__(self, view: PeerView, rng: random.Random) -> None:
        self._view = view
        self._rng = rng
        self._serial = 0
        self._asked: dict[int, tuple[float, PeerTopic, RoundDocument]] = {}
        self._events: list[protocol.Event] = []
        self._grants: GrantTable | None = None
        self._next_s = NEVER_S
        self._alarm_s = LONG_AGO_S
        self._notified_s = LONG_AGO_S
        self._reaching: set[int] = set()
        self._practice: GrantTable | None = None
        self._practice_s = NEVER_S
        self._practised_s = LONG_AGO_S
        self._unreached: tuple[int, ...] = ()

    def update(self, view: PeerView, now_s: float) -> None:
        """Set the member's new state."""
        before, self._view = self._view, view
        mine = view.mine
        if mine is None:
            self._grants = self._practice = None
            self._practice_s = NEVER_S
        elif before.mine is None or _key(before.mine) != _key(mine) or self._grants is None:
            rank = mine.rank_of(view.incarnation) or 0
            self._grants = GrantTable(len(mine.roster), rank, view.lease_s)
            self._alarm_s = LONG_AGO_S
            self._reaching = set()
            self._unreached = ()
            self._practice = None
            self._practice_s = now_s + view.lease_s if len(mine.roster) > 1 else NEVER_S
        if self._grants is not None:
            self._grants.give(view.granted_s)
        # Answers from one outage are no information about the next.
        if view.troubled_s is None:
            self._reaching = set()
        elif before.troubled_s is None:
            self._next_s = now_s
        if self._next_s == NEVER_S and self._topic(now_s) is not None:
            self._next_s = now_s

    @property
    def due_s(self) -> float:
        """When to ask next."""
        return min(self._next_s, self._practice_s)

    def _topic(self, now_s: float) -> PeerTopic | None:
        """Return the topic of the next question; `None` if there is none."""
        view = self._view
        if view.mine is not None and len(view.mine.roster) > 1:
            alarmed = now_s < self._alarm_s + view.lease_s / 2 and view.reached_s < self._alarm_s
            if view.troubled_s is not None or alarmed:
                return "grants"
            if self._practice is not None:
                return "practice"
        return "runs" if view.vigil is not None else None

    def ask(self, now_s: float) -> Sequence[tuple[RosterEntry, PeerQuestion]]:
        """Return the questions to send now, each with its addressee."""
        view = self._view
        if now_s >= self._practice_s:
            self._practice_s = now_s + view.lease_s
            if view.mine is not None and view.troubled_s is None:
                self._begin_practice(now_s)
        self._end_practice(now_s)
        topic = self._topic(now_s)
        round_ = view.vigil if topic == "runs" else view.mine
        if topic is None or round_ is None:
            self._next_s = NEVER_S
            return ()
        if topic == "grants" and view.troubled_s is not None:
            self._summarise(now_s)
        self._next_s = now_s + self._pause_s(topic, now_s)
        self._serial += 1
        self._asked[self._serial] = (now_s, topic, round_)
        if len(self._asked) > MOST_SERIALS:
            del self._asked[next(iter(self._asked))]
        others = [entry for entry in round_.roster if entry.incarnation != view.incarnation]
        chosen = self._rng.sample(others, min(FANOUT, len(others)))
        troubled = view.troubled_s is not None
        return [
            (
                entry,
                PeerQuestion(
                    topic=topic,
                    token=round_.token,
                    nonce=round_.nonce,
                    asker=view.incarnation,
                    addressee=entry.incarnation,
                    serial=self._serial,
                    troubled=troubled,
                ),
            )
            for entry in chosen
        ]

    def _pause_s(self, topic: PeerTopic, now_s: float) -> float:
        """Return the pause before the next question; it is short while a grant is missing."""
        ttl_s = self._view.lease_s
        if topic == "runs":
            return ttl_s / 5
        table = self._grants if topic == "grants" else self._practice
        complete = table is not None and table.oldest_s > now_s - ttl_s / 4
        return ttl_s / 20 if complete else ttl_s / 100

    def answer(self, question: PeerQuestion, now_s: float) -> PeerAnswer | None:
        """Return the answer to a question; `None` if the question is not for this member."""
        view, mine = self._view, self._view.mine
        if question.addressee != view.incarnation:
            return None
        same = mine is not None and (mine.token, mine.nonce) == (question.token, question.nonce)
        ages = b""
        if same and question.topic == "grants" and self._grants is not None:
            ages = self._grants.ages(now_s)
            self._alarm(question, now_s)
        if same and question.topic == "practice":
            ages = self._joins_practice(now_s).ages(now_s)
        return PeerAnswer(
            asker=question.asker,
            addressee=question.addressee,
            serial=question.serial,
            ages=ages,
            reached_age_s=now_s - view.reached_s,
            runs=same and view.runs,
        )

    def _alarm(self, question: PeerQuestion, now_s: float) -> None:
        """Make this member try the store and ask other members, which makes them try the store too."""
        view = self._view
        if now_s >= self._alarm_s + view.lease_s / 2:
            self._alarm_s = now_s
            self._next_s = min(self._next_s, now_s)
        if now_s >= self._notified_s + view.lease_s / 50:
            self._notified_s = now_s
            self._events.append(protocol.PeerAsked(token=question.token, nonce=question.nonce, needs=question.troubled))

    def take(self, answer: PeerAnswer, now_s: float) -> None:
        """Process an answer."""
        asked = self._asked.get(answer.serial)
        if asked is None or answer.asker != self._view.incarnation:
            return
        asked_s, topic, round_ = asked
        rank = round_.rank_of(answer.addressee)
        # If the question is older than a lease, every grant in the answer has ended, whatever its age.
        if rank is None or now_s > asked_s + self._view.lease_s:
            return
        if topic == "runs":
            if answer.runs:
                self._events.append(protocol.StillRuns(token=round_.token, nonce=round_.nonce))
            return
        if self._view.mine is None or _key(self._view.mine) != _key(round_):
            return
        if topic == "practice" and self._practice is not None:
            self._practice.merge(answer.ages, asked_s)
        if topic == "grants" and self._grants is not None:
            self._take_grants(self._grants, answer, rank, asked_s, now_s)

    def _take_grants(self, table: GrantTable, answer: PeerAnswer, rank: int, asked_s: float, now_s: float) -> None:
        complete = table.oldest_s > LONG_AGO_S
        table.merge(answer.ages, asked_s)
        since_s = self._view.troubled_s
        if since_s is not None:
            # If the store has replied to another member since this one lost it, this node is cut off.
            reaches = answer.reached_age_s < now_s - max(since_s, asked_s - self._view.lease_s / 2)
            (self._reaching.add if reaches else self._reaching.discard)(rank)
            if not complete and table.oldest_s > LONG_AGO_S:
                self._summarise(now_s)

    def _summarise(self, now_s: float) -> None:
        table, mine = self._grants, self._view.mine
        assert table is not None
        assert mine is not None
        others = len(mine.roster) - 1
        self._events.append(
            protocol.PeersAnswered(
                token=mine.token,
                nonce=mine.nonce,
                oldest_s=table.oldest_s,
                asked=others,
                granted=others - len(table.missing(now_s - self._view.lease_s)),
                reaching=len(self._reaching),
            )
        )

    def take_events(self) -> Iterable[protocol.Event]:
        """Return the events for the member since the last call."""
        events, self._events = self._events, []
        return events

    # --- practice

    def _begin_practice(self, now_s: float) -> None:
        mine = self._view.mine
        assert mine is not None
        self._practice = GrantTable(len(mine.roster), mine.rank_of(self._view.incarnation) or 0, self._view.lease_s)
        self._practice.give(now_s)
        self._practised_s = now_s
        self._practice_s = NEVER_S
        self._next_s = now_s

    def _joins_practice(self, now_s: float) -> GrantTable:
        if self._practice is None:
            self._begin_practice(now_s)
        assert self._practice is not None
        self._practice.give(now_s)
        return self._practice

    def _end_practice(self, now_s: float) -> None:
        """End a practice when all members have answered or its time is over."""
        table, mine = self._practice, self._view.mine
        if table is None or mine is None:
            return
        table.give(now_s)
        missing = table.missing(self._practised_s - self._view.lease_s / 2)
        if missing and now_s < self._practised_s + self._view.lease_s / 2:
            return
        self._practice = None
        again = bool(missing) and missing != self._unreached
        self._practice_s = now_s + (self._view.lease_s if again else CHECK_EVERY_S)
        if missing and not again:  # after two failures: a member that is just being lost needs no line
            self._events.append(protocol.PeersUnreachable(token=mine.token, nonce=mine.nonce, ranks=missing))
        self._unreached = missing


def _key(round_: RoundDocument) -> tuple[int, str]:
    return round_.token, round_.nonce
