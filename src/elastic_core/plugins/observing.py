"""Finds and builds handlers of metrics and events by name. Loaded only where one is chosen, or all are listed."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from elastic_core.errors import ElasticError, PluginError
from elastic_core.plugins.discovery import EVENTS_GROUP, KINDS, METRICS_GROUP, PluginEntry, find_entries
from elastic_core.plugins.entry_import import described, import_entry, mend, refusal
from elastic_core.plugins.missing import nearest_name
from elastic_core.types import HandlerSettings, Record

_NEEDED: Final = {METRICS_GROUP: "emit", EVENTS_GROUP: "handle"}
"""The method that makes an object a handler: whether it is torch's class or ours does not matter."""
_FLAGS: Final = {METRICS_GROUP: "--metrics-handler", EVENTS_GROUP: "--event-log-handler"}


class NamedHandler(Record, frozen=True, kw_only=True):
    """A handler, and what people call it. `ours`: it was built for this run, and ends with it."""

    label: str
    handler: Any
    ours: bool = True


class HandlerChoice:
    """One handler that the user named, found and imported, to be built when the run directory is there."""

    def __init__(self, group: str, name: str, conf: str, entry: PluginEntry | None, target: object) -> None:
        """Take what was found; without an entry it is a built-in one, or (`target`) an object that code has made."""
        self.group = group
        self.name = name
        self.conf = conf
        self._entry = entry
        self._target = target

    def build(self, settings: HandlerSettings, *, default_file: str) -> NamedHandler:
        """Build it.

        Args:
            settings: What it may want to know; its name and conf are filled in.
            default_file: Where `jsonl` writes that names no file.

        Raises:
            ConfigError: a built-in one can't be had so.
            PluginError: an installed one is broken.
        """
        label = f"{KINDS[self.group]} {self.name!r}"
        if self._entry is None:
            if self._target is not None:
                return NamedHandler(label=label, handler=self._target, ours=False)
            conf = self.conf or (default_file if self.name == "jsonl" else "")
            return NamedHandler(label=label, handler=_built_in(self.group)(self.name, conf))
        full = HandlerSettings(
            name=self.name,
            conf=self.conf,
            run_id=settings.run_id,
            node_id=settings.node_id,
            role=settings.role,
            run_dir=settings.run_dir,
        )
        handler = _made(self._entry, self._target, full)
        return NamedHandler(label=f"{label} ({self._entry.label})", handler=handler)


def choose(group: str, text: str, in_code: Sequence[tuple[str, object]] = ()) -> HandlerChoice:
    """Find the handler that the user named, `NAME` or `NAME:CONF`, and import it.

    Args:
        group: Metrics or events.
        text: As typed.
        in_code: Objects that code of this process offers, by name.

    Raises:
        PluginError: there is none, two distributions claim the name, or it can't be imported.
    """
    whole, known = text.strip(), dict(in_code)
    if whole in known:
        return HandlerChoice(group, whole, "", None, known[whole])
    name, _, conf = whole.partition(":")
    if name in _built_in_names(group):
        return HandlerChoice(group, name, conf, None, None)
    entries = _entries(group)
    claims = [entry for entry in entries if entry.name == name]
    if not claims:
        raise _not_installed(group, name, entries, [*_built_in_names(group), *known])
    if len(claims) > 1:
        owners = " and ".join(entry.label for entry in claims)
        raise PluginError(
            f"{KINDS[group]} {name!r} comes from {owners}", hint=f"pip uninstall {claims[-1].distribution}"
        )
    return HandlerChoice(group, name, conf, claims[0], _import(claims[0]))


def installed(group: str, *, load: bool) -> list[tuple[PluginEntry, str]]:
    """Return the entry points of a group with the status of each, as `elastic plugins` says it."""
    return [(entry, _status(entry) if load else "installed") for entry in _entries(group)]


def _status(entry: PluginEntry) -> str:
    try:
        _import(entry)
    except PluginError as err:
        return str(err)
    return "loaded"


def _entries(group: str) -> list[PluginEntry]:
    return [entry for entry in find_entries(group) if entry.group == group]


def _built_in(group: str) -> Callable[[str, str], object]:
    if group == METRICS_GROUP:
        from elastic_core.metrics.choosing import make_handler

        return make_handler
    from elastic_core.events.handlers import make_handler as make_event_handler

    return make_event_handler


def _built_in_names(group: str) -> Sequence[str]:
    if group == METRICS_GROUP:
        from elastic_core.metrics.choosing import BUILT_IN

        return BUILT_IN
    from elastic_core.events.handlers import BUILT_IN as OF_EVENTS

    return OF_EVENTS


def _not_installed(group: str, name: str, entries: Sequence[PluginEntry], others: Sequence[str]) -> PluginError:
    shown = [*map(repr, others), *(f"{entry.name!r} ({entry.label})" for entry in entries)]
    what = f"{KINDS[group]} {name!r} is not installed; there are {', '.join(dict.fromkeys(shown))}"
    if group == METRICS_GROUP and name == "prometheus":
        return PluginError(what, hint="--metrics-port 9400")
    near = nearest_name(name, [*others, *(entry.name for entry in entries)])
    hint = f"{_FLAGS[group]} {near}" if near else f"pip install the distribution that provides {name!r}"
    return PluginError(what, hint=hint)


def _import(entry: PluginEntry) -> object:
    target = import_entry(entry)
    if not callable(target):
        raise refusal(entry, f"{entry.value} is no class, nor a function that makes a handler", hint=mend(entry))
    return target


def _made(entry: PluginEntry, target: Any, settings: HandlerSettings) -> object:  # noqa: ANN401  # anybody's
    try:
        made = target(settings) if _takes_settings(target) else target()
    except ElasticError:
        raise
    except (Exception, SystemExit) as err:
        raise refusal(entry, f"building {entry.value} raised {described(err)}", hint=mend(entry)) from err
    if not callable(getattr(made, _NEEDED[entry.group], None)):
        what = f"{entry.value} made {type(made).__name__}, which has no method {_NEEDED[entry.group]!r}"
        raise refusal(entry, what, hint=mend(entry))
    return made


def _takes_settings(target: Callable[..., object]) -> bool:
    """Return whether its first parameter is one that settings are meant for, not one of its own with a default."""
    import inspect

    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # a callable that tells nothing about itself (written in C)
        return False
    if not parameters or parameters[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return False
    first = parameters[0]
    return first.kind is not inspect.Parameter.KEYWORD_ONLY and (
        first.name == "settings" or first.default is inspect.Parameter.empty
    )
