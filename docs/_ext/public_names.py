"""The reference of the public modules: `elastic_core.api`, name by name, and `elastic_core.embedding`.

A name that a module has and this does not list is missed by a test.
"""

import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final

from page_parts import attributes, first_line, prose, signature, table

from elastic_core import api, embedding
from elastic_core.api import commands, feed, plugins, records, rendezvous, starters, stores, tools, workers

DATA: Final[Mapping[str, str]] = {
    "hookimpl": "Marks a function of a plugin module as a hook method with the function's name.",
    "API_VERSION": "The version of the plugin interfaces; each plugin states the one that it was written for.",
    "SYSTEM_CLOCK": "The [`SystemClock`](#systemclock) of this process.",
    "RoundChange": "The return type of [`RendezvousHandler.watch`](#rendezvoushandler): any of the changes below.",
    "Decision": "The return type of a [`FailureHandler`](#failurehandler): [`Restart`](#restart), [`Stop`](#stop) or "
    "[`Ignore`](#ignore).",
    "Moment": "Any of the records that a hook receives.",
    "Offer": "A handler of requests to the agent: a function of the request's parameters, by name, that returns an "
    "[`Answer`](#answer).",
    "ROUND_KEY": "Key of a store's document with the round: its roster, and how it ended.",
    "CONTROL_KEY": "Key of a store's document with the run: the settings that nodes compare at a join, and the result.",
    "STORE_FORMAT": "The version of the content that nodes write into a store.",
    "STORE_KEEP_S": "For how many seconds after its last write a store keeps a run that has not ended.",
    "TORCH_HINT": "The command that installs a supported torch, for hints of errors.",
}
"""Names that are neither classes nor documented where Sphinx finds them."""

MODULES: Final = (api, stores, rendezvous, starters, workers, feed, tools, commands, records, plugins)
"""The public modules for plugins, in the order of the page."""


def public(module: ModuleType) -> tuple[str, ...]:
    """Return the names that a module has for others, in the order of its imports."""
    return tuple(name for name, thing in vars(module).items() if name[0] != "_" and not inspect.ismodule(thing))


_THINGS: Final = {name: getattr(module, name) for module in MODULES for name in public(module)}
PUBLIC: Final = frozenset(_THINGS)


def front_page() -> dict[str, dict[str, str]]:
    """Return what the docstring of `elastic_core.api` lists: for each title the names, and when each is needed."""
    found: dict[str, dict[str, str]] = {}
    groups = r"^(\S.*)\n((?:    \w+: .*\n(?:        .*\n)*)+)"
    for title, lines in re.findall(groups, f"{api.__doc__}\n", re.MULTILINE):
        entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", lines, re.MULTILINE)
        found[title] = {name: " ".join(text.split()) for name, text in entries}
    return found


def api_sections() -> dict[str, tuple[str, ...]]:
    """Return the public names by subject, then those of the sub-modules; together they are all."""
    return {title: tuple(names) for title, names in front_page().items()} | {
        f"`{module.__name__}`": public(module) for module in MODULES if module is not api
    }


def api_front_page() -> str:
    """Tables of the names that are needed on the first day, and of the sub-modules."""
    parts = []
    for title, names in front_page().items():
        rows = ((f"[`{name}`](#{name.lower()})", text) for name, text in names.items())
        parts += [f"**{title}**", table(("name", "when you need it"), rows)]
    rows = ((f"`{each.__name__}`", str(len(public(each))), first_line(each)) for each in MODULES if each is not api)
    parts += ["**Sub-modules**", table(("module", "names", "contents"), rows)]
    return "\n\n".join(parts)


def api_reference() -> str:
    """A section for every public name."""
    parts = []
    for title, names in api_sections().items():
        parts.append(f"## {title}")
        if title.startswith("`"):  # a sub-module; the front page has its names with when each is needed
            rows = ((f"[`{name}`](#{name.lower()})", _summary(name)) for name in names)
            parts.append(table(("name", "what it is"), rows))
        parts += [f"### `{name}`\n\n{_entry(name)}" for name in names]
    return "\n\n".join(parts)


def _summary(name: str) -> str:
    """What a name is, in the first words of its docstring."""
    thing = _THINGS[name]
    if not isinstance(thing, type) and not inspect.isfunction(thing):
        return DATA[name]
    return prose(thing).partition("\n\n")[0]


def _entry(name: str) -> str:
    thing = _THINGS[name]
    if not isinstance(thing, type):
        return f"`{signature(thing, name)}`\n\n{prose(thing)}" if inspect.isfunction(thing) else DATA[name]
    parts = [*_bases(thing), prose(thing)]
    if issubclass(thing, enum.Enum):
        rows = ((f"`{one}`", f"`{thing[one].value}`", said.text) for one, said in attributes(thing).items())
        return "\n\n".join((*parts, table(("member", "value", "what it is"), rows)))
    own = {one: said for one, said in attributes(thing).items() if not one.startswith("_")}
    if own:
        rows = (
            (f"`{one}`", f"`{said.annotation}`" if said.annotation else "", _default(said.default), said.text)
            for one, said in own.items()
        )
        parts.append(table(("field", "type", "default", "what it is"), rows))
    return "\n\n".join((*parts, *_methods(thing)))


def _bases(cls: type) -> list[str]:
    """Return the public classes that this one is, too."""
    names = [base.__name__ for base in cls.__bases__ if base.__name__ in PUBLIC and base is not api.Record]
    return [f"Is a {', '.join(f'[`{name}`](#{name.lower()})' for name in names)}."] if names else []


def _default(text: str) -> str:
    return f"`{text}`" if text else ""


def _methods(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property):
            yield f"**`{name}`**\n\n{prose(member)}"
        elif inspect.isfunction(function) and inspect.getdoc(function):
            shown = cls.__name__ if name == "__init__" else name
            if function.__qualname__.startswith(f"{cls.__name__}."):
                yield f"**`{signature(function, shown)}`**\n\n{prose(function)}"


EMBEDDING_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "A run": ("run_job", "RunOutcome", "RunSettings", "Entrypoint", "Injected", "NOTHING"),
    "Options as settings": (
        "resolve",
        "Choices",
        "read_arguments",
        "elastic_process",
        "OPTIONS",
        "BY_DEST",
        "all_hook_options",
        "hook_option",
        "is_hook_option",
        "comma_list",
        "completion_script",
        "key_values",
        "nearest",
        "Node",
        "count_for",
        "DEFAULT_SIGNALS",
    ),
    "What workers execute": (
        "make_entrypoint",
        "CallStarter",
        "LOCAL_RANK_MACRO",
    ),
    "Failures": ("read_error_file", "parse_error_file", "remembered"),
    "Rendezvous": (
        "PluginRegistry",
        "IN_CODE",
        "registry",
        "LocalRendezvous",
        "Backend",
        "CoordinatedRendezvous",
        "JoinRendezvous",
        "WatchRound",
        "PublishDecision",
        "AnnounceDeparture",
        "LeaveRendezvous",
        "RoundChanged",
        "RoundFormed",
        "RendezvousFailed",
        "RendezvousLeft",
        "PrintLine",
        "DrainOrdered",
        "PluginLabel",
        "Fault",
        "HeldPort",
        "attempt_from_environment",
        "ALLOWABLE",
        "DEFAULT_LEASE_TTL_S",
    ),
    "Worker processes without a run": (
        "Reactor",
        "ReactorLoop",
        "Sweeper",
        "WorkerGroup",
        "WorkerLaunch",
        "WorkerPaths",
        "Console",
        "Logger",
        "LogLayout",
        "RankPaths",
        "StreamPlan",
        "stream_plans",
        "limited_plan",
        "line_prefix",
        "parse_ranks",
        "Std",
    ),
}
"""The names of `elastic_core.embedding` by purpose."""

EMBEDDING_DATA: Final[Mapping[str, str]] = {
    "registry": "Module: `register` makes a class available as `--rdzv-backend NAME` in this process, `registered` "
    "returns the class of a name.",
    "Backend": "The backend of a run: a plugin's own handler, or the core's rendezvous on a plugin's store.",
    "NOTHING": "An `Injected` that replaces nothing.",
    "OPTIONS": "Every option of the core, in the order of the help.",
    "BY_DEST": "The same options by identifier.",
    "DEFAULT_SIGNALS": "The signals that end a run by default.",
    "LOCAL_RANK_MACRO": "The text in a worker's arguments that its local rank replaces.",
    "IN_CODE": "The name of the distribution of plugins that were registered in code.",
    "ALLOWABLE": "The settings that `--allow-mismatch` can allow to differ between nodes.",
    "DEFAULT_LEASE_TTL_S": "The default duration of a lease in seconds.",
}


def embedding_reference() -> str:
    """A table for each purpose of `elastic_core.embedding`."""
    parts = []
    for title, names in EMBEDDING_SECTIONS.items():
        rows = ((f"`{name}`", EMBEDDING_DATA.get(name) or first_line(getattr(embedding, name))) for name in names)
        parts += [f"## {title}", table(("name", "what it is"), rows)]
    return "\n\n".join(parts)
