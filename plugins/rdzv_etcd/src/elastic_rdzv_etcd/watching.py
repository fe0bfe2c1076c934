"""How far each topic of a run is: read when something was pushed, believed while nothing was."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from elastic_core.api import SYSTEM_CLOCK, BackendUnavailableError, Revisions, Topic, WaitBudget
from elastic_rdzv_etcd import messages as say
from elastic_rdzv_etcd.coding import b64, prefix_end
from elastic_rdzv_etcd.content import revision_of
from elastic_rdzv_etcd.messages import Answer, Json, Keys

if TYPE_CHECKING:
    from elastic_rdzv_etcd.gateway import Stream

_LOOK_AGAIN_S: Final = 10.0
"""How long what was read last is believed while nothing is pushed."""
_SHORT_S: Final = 1.0
"""A stream that ends sooner is trouble with the server, and not to be opened again and again."""

Transact = Callable[[Sequence[Json], Sequence[Json], Sequence[Json], WaitBudget], Answer]


class Watcher:
    """Listens to a run's topics and to the ends of its leases.

    A stream that is lost, or whose events the server has forgotten, is only opened anew: what counts is what is read
    after it was opened.

    Threading: one thread at a time.
    """

    def __init__(self, keys: Keys, transact: Transact, stream: "Callable[[list[Json], WaitBudget], Stream]") -> None:
        """Open nothing."""
        self._keys = keys
        self._transact = transact
        self._open = stream
        self._stream: Stream | None = None
        self._opened_s = -math.inf
        self._members = False
        self._seen: Revisions | None = None
        self._looked_s = -math.inf
        self._silence = False

    def listen(self, topics: frozenset[Topic], wait: WaitBudget) -> None:
        """Be pushed to from now on; before reading, since what came before it is read.

        Raises:
            BackendUnavailableError: the server can't be reached.
        """
        members = Topic.MEMBERS in topics
        if self._stream is not None and (self._members or not members):
            return
        self.drop()
        keys = self._keys
        creates: list[Json] = [
            {"key": b64(keys.told), "range_end": b64(prefix_end(keys.told))},
            {"key": b64(keys.alive), "range_end": b64(prefix_end(keys.alive)), "filters": ["NOPUT"]},
        ]
        if members:
            creates.append({"key": b64(keys.busy)})
        self._stream = self._open(creates, wait)
        self._opened_s = SYSTEM_CLOCK.monotonic_s()
        self._members = members

    def look(self, wait: WaitBudget, *, believe: bool) -> Revisions:
        """Return how far each topic is; as it was read before, if that may be believed and nothing was pushed since."""
        self.hear(0.0, wait)
        now_s = SYSTEM_CLOCK.monotonic_s()
        if believe and self._seen is not None and 0 <= now_s - self._looked_s < _LOOK_AGAIN_S:
            return self._seen
        answer = self._transact((), (say.get_all(self._keys.told), say.get(self._keys.busy)), (), wait)
        told = {one.key: one for one in answer.found(0)}
        birth = told.get(self._keys.birth)
        departures, round_, control = (
            revision_of(told.get(self._keys.topic(topic))) for topic in (Topic.DEPARTURES, Topic.ROUND, Topic.CONTROL)
        )
        seen = Revisions(
            birth="" if birth is None else birth.value.decode(),
            members=revision_of(answer.one(1)),
            departures=departures,
            round=round_,
            control=control,
        )
        if self._stream is not None:
            self._seen, self._looked_s = seen, now_s
        return seen

    def hear(self, timeout_s: float, wait: WaitBudget) -> None:
        """Block until something was pushed, at most `timeout_s`: what was read is out of date then.

        Raises:
            BackendUnavailableError: the stream ended as soon as it was opened.
        """
        if self._stream is None:
            return
        if self._stream.closed:  # by us, with a wait that was cancelled or a request that was lost: no new trouble
            self.drop()
            return
        try:
            events = self._stream.events(timeout_s, wait)
        except BackendUnavailableError:
            self.drop()  # another member may answer: listening again finds out
            if SYSTEM_CLOCK.monotonic_s() - self._opened_s < _SHORT_S:
                raise
            return
        if events:
            self._seen = None
            self._silence |= any(event["key"].startswith(self._keys.alive) for event in events)

    def take_silence(self) -> bool:
        """Return whether a lease has ended, or a member has left, since this was asked last."""
        silence, self._silence = self._silence, False
        return silence

    def doubt(self) -> None:
        """Read anew when asked next."""
        self._seen = None

    def drop(self) -> None:
        """Close the stream; what was read is out of date then."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._seen = None, None
