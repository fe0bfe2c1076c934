"""A run's store, for somebody who takes no part in the run: chosen by the options that `elastic run` has for it."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from elastic_core.clock import SYSTEM_CLOCK, Clock, WaitBudget
from elastic_core.errors import BackendUnavailableError, ConfigError, RendezvousConnectionError, WaitExpiredError
from elastic_core.options.choices import Choices
from elastic_core.options.readers import key_values, name_of, seconds
from elastic_core.options.table import BY_DEST
from elastic_core.plugins.coordination import store_of_members, store_of_others
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, CoordinationStore, Survey
from elastic_core.types import Record, RendezvousSettings

READ_LIMIT_S: Final = 5.0
"""How long to wait for a server, unless `--connect-timeout` says otherwise: a person waits for the answer."""
_WITHOUT_STORE: Final = ("local", "static")

_T = TypeVar("_T")


class StoreChoice(Record, frozen=True, kw_only=True):
    """Which run in which store. `conf` may hold secrets."""

    backend: str
    """The backend's name."""
    endpoint: str
    """Where it is."""
    run_id: str
    """Which run."""
    conf: Mapping[str, str]
    """Its options as texts; may hold secrets."""
    limit_s: float = READ_LIMIT_S
    """Seconds to wait for the server."""


class StoreReading(Record, frozen=True, kw_only=True):
    """What was read from a store in one go, and how long that took."""

    survey: Survey
    """What was read."""
    latency_s: float
    """Seconds that it took."""


def chosen_store(given: Mapping[str, str], environ: Mapping[str, str]) -> StoreChoice | None:
    """Return the store that the options name; None: they name none.

    The environment alone (`PET_RDZV_…`) names one if it has both a backend with a store and a run's id.

    Raises:
        ConfigError: a part is missing or malformed.
    """
    choices = Choices(given, environ, BY_DEST)
    backend = (choices.text("rdzv_backend") or "").strip()
    in_environment = choices.chosen("rdzv_id") and backend not in _WITHOUT_STORE
    if not given and not in_environment:
        return None
    if not choices.chosen("rdzv_backend"):
        raise ConfigError("no rendezvous backend named: the run's store can't be found", hint="--rdzv-backend NAME")
    if not choices.chosen("rdzv_id"):
        raise ConfigError("no run id: the store may have several runs", hint="--rdzv-id NAME, as on the run's nodes")
    conf = key_values(choices, "rdzv_conf", [choices.text("rdzv_conf") or ""])
    limit_s = READ_LIMIT_S
    if choices.chosen("connect_timeout"):
        limit_s = seconds(choices, "connect_timeout")
    return StoreChoice(
        backend=backend,
        endpoint=(choices.text("rdzv_endpoint") or "").strip(),
        run_id=name_of(choices, "rdzv_id"),
        conf=conf,
        limit_s=limit_s,
    )


class StoreReader:
    """Reads a run's content, and never writes. The server is reached by the first `read`, and again after a failure.

    Threading: one thread.
    """

    def __init__(self, choice: StoreChoice, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Choose the plugin; connect to nothing.

        Raises:
            PluginError: there is no such backend, or it is broken.
            ConfigError: it keeps no store, or refuses endpoint or options.
        """
        self.choice = choice
        self._clock = clock
        self._connected = False
        self._store = open_store(choice)

    @property
    def where(self) -> str:
        """The server as people know it, without secrets."""
        return self._store.where

    @property
    def hosted_by_member(self) -> bool:
        """Whether the server is one of the run's own, and ends with it."""
        return self._store.hosted_by_member

    def read(self) -> StoreReading:
        """Return what the store has of the run.

        Raises:
            RendezvousConnectionError: the server did not answer in time.
            BackendRefusedError: it answered, and will not serve us.
        """

        def survey(wait: WaitBudget) -> StoreReading:
            began_s = self._clock.monotonic_s()
            survey = self._store.survey((CONTROL_KEY, ROUND_KEY), wait=wait)
            return StoreReading(survey=survey, latency_s=self._clock.monotonic_s() - began_s)

        return self._call(survey)

    def _call(self, call: Callable[[WaitBudget], _T]) -> _T:
        """Make a call to the store, connected; raises as `read` does."""
        wait = WaitBudget.lasting(self.choice.limit_s, clock=self._clock)
        try:
            if not self._connected:
                self._store.connect(wait=wait)
                self._connected = True
            return call(wait)
        except (BackendUnavailableError, WaitExpiredError) as err:
            self._connected = False
            raise self._away(err) from err

    def _away(self, err: BackendUnavailableError | WaitExpiredError) -> RendezvousConnectionError:
        if isinstance(err, WaitExpiredError):
            what, hint = f"no answer within {self.choice.limit_s:g} s", "a longer --connect-timeout"
        else:
            what, hint = err.what, err.hint
        told = what if self.where in what else f"{self.where}: {what}"
        return RendezvousConnectionError(told, hint=hint or "is the server up, and the --rdzv-endpoint right?")

    def close(self) -> None:
        """Give the connections back."""
        self._store.close()


def open_store(choice: StoreChoice, *, max_nodes: int = 1, may_host: bool = False) -> CoordinationStore:
    """Return a run's store, which connects to nothing yet. Whoever opens one closes it.

    Args:
        choice: Which.
        max_nodes: How many nodes use it at most.
        may_host: Where one of the nodes keeps the server (`c10d`), this one may be it; else none is begun.

    Raises:
        PluginError: there is no such backend, or it is broken.
        ConfigError: it keeps no store, or refuses endpoint or options.
    """
    if choice.backend in _WITHOUT_STORE:
        raise _no_store(choice.backend)
    settings = RendezvousSettings(
        backend=choice.backend,
        run_id=choice.run_id,
        endpoint=choice.endpoint,
        min_nodes=1,
        max_nodes=max_nodes,
        local_world_size=1,
    )
    handler = PluginRegistry().make_rendezvous(choice.backend, settings, choice.conf)
    store = store_of_members(handler) if may_host else store_of_others(handler)
    if store is None:
        raise _no_store(choice.backend)
    return store


def _no_store(backend: str) -> ConfigError:
    return ConfigError(
        f"rendezvous backend {backend!r} keeps no store in which a run could be looked at",
        hint="elastic status RUN_DIR on a node of the run",
    )
