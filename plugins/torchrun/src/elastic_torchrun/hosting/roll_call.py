"""Exchange of information between the agents of a hosted round, through the store that the handler returned.

Every agent writes its own record. The agent with rank 0 combines them into a roster, from which each agent reads its
place. Records are JSON; nothing is unpickled. The store may be the same in each round: an agent that finds its records
of an earlier round in the roster waits for the next one.
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
"""How long agents of a round formed by torch's handler may be silent. An agent that died just then never responds."""
PAUSE_S = 0.02

_ROSTER = "elastic/roster"

_R = TypeVar("_R", bound=Record)


class Books(Record, frozen=True, kw_only=True):
    """A run's history as far as a node knows it: rounds, and why they ended."""

    rounds: int = 0
    restarts: int = 0
    changes: int = 0
    history: tuple[Failure, ...] = ()


class Word(Record, frozen=True, kw_only=True):
    """One agent's record in one round. `mark` is random and new each time."""

    mark: str
    member: RosterMember
    books: Books = Books()


class Roster(Record, frozen=True, kw_only=True):
    """The records of all agents, combined by the agent with rank 0. `nonce` is random, and identifies the round."""

    nonce: str
    master_addr: str
    master_port: int
    words: tuple[Word, ...]

    @property
    def books(self) -> Books:
        """Return the history of the node that has been in the run for longest; newer nodes know less."""
        return max((word.books for word in self.words), key=lambda books: books.rounds)


class RoundTalk:
    """One round's part of the store.

    Args:
        store: The store that the handler returned, with methods of torch's stores.
        rank: This node's.
        count: The number of nodes.

    Threading: one thread. Every call may block as long as the store does.
    """

    def __init__(self, store: Any, *, rank: int, count: int, clock: Clock = SYSTEM_CLOCK) -> None:  # noqa: ANN401
        """Write nothing yet."""
        self._store = store
        self._rank = rank
        self._count = count
        self._clock = clock
        self._prefix = ""

    def meet(self, word: Word, choose_master: Callable[[], tuple[str, int]], wait: WaitBudget) -> Roster:
        """Return the roster when it is complete.

        Args:
            word: This node's record.
            choose_master: Returns address and port for the worker of rank 0; called on that node alone.
            wait: Cancellation.

        Raises:
            RendezvousTimeoutError: not all agents responded in time.
            WaitCancelledError: the agent no longer needs a round.
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
            if words != roster.words:  # also if one agent's were of an earlier round
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
        """Add to a counter. Return how many nodes have added to it."""
        return int(self._store.add(f"{self._prefix}/{what}", add))

    def decide(self, decided: Decided) -> None:
        """Publish a decision. Only the first one is valid."""
        if self.count("decisions", add=1) == 1:
            self._store.set(f"{self._prefix}/decision", encode_json(decided))

    def decision(self) -> Decided | None:
        """Return the valid decision, or `None`."""
        key = f"{self._prefix}/decision"
        return decode(self._store.get(key), Decided) if self._store.check([key]) else None

    def _key_of(self, rank: int) -> str:
        return f"elastic/member/{rank}"


def decode(raw: bytes | str, kind: type[_R]) -> _R:
    """Read a record.

    Raises:
        RendezvousStateError: it is malformed, or of another version.
    """
    try:
        return decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"the rendezvous store has no {kind.__name__} where one was expected: {error}"
        raise RendezvousStateError(
            what, hint="the same elastic-core on every node, and one --rdzv-id for each run"
        ) from error


def unlike_names(members: Sequence[RosterMember], marks: Sequence[str]) -> tuple[RosterMember, ...]:
    """Return the members. If several have the same name, as agents of one host do, a part of the mark is added."""
    names = [member.node_id for member in members]
    return tuple(
        replace(member, node_id=f"{member.node_id}#{mark[:4]}") if names.count(member.node_id) > 1 else member
        for member, mark in zip(members, marks, strict=True)
    )


def store_lost(backend: str, error: Exception, told: str) -> RendezvousConnectionError:
    """Return the error for a failed store of the handler's."""
    return RendezvousConnectionError(
        f"the store of rendezvous {backend!r} failed: {type(error).__name__}: {told}",
        hint="look at the node or server that hosts it, and at the network to it",
    )
