"""Attendance: the number of members, the number before one of them, and the silent members."""

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
"""The number of members, from the first seat on, that remove silent ones; the others learn it from them."""
MANY: Final = 32
"""The number of members above which those far from leading are counted less exactly."""
_FIRST_COUNT_S: Final = 10.0
"""How long such a member uses its first count, while no member leaves."""
_COUNT_AGAIN: Final = 2 / 3
"""How long it uses a later count, in leases: if all judges die at once, it must find out by itself."""


class Counts(NamedTuple):
    """The number of live members, and of those with a lower seat."""

    ahead: int
    live: int


class _Last(NamedTuple):
    """The last count: for which seat, when, and its values."""

    seat: tuple[int, str]
    counts: Counts
    revision: int
    """The store's revision. 0 means that not all members could be counted."""
    upsets: int
    at_s: float
    supposed: bool


class Attendance:
    """Counts the live members, and removes those that are known to be silent.

    The server counts keys of members, keys on their leases, and such keys below one's own. While the numbers differ, a
    member is joining, or silent, or not yet seated, and each is read by the members that need to know.

    Threading: one thread at a time.
    """

    def __init__(self, keys: Keys, keeper: Keeper, watcher: Watcher, *, may_judge: Callable[[], bool]) -> None:
        """Know no member yet.

        Args:
            keys: The run's keys.
            keeper: Sends reads and writes.
            watcher: Knows whether a member may have left.
            may_judge: Returns whether an expired lease means that its member is gone.
        """
        self._keys = keys
        self._keeper = keeper
        self._watcher = watcher
        self._may_judge = may_judge
        self._ahead: int | None = None
        self._last: _Last | None = None

    @property
    def judges(self) -> bool:
        """Whether this member removes silent ones."""
        return self._ahead is not None and self._ahead < JUDGES

    def suppose(self, number: int, incarnation: str, ahead: int, *, upsets: int) -> None:
        """Use the first estimate of the members ahead: all that were there when the member joined."""
        self._ahead = ahead
        self._note(number, incarnation, Counts(ahead, ahead + 1), upsets=upsets, revision=0, supposed=True)

    def count(self, number: int, incarnation: str, puts: Sequence[Json], wait: WaitBudget) -> Counts | None:
        """Write, and return the number of members. `None` if the seat is gone; then nothing was written."""
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
        """Return the last count if it is still valid: nothing was written since.

        In a large run, a member far from leading need not know at once how many have joined; it is enough that none has
        left.
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
        """Return the number of members, each of which is read; silent ones are removed."""
        keys = self._keys
        reads = (say.get_all(keys.members, names_only=True), say.get_all(keys.alive, names_only=True))
        answer = self._keeper.read(*reads, wait=wait)
        found = answer.found(0)
        gone = self.judge(found, answer.found(1), wait)
        live = [one.made for one in found if one.made not in gone]
        return Counts(sum(made < number for made in live), len(live))

    def judge(self, members: Sequence[Found], alive: Sequence[Found], wait: WaitBudget) -> set[int]:
        """Remove silent members, if it is known that they are gone. Return the numbers of their seats."""
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
        """Remove a member and notify watchers, if `also` holds. Return whether this call removed it."""
        keys = self._keys
        member, told = keys.member(incarnation), (keys.busy, keys.topic(Topic.DEPARTURES))
        same = (say.made_at(member, number), *(say.is_there(key) for key in told))
        content = (say.delete(member), say.delete(keys.alive_of(incarnation)), say.delete(keys.seat(number)))
        touches = (say.touch(key) for key in told)
        return self._keeper.transact((*same, *also), (*content, *touches), (), wait).succeeded

    def incarnation(self, found: Found) -> str:
        """Return the incarnation of a record's key."""
        with own_content(found.key):
            return unquote(found.name(self._keys.members).decode())
