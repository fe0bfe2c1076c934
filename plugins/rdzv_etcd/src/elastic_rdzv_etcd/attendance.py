"""Who is there: how many members, how many of them before one, and who has gone without a word."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import Seat, Topic, own_content
from elastic_rdzv_etcd import messages as say
from elastic_rdzv_etcd.content import Keeper
from elastic_rdzv_etcd.messages import Found, Json, Keys
from elastic_rdzv_etcd.watching import Watcher

JUDGES: Final = 3
"""How many members, from the first seat on, remove whom the server says to be silent; the others hear of it."""
MANY: Final = 32
"""From so many members on, those that are far from leading are not counted as exactly."""
_FIRST_COUNT_S: Final = 10.0
"""How long such a member believes how many were there when it came, while it hears of nobody who goes."""
_COUNT_AGAIN: Final = 2 / 3
"""How long it believes what it has counted, in leases: should all who judge die at once, it must find out by itself."""


class Counts(NamedTuple):
    """How many live members there are, and how many with a lower seat."""

    ahead: int
    live: int


class _Last(NamedTuple):
    """What was counted last, for which seat, when, and of what."""

    seat: tuple[int, str]
    counts: Counts
    revision: int
    """Of the store; 0: not all who were there could be counted."""
    upsets: int
    at_s: float
    supposed: bool


class Attendance:
    """Counts the members by their signs of life, and removes those that are known to be silent.

    The server counts: keys of members, keys on their leases, such keys below one's own. While the numbers differ, a
    member is coming, or silent, or not yet seated, and each is looked at, by those to whom it matters.

    Threading: one thread at a time.
    """

    def __init__(self, keys: Keys, keeper: Keeper, watcher: Watcher, *, may_judge: Callable[[], bool]) -> None:
        """Know nobody yet.

        Args:
            keys: Where the run's content lies.
            keeper: Sends what is to be read and written.
            watcher: Knows whether somebody may have gone.
            may_judge: Returns whether a lease that is over is its member's fault.
        """
        self._keys = keys
        self._keeper = keeper
        self._watcher = watcher
        self._may_judge = may_judge
        self._ahead: int | None = None
        self._last: _Last | None = None

    @property
    def judges(self) -> bool:
        """Whether this member is one of those who remove the silent."""
        return self._ahead is not None and self._ahead < JUDGES

    def suppose(self, number: int, incarnation: str, ahead: int, *, upsets: int) -> None:
        """Take how many were ahead when a member came, as far as is known: all who were there."""
        self._ahead = ahead
        self._note(number, incarnation, Counts(ahead, ahead + 1), upsets=upsets, revision=0, supposed=True)

    def count(self, number: int, incarnation: str, puts: Sequence[Json], wait: WaitBudget) -> Counts | None:
        """Write, and return how many members there are; None: the seat is gone, and nothing was written."""
        keys, upsets = self._keys, self._watcher.upsets
        answer = self._keeper.transact(
            (say.made_at(keys.member(incarnation), number),),
            (*puts, say.count(keys.members), say.count(keys.seats), say.count(keys.seats, end=keys.seat(number))),
            (say.delete(keys.seat(number)),),
            wait,
        )
        if not answer.succeeded:
            return None
        members, seats, ahead = (answer.counted(at) for at in (-3, -2, -1))
        same = members == seats or (ahead > JUDGES and members > MANY)
        counts = Counts(ahead, members) if same else self.look(number, wait)
        self._ahead = counts.ahead
        self._note(number, incarnation, counts, upsets=upsets, revision=answer.revision if members == seats else 0)
        return counts

    def _note(
        self, number: int, incarnation: str, counts: Counts, *, upsets: int, revision: int, supposed: bool = False
    ) -> None:
        self._last = _Last((number, incarnation), counts, revision, upsets, SYSTEM_CLOCK.monotonic_s(), supposed)

    def believed(self, seat: Seat, revision: int, *, ttl_s: float) -> Counts | None:
        """Return what was counted last, if it is so still: nothing was written since.

        Of many, one that is far from leading need not know at once how many have come: to it, nobody must have gone.
        """
        last = self._last
        if last is None or last.seat != (seat.number, seat.incarnation):
            return None
        far = last.counts.ahead > JUDGES and last.counts.live > MANY
        calm = self._watcher.listens and last.upsets == self._watcher.upsets
        patience_s = _FIRST_COUNT_S if last.supposed else _COUNT_AGAIN * ttl_s
        lately = 0 <= SYSTEM_CLOCK.monotonic_s() - last.at_s < patience_s
        return last.counts if revision == last.revision or (far and calm and lately) else None

    def look(self, number: int, wait: WaitBudget) -> Counts:
        """Return how many are there, each looked at; the silent are removed."""
        keys = self._keys
        reads = (say.get_all(keys.members, names_only=True), say.get_all(keys.alive, names_only=True))
        answer = self._keeper.read(*reads, wait=wait)
        found = answer.found(0)
        gone = self.judge(found, answer.found(1), wait)
        live = [one.made for one in found if one.made not in gone]
        return Counts(sum(made < number for made in live), len(live))

    def judge(self, members: Sequence[Found], alive: Sequence[Found], wait: WaitBudget) -> set[int]:
        """Remove the members that are silent, if it is known that they are; return the numbers of their seats."""
        heard = {one.name(self._keys.alive) for one in alive}
        silent = [one for one in members if one.name(self._keys.members) not in heard]
        if not silent or not self._may_judge():
            return set()
        gone = set()
        for one in silent:
            incarnation = self.incarnation(one)
            still = (say.made_at(self._keys.alive_of(incarnation), 0),)
            if self.remove(one.made, incarnation, wait, also=still):
                gone.add(one.made)
        return gone

    def remove(self, number: int, incarnation: str, wait: WaitBudget, *, also: Sequence[Json] = ()) -> bool:
        """Remove a member and tell of it, if `also` holds; return whether this call did."""
        keys = self._keys
        member, told = keys.member(incarnation), (keys.busy, keys.topic(Topic.DEPARTURES))
        same = (say.made_at(member, number), *(say.is_there(key) for key in told))
        content = (say.delete(member), say.delete(keys.alive_of(incarnation)), say.delete(keys.seat(number)))
        touches = (say.touch(key) for key in told)
        return self._keeper.transact((*same, *also), (*content, *touches), (), wait).succeeded

    def incarnation(self, found: Found) -> str:
        """Return whose record a key is."""
        with own_content(found.key):
            return unquote(found.name(self._keys.members).decode())
