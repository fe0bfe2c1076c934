"""Torch's dynamic rendezvous by name: for a script, for torch's agent, and for elastic-core's."""

import logging
import math
import os
from datetime import timedelta
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from elastic_core import api
from elastic_core.api import API_VERSION, CoordinationStore, RendezvousHandler
from elastic_core.api.tools import clean
from elastic_core.embedding import DEFAULT_LEASE_TTL_S, CoordinatedRendezvous
from elastic_torchrun.rendezvous.agentless import AloneRounds, AloneServices, RoundStore
from elastic_torchrun.rendezvous.blocking_rendezvous import BlockingRendezvous
from elastic_torchrun.rendezvous.parameters import RendezvousParameters, run_id_of
from elastic_torchrun.rendezvous.state_store import BACKOFF_OPTION, StateStore
from elastic_torchrun.rendezvous.store_info import RendezvousInfo, RendezvousStoreInfo

_log = logging.getLogger("elastic_core.rendezvous")

_OPTIONS: Final = ("join_timeout", "last_call_timeout", "connect_timeout", "lease_ttl")
"""The options of the core's rendezvous. All others are the backend's."""


class RendezvousTimeout:
    """The time limits of a rendezvous, each above zero.

    Args:
        join: For the minimum of nodes to join; default 600 s.
        last_call: For more nodes, after the minimum has joined; default 30 s.
        close: For compatibility with torch, default 30 s: closing waits no longer than needed.
        heartbeat: For compatibility with torch, default 5 s: a heartbeat is a renewed lease, and may take a third of
            it.

    Raises:
        ValueError: one is not above zero.
    """

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        """Check them."""
        self._join = _positive("join", join, 600)
        self._last_call = _positive("last_call", last_call, 30)
        self._close = _positive("close", close, 30)
        self._heartbeat = _positive("heartbeat", heartbeat, 5)

    @property
    def join(self) -> timedelta:
        """Return the time limit for the minimum of nodes to join."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """Return the time for more nodes, after the minimum has joined."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """Return the time limit for closing."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """Return the time limit for a heartbeat."""
        return self._heartbeat


def _positive(name: str, given: timedelta | None, default_s: float) -> timedelta:
    value = timedelta(seconds=default_s) if given is None else given
    if value <= timedelta(0):
        raise ValueError(f"the {name} timeout is {value}; expected more than 0")
    return value


class RendezvousSettings(api.Record, frozen=True):
    """The settings of a dynamic rendezvous under torch's names."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0


class HandlerSettings(api.RendezvousSettings, frozen=True, kw_only=True):
    """The core's settings of a run, with torch's names for its times."""

    keep_alive_max_attempt: int = 3
    """The number of missed heartbeats after which a node counts as lost."""

    @classmethod
    def of(cls, settings: api.RendezvousSettings) -> "HandlerSettings":
        """Return the same settings with torch's names."""
        if isinstance(settings, cls):
            return settings
        return cls(**{name: getattr(settings, name) for name in settings.__struct_fields__})

    @property
    def timeout(self) -> RendezvousTimeout:
        """The time limits of the rendezvous."""
        join_s, last_call_s = self._seconds("join_timeout"), self._seconds("last_call_timeout")
        return RendezvousTimeout(
            None if join_s is None else timedelta(seconds=join_s),
            None if last_call_s is None else timedelta(seconds=last_call_s),
        )

    @property
    def keep_alive_interval(self) -> timedelta:
        """The time between two heartbeats. The lease is this times `keep_alive_max_attempt`."""
        lease_s = self._seconds("lease_ttl")
        return timedelta(seconds=DEFAULT_LEASE_TTL_S if lease_s is None else lease_s) / self.keep_alive_max_attempt

    @property
    def cas_backoff_max_seconds(self) -> float:
        """The longest pause after a write that conflicts with another node's; 0 means short pauses."""
        return self._seconds(BACKOFF_OPTION) or 0.0

    def _seconds(self, name: str) -> float | None:
        value = self.options.get(name)
        return float(value) if isinstance(value, (int, float)) else None


class DynamicRendezvousHandler(RendezvousHandler):
    """The core's rendezvous for a script or torch's agent. Elastic-core's agent uses the rounds directly (`adopt`).

    `next_rendezvous` also returns a store of torch's for the round. `num_nodes_waiting` returns 1 on all nodes when the
    round is over, whichever node joined or left; each then calls `next_rendezvous` again. That needs torch.

    Threading: one thread at a time; a thread of its own keeps the node's lease.
    """

    api_version: ClassVar[int] = API_VERSION

    def __init__(self, store: CoordinationStore, settings: api.RendezvousSettings, *, shared: object = None) -> None:
        """Connect to nothing yet.

        Args:
            store: The coordination store.
            settings: The run's.
            shared: A store of torch's that all nodes can reach, for messages in a round. `None` means that the node of
                rank 0 hosts one for each round.
        """
        super().__init__(settings)
        self.store = store
        self._shared = shared
        self._member: BlockingRendezvous | None = None
        self._rounds: AloneRounds | None = None

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: object,
        backend: Any,  # noqa: ANN401  # a RendezvousBackend, torch's or ours
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int = 5,
        keep_alive_max_attempt: int = 3,
        cas_backoff_max_seconds: float = 0.0,
    ) -> "DynamicRendezvousHandler":
        """Return a handler on a backend that keeps one value.

        Args:
            run_id: The run's id.
            store: A store of torch's that all nodes can reach, or `None`.
            backend: Keeps the state.
            min_nodes: The fewest nodes.
            max_nodes: The most nodes.
            local_addr: This node's address, as the others reach it.
            timeout: The time limits. `None` means those of the core.
            keep_alive_interval: Seconds between heartbeats. A node counts as lost after this times
                `keep_alive_max_attempt`.
            keep_alive_max_attempt: The number of missed heartbeats.
            cas_backoff_max_seconds: The longest random pause after a write that conflicts with another node's; 0 means
                short pauses, which grow.

        Raises:
            ValueError: there is no run id, the numbers of nodes are invalid, or the longest pause is negative or
                infinite.
        """
        checked = RendezvousParameters(backend.name, "", run_id_of(run_id), min_nodes, max_nodes, local_addr)
        _check_run_id(checked)
        options: dict[str, float] = {"lease_ttl": float(keep_alive_interval * keep_alive_max_attempt)}
        if backoff_s := _backoff(cas_backoff_max_seconds):
            options[BACKOFF_OPTION] = backoff_s
        if timeout is not None:
            options["join_timeout"] = timeout.join.total_seconds()
            options["last_call_timeout"] = timeout.last_call.total_seconds()
        settings = HandlerSettings(
            backend=backend.name,
            run_id=checked.run_id,
            endpoint="",
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            local_world_size=1,
            local_addr=local_addr,
            options=options,
            keep_alive_max_attempt=keep_alive_max_attempt,
        )
        return cls(StateStore(settings, backend=backend), settings, shared=store)

    @property
    def settings(self) -> HandlerSettings:
        """Return the run's settings, under the core's names and torch's."""
        return self._settings

    @settings.setter
    def settings(self, settings: api.RendezvousSettings) -> None:
        self._settings = HandlerSettings.of(settings)

    def adopt(self, settings: api.RendezvousSettings) -> CoordinatedRendezvous:
        """Return the same rendezvous for elastic-core's agent.

        Settings that only the agent's run has (number of workers, node name) are added; options and addresses stay.
        """
        own = self.settings
        self.settings = replace(
            HandlerSettings.of(settings),
            keep_alive_max_attempt=own.keep_alive_max_attempt,
            endpoint=own.endpoint or settings.endpoint,
            local_addr=own.local_addr or settings.local_addr,
            options={**settings.options, **own.options},
        )
        return CoordinatedRendezvous(self.store, self.settings)

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Block until there is a round with this node in it. If the last round still runs, end it for all nodes.

        Raises:
            RendezvousError: and its subclasses, as in the base class.
        """
        info, store, port = self._joinable().join(again="a node asked for a new round")
        return RendezvousInfo(
            store,
            info.rank,
            info.world_size,
            RendezvousStoreInfo(info.master_addr or "", port),
            round_token=info.round_token,
            nonce=info.nonce,
            members=info.members,
            index=info.index,
            restart_count=info.restart_count,
            membership_changes=info.membership_changes,
            history=info.history,
        )

    def num_nodes_waiting(self) -> int:
        """Return 1 if the round is over and all must join the next one, else 0."""
        return 0 if self._rounds is None else int(self._rounds.is_over())

    def is_closed(self) -> bool:
        """Return whether this node knows that the run is over."""
        return self._member is not None and self._member.is_closed()

    def set_closed(self) -> None:
        """End the run with success for all nodes, unless its end was decided already."""
        if self._member is not None:
            self._member.set_closed()

    def shutdown(self) -> bool:
        """Leave, and end the run for all nodes, as torch does."""
        if self._rounds is None:
            self.store.close()
            return True
        return self._rounds.end()

    def pids(self) -> frozenset[int]:
        """Return the processes of the store on this host (its own server)."""
        return self.store.pids()

    def _joinable(self) -> AloneRounds:
        if self._rounds is None:
            stores = self._round_stores()
            self._member = BlockingRendezvous(self.store, self.settings)
            self._member.services = AloneServices(stores, _warn)
            self._rounds = AloneRounds(self._member, stores, warn=_warn, rule=self.settings.backend)
        return self._rounds

    def _round_stores(self) -> RoundStore:
        from elastic_torchrun.hosting.round_store import GivenStore, RoundStores  # torch's stores

        return RoundStores() if self._shared is None else GivenStore(self._shared, self.settings.run_id)


def create_handler(store: object, backend: Any, params: RendezvousParameters) -> DynamicRendezvousHandler:  # noqa: ANN401  # as from_backend
    """Return a handler on a backend that keeps one value.

    Its options are `join_timeout` and `last_call_timeout` (seconds; by default the core's: 600, and 30 before a run's
    first round, 2 after it), `connect_timeout`, `lease_ttl` or `keep_alive_interval` times `keep_alive_max_attempt`,
    and `cas_backoff_max_seconds`, which may be 0.

    Args:
        store: A store of torch's that all nodes can reach, or `None`.
        backend: Keeps the state; torch's or elastic-core's.
        params: The parameters.

    Raises:
        ValueError: an option is not a number above zero, or there is no run id.
    """
    _check_run_id(params)
    settings = HandlerSettings(
        backend=params.backend,
        run_id=run_id_of(params.run_id),
        endpoint=params.endpoint,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_world_size=1,
        local_addr=params.local_addr,
        incarnation=os.urandom(16).hex(),
        options=_options(params),
        keep_alive_max_attempt=params.get_as_int("keep_alive_max_attempt", 3) or 3,
    )
    return DynamicRendezvousHandler(StateStore(settings, backend=backend), settings, shared=store)


def _options(params: RendezvousParameters) -> dict[str, float]:
    given = {name: _seconds(params, name) for name in _OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    interval_s, attempts = _seconds(params, "keep_alive_interval"), _seconds(params, "keep_alive_max_attempt")
    if interval_s is not None or attempts is not None:
        options.setdefault("lease_ttl", (interval_s or 5.0) * (attempts or 3.0))
    if (backoff := params.get(BACKOFF_OPTION)) is not None:
        options[BACKOFF_OPTION] = _backoff(backoff)
    return options


def _check_run_id(params: RendezvousParameters) -> None:
    if not run_id_of(params.run_id):
        raise ValueError("the run id is empty")


def _backoff(value: Any) -> float:  # noqa: ANN401  # what was typed, or is a number
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"rendezvous option {BACKOFF_OPTION}: {value!r}; expected a number from 0 up")
    return number


def _seconds(params: RendezvousParameters, name: str) -> float | None:
    value = params.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if number <= 0:
        raise ValueError(f"rendezvous option {name}: {value!r}; expected a number above 0")
    return number


def _warn(text: str) -> None:
    _log.warning("elastic: %s", clean(text))
