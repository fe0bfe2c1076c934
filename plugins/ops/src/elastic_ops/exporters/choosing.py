"""Handlers of metrics and events by name, built-in or installed."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final

from elastic_core.api import ElasticError, PluginError, Record
from elastic_core.api.plugins import PluginEntry, find_entries, import_entry, plugin_refusal

METRICS_GROUP: Final = "elastic_core.metrics"
EVENTS_GROUP: Final = "elastic_core.events"
_KINDS: Final = {METRICS_GROUP: "metrics handler", EVENTS_GROUP: "event handler"}
_NEEDED: Final = {METRICS_GROUP: "emit", EVENTS_GROUP: "handle"}
"""The method of a handler; torch's classes have it, too."""
_FLAGS: Final = {METRICS_GROUP: "--metrics-handler", EVENTS_GROUP: "--event-log-handler"}


class HandlerSettings(Record, frozen=True, kw_only=True):
    """The settings with which a handler of metrics or events may be built. `conf` is the text after its name."""

    name: str
    conf: str = ""
    run_id: str = ""
    node_id: str = ""
    role: str = ""
    run_dir: str = ""


class NamedHandler(Record, frozen=True, kw_only=True):
    """A handler, with its name for people."""

    label: str
    handler: Any


class HandlerChoice:
    """A handler that the user chose, imported, and built when the run directory exists."""

    def __init__(self, group: str, name: str, conf: str, entry: PluginEntry | None, target: object) -> None:
        """Keep the result of the search. Without an entry point it is a built-in handler."""
        self.group = group
        self.name = name
        self.conf = conf
        self._entry = entry
        self._target = target

    def build(self, settings: HandlerSettings, *, default_file: str) -> NamedHandler:
        """Build it.

        Args:
            settings: Settings for the handler; its name and conf are filled in.
            default_file: The file of `jsonl` if none is named.

        Raises:
            ConfigError: a built-in handler can't be built with these settings.
            PluginError: an installed handler is broken.
        """
        label = f"{_KINDS[self.group]} {self.name!r}"
        if self._entry is None:
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


def choose(group: str, text: str) -> HandlerChoice:
    """Find the handler `NAME` or `NAME:CONF`, and import it.

    Args:
        group: Metrics or events.
        text: As typed.

    Raises:
        PluginError: there is none, two distributions have the name, or it can't be imported.
    """
    name, _, conf = text.strip().partition(":")
    if name in _built_in_names(group):
        return HandlerChoice(group, name, conf, None, None)
    entries = _entries(group)
    claims = [entry for entry in entries if entry.name == name]
    if not claims:
        raise _not_installed(group, name, entries, _built_in_names(group))
    if len(claims) > 1:
        owners = " and ".join(entry.label for entry in claims)
        raise PluginError(
            f"{_KINDS[group]} {name!r} comes from {owners}", hint=f"pip uninstall {claims[-1].distribution}"
        )
    return HandlerChoice(group, name, conf, claims[0], _import(claims[0]))


def _entries(group: str) -> list[PluginEntry]:
    return [entry for entry in find_entries(group) if entry.group == group]


def _built_in(group: str) -> Callable[[str, str], object]:
    if group == METRICS_GROUP:
        from elastic_ops.metrics.choosing import make_handler

        return make_handler
    from elastic_ops.exporters.event_handlers import make_handler as make_event_handler

    return make_event_handler


def _built_in_names(group: str) -> Sequence[str]:
    if group == METRICS_GROUP:
        from elastic_ops.metrics.choosing import BUILT_IN

        return BUILT_IN
    from elastic_ops.exporters.event_handlers import BUILT_IN as OF_EVENTS

    return OF_EVENTS


def _not_installed(group: str, name: str, entries: Sequence[PluginEntry], others: Sequence[str]) -> PluginError:
    shown = [*map(repr, others), *(f"{entry.name!r} ({entry.label})" for entry in entries)]
    what = f"{_KINDS[group]} {name!r} is not installed; there are {', '.join(dict.fromkeys(shown))}"
    if group == METRICS_GROUP and name == "prometheus":
        return PluginError(what, hint="--metrics-port 9400")
    near = difflib.get_close_matches(name, sorted({*others, *(entry.name for entry in entries)}), n=1)
    hint = f"{_FLAGS[group]} {near[0]}" if near else f"pip install the distribution that provides {name!r}"
    return PluginError(what, hint=hint)


def _import(entry: PluginEntry) -> object:
    target = import_entry(entry)
    if not callable(target):
        raise plugin_refusal(entry, f"{entry.value} is no class, nor a function that makes a handler")
    return target


def _made(entry: PluginEntry, target: Any, settings: HandlerSettings) -> object:  # noqa: ANN401  # anybody's
    try:
        made = target(settings) if _takes_settings(target) else target()
    except ElasticError:
        raise
    except (Exception, SystemExit) as err:
        fault = f"{type(err).__name__}: {' '.join(str(err).split())}".removesuffix(": ")
        raise plugin_refusal(entry, f"building {entry.value} raised {fault}") from err
    if not callable(getattr(made, _NEEDED[entry.group], None)):
        what = f"{entry.value} made {type(made).__name__}, which has no method {_NEEDED[entry.group]!r}"
        raise plugin_refusal(entry, what)
    return made


def _takes_settings(target: Callable[..., object]) -> bool:
    """Return whether its first parameter is for settings, and not one of its own with a default."""
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
