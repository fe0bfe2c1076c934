"""Show what an installed plugin is: its options, moments and powers, its version and its file."""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final, NamedTuple

import click

from elastic_core.api import (
    AgentHook,
    ConfigError,
    CoordinationStore,
    Environment,
    FailureHandler,
    OptionSpec,
    PluginError,
    RendezvousHandler,
    RunOption,
)
from elastic_core.api.commands import echo, echo_json
from elastic_core.api.plugins import PluginEntry, find_entries, import_entry
from elastic_plugin_kit.checking.subject import find, imported

api_version = 1

_KINDS: Final[Mapping[str, str]] = {
    "elastic_core.rendezvous": "rendezvous backend",
    "elastic_core.failure": "policy",
    "elastic_core.hooks": "hook",
    "elastic_core.commands": "command",
    "elastic_core.options": "option",
    "elastic_core.environments": "environment",
    "elastic_core.metrics": "metrics handler",
    "elastic_core.events": "event handler",
}
"""As `elastic plugins` has them."""
_BASES: Final = (CoordinationStore, RendezvousHandler, FailureHandler, AgentHook, Environment)
_TYPED: Final[Mapping[str, str]] = {
    "rendezvous backend": "--rdzv-conf {key}=VALUE",
    "policy": "--policy-conf {key}=VALUE",
    "hook": "-p {name}:{key}=VALUE",
}
"""How users give an option, by the kind of its plugin."""


class Description(NamedTuple):
    """One plugin, in the order in which it is shown; what there is none of is empty."""

    name: str
    kind: str
    distribution: str
    version: str
    entry_point: str
    fault: str = ""
    """Why it can't be used: it can't be imported, or its options are none."""
    file: str = ""
    summary: str = ""
    api_version: int | None = None
    interface: str = ""
    title: str = ""
    """Of an environment: what it is called, and in small letters behind `--environment`."""
    methods: Sequence[str] = ()
    """Those of the interface that it overrides; of a hook its moments."""
    powers: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    options: Sequence[OptionSpec] = ()
    hook: str = ""
    """Of an option of `elastic run`: the class that it chooses."""


def describe(entry: PluginEntry) -> Description:
    """Import what an entry point names, and say what it is."""
    known = Description(
        name=entry.name,
        kind=_KINDS[entry.group],
        distribution=entry.distribution,
        version=entry.version,
        entry_point=f"{entry.group}: {entry.value}",
    )
    try:
        target = imported(entry)
    except PluginError as err:
        return known._replace(fault=str(err))
    if isinstance(target, RunOption):
        return known._replace(options=(target,), hook=target.hook)
    cls = target if isinstance(target, type) else type(None)
    base = next((base for base in _BASES if issubclass(cls, base)), None)
    return known._replace(
        file=_place(target),
        summary=_summary(target),
        api_version=_stated(entry, target),
        interface=base.__name__ if base is not None else "",
        title=str(getattr(target, "title", "")) if base is Environment else "",
        methods=tuple(_methods(target, base)),
        powers=_words(getattr(target, "powers", ())),
        capabilities=_words(getattr(target, "capabilities", ())),
        **_options(target),
    )


def _place(target: object) -> str:
    """Return the file and line of a class, a function or a command's function; empty: not known."""
    code = target.callback if isinstance(target, click.Command) else target
    try:
        file = inspect.getsourcefile(code)  # type: ignore[arg-type]  # of anything else it raises, as is caught
        line = 0 if isinstance(code, ModuleType) else inspect.getsourcelines(code)[1]  # type: ignore[arg-type]  # the same
    except (TypeError, OSError):
        return ""
    return f"{file}:{line}" if file and line else file or ""


def _summary(target: object) -> str:
    text = (target.help if isinstance(target, click.Command) else getattr(target, "__doc__", None)) or ""
    own = isinstance(target, (ModuleType, click.Command)) or "__doc__" in getattr(target, "__dict__", {})
    return text.strip().partition("\n")[0] if own else ""


def _stated(entry: PluginEntry, target: object) -> int | None:
    """Return the version that a class, or the module of another thing, states itself."""
    owner = target
    if not isinstance(target, (type, ModuleType)):
        owner = import_entry(entry._replace(value=entry.value.partition(":")[0]))
    found = vars(owner).get("api_version")
    return found if isinstance(found, int) else None


def _methods(target: object, base: type | None) -> Iterator[str]:
    if base is None:
        yield from (name for name, value in vars(target).items() if hasattr(value, "elastic_core_impl"))
    elif isinstance(target, type):
        for name, value in vars(base).items():
            if not name.startswith("_") and callable(value) and getattr(target, name) is not value:
                yield name


def _words(stated: object) -> tuple[str, ...]:
    return tuple(sorted(map(str, stated))) if isinstance(stated, Iterable) else ()


def _options(target: object) -> dict[str, Any]:
    """Return the options that are declared, or what is there in their place."""
    declared = getattr(target, "options", ())
    if isinstance(declared, ModuleType):  # of a package that has one of the name
        return {}
    sound = isinstance(declared, (tuple, list)) and all(isinstance(spec, OptionSpec) for spec in declared)
    return {"options": tuple(declared)} if sound else {"fault": f"options is {declared!r}, no tuple of OptionSpec"}


# --- in words


def _value_of(spec: OptionSpec) -> str:
    """Return what an option takes: `duration, 1 or more; default 2`."""
    bounds = {
        (True, True): f", {spec.least} to {spec.most}",
        (True, False): f", {spec.least} or more",
        (False, True): f", at most {spec.most}",
        (False, False): "" if spec.above is None else f", more than {spec.above}",
    }[spec.least is not None, spec.most is not None]
    words = "".join(f", or {word}" for word in spec.words)
    kind = "|".join(spec.choices) or f"{spec.type}{bounds}{f', {spec.unit}' if spec.unit else ''}{words}"
    default = "required" if spec.required else "" if spec.default is None else f"default {spec.default}"
    return "; ".join(filter(None, (f"list of {kind}" if spec.many else kind, default)))


def _lines(shown: Description) -> Iterator[str]:
    label = f"{shown.kind} {shown.name!r} ({f'{shown.distribution} {shown.version}'.strip() or 'not installed'})"
    yield f"{label}: {shown.summary}" if shown.summary else label
    rows = [("entry point", shown.entry_point), ("file", shown.file), ("fault", shown.fault)]
    rows.append(("api_version", "" if shown.api_version is None else str(shown.api_version)))
    rows += [("interface", shown.interface), ("title", shown.title)]
    rows.append(("moments" if shown.kind == "hook" else "methods", ", ".join(shown.methods)))
    rows += [("powers", ", ".join(shown.powers)), ("capabilities", ", ".join(shown.capabilities)), ("hook", shown.hook)]
    yield from (f"  {head:12} {text}" for head, text in rows if text)
    typed = [
        f"--{spec.name.replace('_', '-')}"
        if isinstance(spec, RunOption)
        else _TYPED.get(shown.kind, "{key}").format(name=shown.name, key=spec.name)
        for spec in shown.options
    ]
    width = max(map(len, typed), default=0)
    head = "options"
    for text, spec in zip(typed, shown.options, strict=True):
        yield f"  {head:12} {text:{width}}  {_value_of(spec)}"
        head = ""
        if spec.help:
            yield f"  {'':12} {'':{width}}  {spec.help}"
    if shown.interface == "CoordinationStore":
        yield f"  {head:12} lease_ttl, join_timeout, last_call_timeout, connect_timeout: of every store"


def _fields(shown: Description) -> dict[str, object]:
    specs = [{name: getattr(spec, name) for name in OptionSpec.__struct_fields__} for spec in shown.options]
    return {**shown._asdict(), "options": specs}


# --- the command


def _found(name: str) -> list[PluginEntry]:
    """Return the entry points of a name, of whatever kind.

    Raises:
        ConfigError: there is none.
    """
    if ":" in name:
        return [find(name, None)]
    entries = [entry for entry in find_entries() if entry.group in _KINDS]
    found = [entry for entry in entries if entry.name == name]
    if not found:
        near = get_close_matches(name, sorted({entry.name for entry in entries}), n=1)
        hint = f"elastic plugins show {near[0]!r}" if near else "elastic plugins, which lists what is installed"
        raise ConfigError(f"no plugin {name!r} is installed", hint=hint)
    return sorted(found, key=lambda entry: list(_KINDS).index(entry.group))


def _show(name: str, as_json: bool) -> int:
    shown = [describe(entry) for entry in _found(name)]
    if as_json:
        echo_json(json.dumps([_fields(each) for each in shown], indent=2, default=str))
    else:
        for number, each in enumerate(shown):
            for line in ("",) * bool(number) + tuple(_lines(each)):
                echo(line)
    return 3 if any(each.fault for each in shown) else 0


command = click.Command(
    "show",
    callback=_show,
    params=[
        click.Argument(["name"]),
        click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON array."),
    ],
    help="Show an installed plugin: its distribution, version, file, options and powers.\n\n"
    "NAME is a backend, policy, hook, command, option of elastic run, or the variable that shows an environment; all "
    "plugins of that name are shown. NAME may also be module:Class. Exit code 3: one of them cannot be used.",
)
