"""A rendezvous handler that was written for torch, used by elastic-core's agent.

Torch is named in strings so that the type checker needs no torch.
"""

import importlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    Clock,
    ConfigError,
    ElasticError,
    Failure,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    Stop,
    WaitBudget,
)
from elastic_core.api.rendezvous import (
    Capability,
    Decided,
    NodesWaiting,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RosterMember,
    RoundChange,
)
from elastic_core.embedding import remembered
from elastic_torchrun.hosting.roll_call import Books, RoundTalk, Word, store_lost, unlike_names
from elastic_torchrun.torch_errors import one_line

TORCH_TIMEOUT_S = 900
"""The value that torch's launcher adds to the options of every handler if the user sets no `timeout`."""
SHARED_STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
LAST_WORD_S = 1.0
"""How long a node that ends waits until the others have read how the run ended, as it may host their store."""
BARRIER_VARIABLE = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
BARRIER_S = 300.0
"""How long a node with finished workers waits for the other nodes' workers by default, as torch's agent does."""
AWAY_S = 5.0
"""How long it waits for an unreachable store, whose host may have ended with all messages."""

_KINDS: tuple[tuple[str, type[RendezvousError]], ...] = (
    ("RendezvousGracefulExitError", RendezvousGracefulExitError),
    ("RendezvousClosedError", RendezvousClosedError),
    ("RendezvousTimeoutError", RendezvousTimeoutError),
    ("RendezvousConnectionError", RendezvousConnectionError),
    ("RendezvousStateError", RendezvousStateError),
    ("RendezvousError", RendezvousError),
)
"""Torch's errors, and the corresponding ones of elastic-core."""


class HostedRendezvous(RendezvousHandler):
    """Gets the round's nodes from torch's handler, and exchanges everything else through the store that it returns.

    That includes the ranks of workers, the address at which they meet, one decision for the whole run about a failure,
    and the end of the run. New nodes are found by polling, as torch's agent does.

    Threading: as any handler. Messages from the agent are kept until the rendezvous thread publishes them.
    """

    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.CONTROL})

    def __init__(
        self,
        settings: RendezvousSettings,
        *,
        conf: Mapping[str, str],
        create: Callable[[Any], Any],
        label: str,
        barrier_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make no handler before the first round, because making one may connect, and block.

        Args:
            settings: All settings except the options.
            conf: The options as typed.
            create: Torch's term for a function from parameters to a handler.
            label: The distribution that provides it, for messages.
            barrier_s: How long a node with finished workers waits for the other nodes' workers. `None` means
                `TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT`, else 300 s.
            clock: Clock for the wait at the end.
        """
        super().__init__(settings)
        self._conf = dict(conf)
        self._create = create
        self._label = label
        self._barrier_s = barrier_from(os.environ) if barrier_s is None else barrier_s
        self._clock = clock
        self._rendezvous: Any = importlib.import_module("torch.distributed.elastic.rendezvous")
        self._handler: Any = None
        self._talk: RoundTalk | None = None
        self._count = 0
        self._books = Books()
        self._lock = threading.Lock()
        self._post: Decided | None = None
        self._done = False
        self._done_told_s: float | None = None
        self._away_s: float | None = None
        self._heard: Decided | None = None
        self._regroup = False
        self._stuck = False

    @property
    def use_agent_store(self) -> bool:
        """Whether workers share the handler's store; true as long as there is no handler."""
        return True if self._handler is None else bool(self._handler.use_agent_store)

    def bare(self) -> Any:  # noqa: ANN401  # a handler of torch's
        """Return torch's handler itself, for a script without elastic-core's agent."""
        return self._made()

    # --- a round

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until torch's handler has formed a round, and all its agents have responded."""
        self.wait.check()
        self.wait.on_cancel(self._say_left_behind)
        try:
            return self._next()
        except ElasticError:
            raise
        except self._rendezvous.RendezvousError as error:
            raise self._in_our_words(error) from error
        finally:
            self._stuck = False

    def _next(self) -> RendezvousInfo:
        self._close_books()
        self._stuck = True
        if self._handler is None:
            self._handler = self._made()
        info = self._handler.next_rendezvous()
        self._stuck = False
        self.wait.check()
        store, rank, count, bootstrap = self._place(info)
        talk = RoundTalk(store, rank=rank, count=count)
        try:
            return self._meet(talk, store, rank, bootstrap)
        except RuntimeError as error:  # torch's stores raise kinds of it
            raise store_lost(self.settings.backend, error, one_line(error)) from error

    def _close_books(self) -> None:
        """Forget the last round except for its part of the run's history."""
        self._publish_quietly()
        if self._heard is None and self._regroup:
            self._books = replace(self._books, changes=self._books.changes + 1)
        self._talk = self._heard = self._post = self._done_told_s = self._away_s = None
        self._done = self._regroup = False

    def _made(self) -> Any:  # noqa: ANN401  # a handler of torch's
        settings = self.settings
        # torch keeps the store and the address of the first round for all others, so that a job ends when a node joins;
        # set the variable to 0 to get that behaviour.
        os.environ.setdefault(SHARED_STORE_VARIABLE, "1")
        parameters = self._rendezvous.RendezvousParameters(
            backend=settings.backend,
            endpoint=settings.endpoint,
            run_id=settings.run_id,
            min_nodes=settings.min_nodes,
            max_nodes=settings.max_nodes,
            local_addr=settings.local_addr,
            **({"timeout": TORCH_TIMEOUT_S} | self._conf),
        )
        handler = self._create(parameters)
        name = handler.get_backend()
        if name != settings.backend:
            what = f"rendezvous {settings.backend!r} ({self._label}) calls itself {name!r}"
            raise RendezvousStateError(what, hint="report it to the backend's authors")
        return handler

    def _place(self, info: Any) -> tuple[Any, int, int, Any]:  # noqa: ANN401  # torch's RendezvousInfo, or a tuple
        """Return the store, rank, number of nodes, and where workers meet (`None` if the handler has no address)."""
        if isinstance(info, tuple) and len(info) == 3:  # what handlers returned before there was a class for it
            return (*info, None)
        return info.store, info.rank, info.world_size, getattr(info, "bootstrap_store_info", None)

    def _meet(self, talk: RoundTalk, store: object, rank: int, bootstrap: Any) -> RendezvousInfo:  # noqa: ANN401
        settings = self.settings
        address = settings.local_addr or socket.getfqdn()

        def master() -> tuple[str, int]:
            if settings.master_addr and settings.master_port:  # the user's word, in a WorkerSpec
                return settings.master_addr, settings.master_port
            if bootstrap is None:
                return settings.master_addr or address, self.services.reserve_port()
            return settings.master_addr or bootstrap.master_addr, settings.master_port or int(bootstrap.master_port)

        me = RosterMember(
            node_id=settings.node_id or socket.gethostname(),
            local_world_size=settings.local_world_size,
            role=settings.role,
            address=address,
        )
        roster = talk.meet(Word(mark=os.urandom(8).hex(), member=me, books=self._books), master, self.wait)
        words, books = roster.words, roster.books
        self._talk, self._count = talk, len(words)
        self._books = replace(books, rounds=books.rounds + 1)
        return RendezvousInfo(
            rank=rank,
            world_size=len(words),
            store=store,
            nonce=roster.nonce,
            members=unlike_names([word.member for word in words], [word.mark for word in words]),
            master_addr=roster.master_addr,
            master_port=roster.master_port,
            index=books.rounds,
            restart_count=books.restarts,
            membership_changes=books.changes,
            history=books.history,
        )

    # --- while it goes on

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Check every `--monitor-interval` for new nodes, a decision, or the end."""
        left_s = timeout_s
        while left_s > 0:
            change = self._look()
            if change is not None:
                return change
            step_s = min(self.settings.monitor_interval_s, left_s)
            self.wait.sleep(step_s)
            left_s -= step_s
        return None

    def _look(self) -> RoundChange | None:
        talk = self._talk
        if talk is None or self._heard is not None:
            return None
        try:
            decided = self._ask(talk)
        except RuntimeError as error:  # of torch's stores
            self._heard = self._alone_at_the_end(one_line(error))
            if self._heard is None:
                raise store_lost(self.settings.backend, error, one_line(error)) from error
            return self._heard
        if decided is not None:
            return decided
        waiting = int(self._handler.num_nodes_waiting())
        if waiting > 0:
            self._regroup = True
            return NodesWaiting(count=waiting)
        return None

    def _ask(self, talk: RoundTalk) -> Decided | None:
        """Publish pending messages, and return the published decision, if there is one."""
        self._publish(talk)
        decided = talk.decision()
        if decided is None and self._done_told_s is not None:
            late = self._clock.monotonic_s() - self._done_told_s > self._barrier_s
            if late or talk.count("done") >= self._count:
                told = f"; others did not within {self._barrier_s:g} s" if late else ""
                decided = Decided(decision=Stop(reason=f"all workers of this node finished{told}", outcome="done"))
        if decided is not None:
            self._hear(talk, decided)
        return decided

    def _alone_at_the_end(self, why: str) -> Decided | None:
        """Return success for a node whose workers have all succeeded, if no other node is left."""
        if not self._done:
            return None
        now_s = self._clock.monotonic_s()
        self._away_s = now_s if self._away_s is None else self._away_s
        if now_s - self._away_s < AWAY_S:
            return None
        reason = f"all workers of this node finished, and the store is away: {why}"
        return Decided(decision=Stop(reason=reason, outcome="done"))

    def _hear(self, talk: RoundTalk, decided: Decided) -> None:
        self._heard = decided
        talk.count("heard", add=1)
        if isinstance(decided.decision, Restart) and decided.failure is not None:
            history = remembered(self._books.history, replace(decided.failure, decision=decided.decision))
            self._books = replace(self._books, restarts=self._books.restarts + 1, history=history)

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait, as far as torch's handler knows."""
        return 0 if self._handler is None else int(self._handler.num_nodes_waiting())

    def is_closed(self) -> bool:
        """Return whether torch's handler was closed."""
        return self._handler is not None and bool(self._handler.is_closed())

    def set_closed(self) -> None:
        """Close torch's handler, for all nodes."""
        if self._handler is not None:
            self._handler.set_closed()

    # --- what the agent says

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Keep a decision until the rendezvous thread publishes it."""
        with self._lock:
            self._post = Decided(decision=decision, failure=failure)

    def report_done(self) -> None:
        """Keep the report that all workers of this node have succeeded."""
        self._done = True

    def _publish(self, talk: RoundTalk) -> None:
        with self._lock:
            post, self._post = self._post, None
        if post is not None:
            talk.decide(post)
        if self._done and self._done_told_s is None:
            talk.count("done", add=1)
            self._done_told_s = self._clock.monotonic_s()

    def _publish_quietly(self) -> None:
        """Publish pending messages, and read the decision, if the store still exists."""
        talk = self._talk
        if talk is None or self._heard is not None:
            return
        try:
            self._publish(talk)
            decided = talk.decision()
            if decided is not None:
                self._hear(talk, decided)
        except RuntimeError as error:  # of torch's stores: the others will see that this node has left the round
            self.services.notice(f"the store of rendezvous {self.settings.backend!r} failed: {one_line(error)}")

    # --- the end

    def shutdown(self) -> bool:
        """Leave. If the run has ended, close it for all nodes, as torch does; otherwise the others go on."""
        talk, handler = self._talk, self._handler
        self._publish_quietly()
        ended = self._heard is not None and isinstance(self._heard.decision, Stop)
        if handler is None or not ended or talk is None:
            return True
        self._talk = None
        try:
            self._wait_for_the_others(talk)
            return bool(handler.shutdown())
        except Exception as error:  # noqa: BLE001  # of a plugin: the run has ended, and how does not change any more
            self.services.notice(f"shutting rendezvous {self.settings.backend!r} down failed: {one_line(error)}")
            return False

    def _wait_for_the_others(self, talk: RoundTalk) -> None:
        left_s = LAST_WORD_S
        try:
            while left_s > 0 and talk.count("heard") < self._count:
                WaitBudget().sleep(self.settings.monitor_interval_s)  # the agent's own has ended
                left_s -= self.settings.monitor_interval_s
        except RuntimeError:  # the store has gone with its host
            return

    # --- words

    def _say_left_behind(self) -> None:
        if self._stuck:
            name = f"{self.settings.backend!r} ({self._label})"
            self.services.notice(f"rendezvous {name} can't be interrupted: left behind")

    def _in_our_words(self, error: Exception) -> RendezvousError:
        cls = next(cls for name, cls in _KINDS if isinstance(error, getattr(self._rendezvous, name)))
        cause = error.__cause__
        text = one_line(error) + (
            f" ({type(cause).__name__}: {one_line(cause)})" if isinstance(cause, Exception) else ""
        )
        return cls(f"run {self.settings.run_id!r}: rendezvous {self.settings.backend!r} ({self._label}): {text}")


def barrier_from(environ: Mapping[str, str]) -> float:
    """Return the seconds in the environment variable, else torch's default.

    Raises:
        ConfigError: the variable is not a number of seconds.
    """
    text = environ.get(BARRIER_VARIABLE) or str(BARRIER_S)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{BARRIER_VARIABLE}: {text!r}; expected seconds, 0 or more", hint=f"{BARRIER_VARIABLE}=300")
    return value
