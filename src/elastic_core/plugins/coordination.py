"""Builds the core's rendezvous on a plugin's store. Imported only if there may be one."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from elastic_core.option_spec import OptionSpec
from elastic_core.plugins.conversion import resolve_options
from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
from elastic_core.rendezvous.coordinated_options import COORDINATED_KEYS, COORDINATED_OPTIONS, check_coordinated
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import RendezvousSettings


def store_options(declared: Sequence[OptionSpec]) -> Sequence[OptionSpec]:
    """Return the options of `--rdzv-conf` for a store: those of all stores, and its own, which override them."""
    own = {spec.name for spec in declared}
    return (*(spec for spec in COORDINATED_OPTIONS if spec.name not in own), *declared)


def shared_keys(conf: Mapping[str, str], declared: Sequence[OptionSpec]) -> dict[str, str]:
    """Return the part of the typed options that the core reads if the plugin makes a store."""
    own = {spec.name for spec in declared}
    return {key: text for key, text in conf.items() if key in COORDINATED_KEYS and key not in own}


def coordinate(
    store: CoordinationStore, settings: RendezvousSettings, shared: Mapping[str, str]
) -> CoordinatedRendezvous:
    """Return the core's rendezvous on a store.

    `shared` are typed options of all stores that `settings.options` does not contain yet.

    Raises:
        ConfigError: An option is malformed.
    """
    owner = f"rendezvous backend {settings.backend!r}"
    resolved = resolve_options(shared, COORDINATED_OPTIONS, flag="--rdzv-conf", owner=owner)
    full = replace(settings, options={**resolved.values, **settings.options})
    check_coordinated(full.options, backend=settings.backend, min_ttl_s=store.min_ttl_s)
    return CoordinatedRendezvous(store, full)


def store_of_members(handler: Backend) -> CoordinationStore | None:
    """Return the store of an unused handler. `None` if it has none."""
    return handler.store if isinstance(handler, CoordinatedRendezvous) else None


def store_of_others(handler: Backend) -> CoordinationStore | None:
    """Return a store for reading, which never starts a server of its own. `None` if the handler has none."""
    store = store_of_members(handler)
    if store is None:
        return None
    kind = type(store)
    if not (store.hosted_by_member or any(spec.name == "is_host" for spec in kind.options)):
        return store
    return kind(replace(store.settings, options={**store.settings.options, "is_host": False}))
