"""The logs of a run's other nodes, from their agents, at the addresses in the run's store."""

import queue
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from typing import Final

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, ElasticError, Record
from elastic_core.api.commands import StoreChoice
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_ops.control_plane.proved import Refused
from elastic_ops.logs.follow import LogLine
from elastic_ops.logs.serving import BEAT_S
from elastic_ops.logs.wire import HANDSHAKE_S, Wanted, ask, ranks_of, sent, text_of
from elastic_ops.status.store_view import RunInStore
from elastic_ops.store import StoreReader

MOST_FOLLOWED: Final = 64
"""The most nodes that are followed at the same time: each needs a connection and a thread."""
LOOK_EVERY_S: Final = 2.0
"""The interval in which the run's nodes are read from the store."""
_TRIES: Final = 3
"""The number of failed requests to a node before a note is printed: its workers may just have been started."""
_MOST_WAITING: Final = 10_000
"""The limit of received lines that are not shown yet: senders of more must wait."""


class Place(Record, frozen=True, kw_only=True):
    """A node of the run's last round."""

    node_id: str
    incarnation: str
    address: str
    port: int
    first_rank: int
    worker_count: int
    lost: bool

    @property
    def ranks(self) -> range:
        """Its workers' global ranks."""
        return range(self.first_rank, self.first_rank + self.worker_count)

    @property
    def shown(self) -> str:
        """The node for people."""
        return self.node_id if self.address in self.node_id else f"{self.node_id} ({self.address})"


class RunPlaces:
    """The addresses of a run's nodes, from its store. Threading: one thread."""

    def __init__(self, choice: StoreChoice) -> None:
        """Send no request yet.

        Raises:
            ConfigError: such a store can't be read.
        """
        self._choice = choice
        self._reader = StoreReader(choice)
        self.secret = ""
        """What agents of the run know each other by."""
        self.over = False
        """It has its verdict, or (known since the store has gone with the node that kept it) its end."""
        self.places: tuple[Place, ...] = ()
        self.ranks: set[int] = set()
        """All that the run has, or had when it was looked at."""

    def look(self) -> None:
        """Read the store again.

        Raises:
            ConfigError: there is no such run.
            ElasticError: it can't be read.
        """
        try:
            run = RunInStore(self._reader.read(), self._choice, self._reader.where).run
        except RendezvousConnectionError:
            if not (self._reader.hosted_by_member and self.secret):
                raise
            self.over, self.places = True, ()
            return
        self.secret = "" if run.control is None else run.control.secret
        self.over = run.control is not None and run.control.verdict is not None
        live = {incarnation for incarnation, _ in run.members} - run.silent
        places, rank = [], 0
        for entry in () if run.round is None else run.round.roster:
            places.append(
                Place(
                    node_id=entry.node,
                    incarnation=entry.incarnation,
                    address=entry.host,
                    port=entry.agent_port,
                    first_rank=rank,
                    worker_count=entry.nproc,
                    lost=entry.incarnation not in live,
                )
            )
            rank += entry.nproc
        self.places = tuple(places)
        self.ranks.update(range(rank))

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


class NodesLogs:
    """The logs of nodes, requested from their agents.

    Args:
        places: Their addresses, read once.
        ranks: Global ranks. `None` means all.
        here: Ids of nodes that get no request: their logs are read on this host.
        wanted: The requested lines.
    """

    def __init__(
        self,
        places: RunPlaces,
        *,
        ranks: Collection[int] | None,
        here: Collection[str],
        wanted: Wanted,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Send no request yet."""
        self._places, self._ranks, self._here, self._clock = places, ranks, here, clock
        self._wanted = replace(wanted, ranks="" if ranks is None else text_of(ranks))
        self.without_file: set[int] = set()
        """Ranks whose output goes to their agent's console."""
        self.notes: list[str] = []
        """A line for people about each node that could not be asked."""
        self._noted: set[str] = set()
        self._queue: queue.Queue[LogLine] = queue.Queue(_MOST_WAITING)
        self._readers: dict[str, threading.Thread] = {}
        self._heard: set[str] = set()
        """Incarnations of nodes whose lines were shown: of what they have, only what comes is news."""
        self._failed: Counter[str] = Counter()
        self._broken: set[str] = set()
        """Incarnations whose connection broke: what they write until there is another one is not shown."""
        self._stop = threading.Event()
        self._error: ElasticError | None = None

    @property
    def ranks(self) -> set[int]:
        """All ranks that the run has, or had."""
        return self._places.ranks

    def once(self) -> Iterator[LogLine]:
        """Yield the lines of each node, one after the other."""
        for place in self._asked():
            try:
                for line in self._lines(place, self._wanted):
                    if line is not None:
                        yield line
            except (OSError, Refused) as err:
                self._note(place, err)

    def follow(self) -> Iterator[LogLine | None]:
        """Yield new lines, across restarts and from later nodes, until the run's end. `None` means no line for now.

        Raises:
            ElasticError: the store rejects the request, or too many nodes are to be followed.
        """
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        try:
            while True:
                over = not looker.is_alive() and not any(each.is_alive() for each in self._readers.values())
                with suppress(queue.Empty):
                    while True:
                        yield self._queue.get_nowait()
                if self._error is not None:
                    raise self._error
                if over:
                    return
                yield None
        finally:
            self._stop.set()

    def _asked(self) -> list[Place]:
        """Return the nodes with requested ranks."""
        ranks = self._ranks
        others = [place for place in self._places.places if place.node_id not in self._here]
        return [place for place in others if ranks is None or any(rank in ranks for rank in place.ranks)]

    def _lines(self, place: Place, wanted: Wanted) -> Iterator[LogLine | None]:
        """Yield a node's lines. `None` means a sign of life.

        Raises:
            OSError: it can't be reached, or has ended.
            Refused: it is not the intended agent.
        """
        if place.lost:
            raise ConnectionError("the run is over" if self._places.over else "the node is lost")
        connection = socket.create_connection((place.address, place.port), timeout=HANDSHAKE_S)
        with closing(ask(connection, self._places.secret, place.incarnation, wanted, clock=self._clock)) as batches:
            for one in sent(batches, silence_s=4 * BEAT_S):
                with suppress(ValueError):
                    self.without_file |= ranks_of(one.without_file if one.over is None else one.over.without_file)
                if one.over is None:
                    yield one.line

    def _note(self, place: Place, err: Exception) -> None:
        """Keep a note about an unreachable node, once."""
        if place.node_id in self._noted:
            return
        self._noted.add(place.node_id)
        wanted = [rank for rank in place.ranks if self._ranks is None or rank in self._ranks]
        why = getattr(err, "strerror", None) or str(err)
        there = f"rank {text_of(wanted)} is on node {place.shown}"
        self.notes.append(
            f"{there}: {why}. Try: on that host, elastic logs"
            if place.lost
            else f"{there}, which can't be asked at TCP port {place.port} ({why}). Try: elastic run with --redirects 3 "
            "or --tee 3, a port that is open (--agent-port), or, on that host, elastic logs"
        )

    # --- threads of `follow`

    def _look(self) -> None:
        """Follow each node of the run, until the run is over."""
        looks = 0
        try:
            self._begin(looks)
            while not self._places.over and not self._stop.wait(LOOK_EVERY_S):
                looks += 1
                with suppress(RendezvousConnectionError):  # it comes back, or the run ends without it
                    self._places.look()
                    self._begin(looks)
        except ElasticError as err:
            self._error = err

    def _begin(self, looks: int) -> None:
        asked = [place for place in self._asked() if not place.lost]
        if len(asked) > MOST_FOLLOWED:
            raise ElasticError(f"{len(asked)} nodes to follow; expected {MOST_FOLLOWED} at most", hint="--rank RANKS")
        for place in asked:
            reader = self._readers.get(place.incarnation)
            if reader is None or not reader.is_alive():
                reader = threading.Thread(target=self._read, args=(place, looks), daemon=True)
                self._readers[place.incarnation] = reader
                reader.start()

    def _read(self, place: Place, looks: int) -> None:
        wanted = self._wanted
        if place.incarnation in self._heard:
            wanted = replace(wanted, last=0)
        elif looks:  # it, or a rank that is wanted, has come since
            wanted = replace(wanted, last=None)
        try:
            for line in self._lines(place, wanted):
                self._heard.add(place.incarnation)
                if place.incarnation in self._broken:
                    self._broken.discard(place.incarnation)
                    self.notes.append(
                        f"the connection to node {place.shown} broke, and is made anew: its lines from in between are "
                        "not shown. Try: elastic logs --tail 1000"
                    )
                if line is not None:
                    self._queue.put(line)
        except (OSError, Refused) as err:
            self._failed[place.incarnation] += 1
            if place.incarnation in self._heard:
                self._broken.add(place.incarnation)
            if place.incarnation not in self._heard and self._failed[place.incarnation] >= _TRIES:
                self._note(place, err)
