"""How the agents of a hosted round learn of each other: through the store that the handler returned.

Every agent writes who it is, the one of rank 0 writes all of them down, and each takes its place from that. Records are
JSON; nothing is pickled. A store that is the same in each round is no trouble: who finds its own words of an earlier
round in the roster waits for the next.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, Failure, Record, WaitBudget, decode_json, encode_json
from elastic_core.api.rendezvous import (
    Decided,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RosterMember,
)

LIMIT_S = 60.0
"""How long agents of a round that torch's handler has formed may be silent: one that died just then never speaks."""
PAUSE_S = 0.02

_ROSTER = "elastic/roster"

_R = TypeVar("_R", bound=Record)


class Books(Record, frozen=True, kw_only=True):
    """What a run has gone through, as far as a node knows: rounds, and why they ended."""

    rounds: int = 0
    restarts: int = 0
    changes: int = 0
    history: tuple[Failure, ...] = ()


class Word(Record, frozen=True, kw_only=True):
    """What one agent says of itself in one round. `mark` is random, made anew each time."""

    mark: str
    member: RosterMember
    books: Books = Books()


class Roster(Record, frozen=True, kw_only=True):
    """What the agent of rank 0 makes of all words. `nonce` is random, and names what belongs to the round."""

    nonce: str
    master_addr: str
    master_port: int
    words: tuple[Word, ...]

    @property
    def books(self) -> Books:
        """Return what the node knows that has been in the run for longest: newcomers know less."""
        return max((word.books for word in self.words), key=lambda books: books.rounds)


class RoundTalk:
    """One round's part of the store.

    Args:
        store: What the handler returned, with methods of torch's stores.
        rank: This node's.
        count: How many nodes there are.

    Threading: one thread. Every call may block for as long as the store does.
    """

    def __init__(self, store: Any, *, rank: int, count: int, clock: Clock = SYSTEM_CLOCK) -> None:  # noqa: ANN401
        """Say nothing yet."""
        self._store = store
        self._rank = rank
        self._count = count
        self._clock = clock
        self._prefix = ""

    def meet(self, word: Word, choose_master: Callable[[], tuple[str, int]], wait: WaitBudget) -> Roster:
        """Return the roster, when all are in it.

        Args:
            word: Who this node is.
            choose_master: Gives address and port for the worker of rank 0; called on that node alone.
            wait: Cancellation.

        Raises:
            RendezvousTimeoutError: not all have spoken in time.
            WaitCancelledError: the agent wants no round any more.
        """
        end_s = self._clock.monotonic_s() + LIMIT_S
        self._store.set(self._key_of(self._rank), encode_json(word))
        take = self._lead(choose_master) if self._rank == 0 else lambda: self._follow(word)
        while (roster := take()) is None:
            if self._clock.monotonic_s() > end_s:
                what = f"a round of {self._count} nodes was formed, and not all of them answered within {LIMIT_S:g} s"
                raise RendezvousTimeoutError(what, hint="look at the other nodes, and at the network between them")
            wait.sleep(PAUSE_S)
        return roster

    def _lead(self, choose_master: Callable[[], tuple[str, int]]) -> Callable[[], Roster | None]:
        address, port = choose_master()
        roster = Roster(nonce=os.urandom(8).hex(), master_addr=address, master_port=port, words=())
        self._prefix = f"elastic/{roster.nonce}"
        keys = [self._key_of(rank) for rank in range(self._count)]

        def take() -> Roster | None:
            nonlocal roster
            if not self._store.check(keys):
                return None
            words = tuple(decode(self._store.get(key), Word) for key in keys)
            if words != roster.words:  # also when somebody's were of an earlier round
                roster = replace(roster, words=words)
                self._store.set(_ROSTER, encode_json(roster))
            return roster if self.count("here") == self._count - 1 else None

        return take

    def _follow(self, word: Word) -> Roster | None:
        if not self._store.check([_ROSTER]):
            return None
        roster = decode(self._store.get(_ROSTER), Roster)
        if len(roster.words) != self._count or roster.words[self._rank].mark != word.mark:
            return None
        self._prefix = f"elastic/{roster.nonce}"
        self.count("here", add=1)
        return roster

    def count(self, what: str, *, add: int = 0) -> int:
        """Return how many nodes have said this, after adding to it."""
        return int(self._store.add(f"{self._prefix}/{what}", add))

    def decide(self, decided: Decided) -> None:
        """Publish a decision; the first one stands."""
        if self.count("decisions", add=1) == 1:
            self._store.set(f"{self._prefix}/decision", encode_json(decided))

    def decision(self) -> Decided | None:
        """Return what stands; None: nothing."""
        key = f"{self._prefix}/decision"
        return decode(self._store.get(key), Decided) if self._store.check([key]) else None

    def _key_of(self, rank: int) -> str:
        return f"elastic/member/{rank}"


def decode(raw: bytes | str, kind: type[_R]) -> _R:
    """Read a record.

    Raises:
        RendezvousStateError: it is none, or of another version.
    """
    try:
        return decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"the rendezvous store has no {kind.__name__} where one was expected: {error}"
        raise RendezvousStateError(
            what, hint="the same elastic-core on every node, and one --rdzv-id for each run"
        ) from error


def unlike_names(members: Sequence[RosterMember], marks: Sequence[str]) -> tuple[RosterMember, ...]:
    """Return the members with a part of their marks behind names that several have: agents of one host, say."""
    names = [member.node_id for member in members]
    return tuple(
        replace(member, node_id=f"{member.node_id}#{mark[:4]}") if names.count(member.node_id) > 1 else member
        for member, mark in zip(members, marks, strict=True)
    )


def store_lost(backend: str, error: Exception, told: str) -> RendezvousConnectionError:
    """Return the error for a store of the handler's that failed."""
    return RendezvousConnectionError(
        f"the store of rendezvous {backend!r} failed: {type(error).__name__}: {told}",
        hint="look at the node or server that hosts it, and at the network to it",
    )
