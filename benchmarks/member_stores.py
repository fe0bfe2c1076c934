"""The stores of simulated members: the product's, with a watch that can be left where it would block."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from elastic_core.rendezvous.store import CoordinationStore, Revisions, Topic, Watched, compare
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousSettings


class Watching(ABC):
    """A store, and its `watch` in two halves."""

    store: CoordinationStore

    @abstractmethod
    def look(self, since: Revisions, topics: Collection[Topic], wait: WaitBudget) -> Watched:
        """Do as `watch` up to where it blocks, whatever there is to see."""

    @abstractmethod
    def fd(self) -> int:
        """Return what becomes readable when it is time to look again."""

    @abstractmethod
    def heard(self, wait: WaitBudget) -> None:
        """Take what has come there."""


class OnRedis(Watching):
    """Over Redis: two connections for each member."""

    def __init__(self, settings: RendezvousSettings) -> None:
        import elastic_rdzv_redis.session  # noqa: F401 -- imported now: what is measured is not Python's start
        from elastic_rdzv_redis.store import RedisStore

        self.store = self._redis = RedisStore(settings)

    def look(self, since: Revisions, topics: Collection[Topic], wait: WaitBudget) -> Watched:
        """Subscribe, then read."""
        session, keys = self._redis._session, self._redis._keys
        session.subscribe(frozenset(f"{keys[0]}/{topic}" for topic in topics), wait)
        now, _ = self._redis._look(wait)
        return compare(since, now, topics)

    def fd(self) -> int:
        """Return the socket of the subscriptions."""
        pushes = self._redis._session._pushes
        assert pushes is not None
        return pushes.sock.fileno()

    def heard(self, wait: WaitBudget) -> None:
        """Take the pushes."""
        self._redis._session.pushed(0.0, wait, polled=False)


class OnEtcd(Watching):
    """Over etcd's v3 API: two connections for each member, one for requests, one for the watch."""

    def __init__(self, settings: RendezvousSettings) -> None:
        import elastic_rdzv_etcd.gateway  # noqa: F401 -- as above
        from elastic_rdzv_etcd.store import EtcdStore

        self.store = self._etcd = EtcdStore(settings)

    def look(self, since: Revisions, topics: Collection[Topic], wait: WaitBudget) -> Watched:
        """Listen, then read, until nothing more has come."""
        watcher, attendance = self._etcd._watcher, self._etcd._attendance
        while True:
            watcher.listen(frozenset(topics), wait, judges=attendance.judges)
            watcher.hear(0.0, wait)
            seen = compare(since, watcher.look(wait, believe=True), topics)
            if seen.changed or seen.reset or not (watcher.take_silence() or self._buffered()):
                watcher.offer(seen.revisions)
                return seen

    def _buffered(self) -> bool:
        stream = self._etcd._watcher._stream
        return stream is not None and stream._line.wire.buffered()

    def fd(self) -> int:
        """Return the socket of the stream."""
        stream = self._etcd._watcher._stream
        assert stream is not None
        return stream._line.wire.fileno()

    def heard(self, wait: WaitBudget) -> None:
        """Take the events."""
        self._etcd._watcher.hear(0.0, wait)


STORES: dict[str, type[OnRedis] | type[OnEtcd]] = {"redis": OnRedis, "etcd": OnEtcd}
