"""Lists all plugins of an environment, imports each, and reports its faults."""

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
from elastic_core.plugins.entry_import import HOOK_LIMIT, IN_CODE, import_entry, plugin_refusal
from elastic_core.plugins.hook_flags import hook_entry
from elastic_core.plugins.loading import LoadedPlugin, heavy_modules, refuse_heavy
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry as in_code
from elastic_core.types import Record


class PluginInfo(Record, frozen=True, kw_only=True):
    """One line of `elastic plugins`.

    `status` is `loaded`, `installed` (not imported), `disabled`, or why it is not loaded.
    """

    name: str
    kind: str
    distribution: str
    version: str
    status: str
    powers: tuple[str, ...] = ()
    """What a hook may do besides observing."""
    title: str = ""
    """What the plugin does, in one sentence. Empty if it has no docstring or is not loaded."""


def list_plugins(registry: PluginRegistry, *, load: bool = True) -> list[PluginInfo]:
    """Return every plugin, sorted by kind and name.

    With `load`, each plugin is imported and its faults are reported; otherwise `status` only says that it is
    installed.
    """
    infos = [
        PluginInfo(name=name, kind=KINDS[RENDEZVOUS_GROUP], distribution=IN_CODE, version="", status="loaded")
        for name in in_code.registered_names()
    ]
    infos += [_info(entry, *_status(registry, entry, load=load)) for entry in registry.entries()]
    infos += [_info(entry, "hosted: written for torchrun") for entry in registry.hosted()]
    entries = find_entries()
    handlers = [entry for entry in entries if entry.group in (METRICS_GROUP, EVENTS_GROUP)]
    infos += [_info(entry, *_handler_status(entry, load=load)) for entry in handlers]
    commands = CommandPlugins()
    infos += [
        _info(entry, status, title=commands.help_line(entry.name)) for entry, status in commands.listed(load=load)
    ]
    order = list(KINDS.values())
    infos.sort(key=lambda info: (order.index(info.kind), info.name))
    return infos + [_info(entry, _misplaced(entry)) for entry in entries if entry.group not in GROUPS]


def _status(registry: PluginRegistry, entry: PluginEntry, *, load: bool) -> tuple[str, tuple[str, ...], str]:
    if entry.group == HOOKS_GROUP and entry.name in registry.disabled:
        return "disabled", (), ""
    if not load:
        return "installed", (), ""
    title = ""
    try:
        registry.refuse_doubles(entry.group, entry.name)
        before = heavy_modules()
        if entry.group == OPTIONS_GROUP:
            title = _sentence(getattr(import_entry(entry, limit=HOOK_LIMIT), "help", ""))
            entry = hook_entry(entry)
        plugin = LoadedPlugin(entry, HOOK_LIMIT)
        if entry.group != RENDEZVOUS_GROUP:
            refuse_heavy(entry, before)
    except PluginError as err:
        registry.keep(entry, err)
        return str(err), (), ""
    return "loaded", plugin.powers, title or _sentence(plugin.docstring)


def _sentence(text: object) -> str:
    # The first sentence, up to its full stop or semicolon.
    first = str(text or "").strip().partition("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].partition("; ")[0].rstrip(".")


def _misplaced(entry: PluginEntry) -> str:
    # The group has our prefix, but no code reads it.
    what = f"{entry.name!r} ({entry.label}) is in the group {entry.group!r}, which nothing reads"
    return str(PluginError(what, hint=f"one of {', '.join(sorted(KINDS))}"))


def _info(entry: PluginEntry, status: str, powers: tuple[str, ...] = (), title: str = "") -> PluginInfo:
    return PluginInfo(
        name=entry.name,
        kind=KINDS.get(entry.group, entry.group),
        distribution=entry.distribution,
        version=entry.version,
        status=status,
        powers=powers,
        title=title.rstrip("."),
    )


def _handler_status(entry: PluginEntry, *, load: bool) -> tuple[str, tuple[str, ...], str]:
    # Handlers of metrics or events are built by a hook.
    if not load:
        return "installed", (), ""
    try:
        handler = import_entry(entry, limit=HOOK_LIMIT)
        if not callable(handler):
            what = f"{entry.value} is no class, nor a function that makes a handler"
            raise plugin_refusal(entry, what)
    except PluginError as err:
        return str(err), (), ""
    return "loaded", (), _sentence(handler.__doc__)
