"""All plugins of an environment, each imported, and what is wrong with it: for who looks at them all."""

from elastic_core.errors import PluginError
from elastic_core.plugins.commands import CommandPlugins
from elastic_core.plugins.discovery import (
    EVENTS_GROUP,
    GROUPS,
    HOOKS_GROUP,
    KINDS,
    METRICS_GROUP,
    OPTIONS_GROUP,
    RENDEZVOUS_GROUP,
    PluginEntry,
    find_entries,
)
from elastic_core.plugins.entry_import import HOOK_LIMIT, IN_CODE, import_entry, mend, plugin_refusal
from elastic_core.plugins.hook_flags import hook_entry
from elastic_core.plugins.loading import LoadedPlugin, heavy_modules, refuse_heavy
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry as in_code
from elastic_core.types import Record


class PluginInfo(Record, frozen=True, kw_only=True):
    """One line of `elastic plugins`.

    `status`: `loaded`, `installed` (unseen), `disabled`, or why it is not loaded.
    """

    name: str
    kind: str
    distribution: str
    version: str
    status: str
    powers: tuple[str, ...] = ()
    """What a hook may do beside observing."""


def list_plugins(registry: PluginRegistry, *, load: bool = True) -> list[PluginInfo]:
    """Return every plugin, by kind and name.

    Args:
        registry: The plugins of this environment.
        load: Import each one and say what is wrong with it; else say only that it is installed.
    """
    infos = [
        PluginInfo(name=name, kind=KINDS[RENDEZVOUS_GROUP], distribution=IN_CODE, version="", status="loaded")
        for name in in_code.registered_names()
    ]
    infos += [_info(entry, *_status(registry, entry, load=load)) for entry in registry.entries()]
    infos += [_info(entry, "hosted: written for torchrun") for entry in registry.hosted()]
    entries = find_entries()
    handlers = [entry for entry in entries if entry.group in (METRICS_GROUP, EVENTS_GROUP)]
    infos += [_info(entry, _handler_status(entry, load=load)) for entry in handlers]
    infos += [_info(entry, status) for entry, status in CommandPlugins().listed(load=load)]
    order = list(KINDS.values())
    infos.sort(key=lambda info: (order.index(info.kind), info.name))
    return infos + [_info(entry, _misplaced(entry)) for entry in entries if entry.group not in GROUPS]


def _status(registry: PluginRegistry, entry: PluginEntry, *, load: bool) -> tuple[str, tuple[str, ...]]:
    """Return how a plugin fares, and its powers."""
    if entry.group == HOOKS_GROUP and entry.name in registry.disabled:
        return "disabled", ()
    if not load:
        return "installed", ()
    try:
        registry.refuse_doubles(entry.group, entry.name)
        before = heavy_modules()
        if entry.group == OPTIONS_GROUP:
            entry = hook_entry(entry)
        plugin = LoadedPlugin(entry, HOOK_LIMIT)
        if entry.group != RENDEZVOUS_GROUP:
            refuse_heavy(entry, before)
    except PluginError as err:
        registry.keep(entry, err)
        return str(err), ()
    return "loaded", plugin.powers


def _misplaced(entry: PluginEntry) -> str:
    """Return what is wrong with an entry point whose group begins as ours do, and that nothing reads."""
    what = f"{entry.name!r} ({entry.label}) is in the group {entry.group!r}, which nothing reads"
    return str(PluginError(what, hint=f"one of {', '.join(sorted(KINDS))}"))


def _info(entry: PluginEntry, status: str, powers: tuple[str, ...] = ()) -> PluginInfo:
    return PluginInfo(
        name=entry.name,
        kind=KINDS.get(entry.group, entry.group),
        distribution=entry.distribution,
        version=entry.version,
        status=status,
        powers=powers,
    )


def _handler_status(entry: PluginEntry, *, load: bool) -> str:
    """Return how a handler of metrics or events fares, which is for a hook to build."""
    try:
        usable = not load or callable(import_entry(entry, limit=HOOK_LIMIT))
    except PluginError as err:
        return str(err)
    if not usable:
        return str(
            plugin_refusal(entry, f"{entry.value} is no class, nor a function that makes a handler", hint=mend(entry))
        )
    return "loaded" if load else "installed"
