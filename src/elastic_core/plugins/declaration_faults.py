"""What of a plugin's class would fail only in a run: its version, its options, its methods' signatures and names.

Read off the class alone; a sound one costs no import. The rules of versions are in docs/plugin_authors/stability.md.
"""

import math
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Final

from elastic_core.option_spec import OptionSpec
from elastic_core.plugins.conversion import OPTION_TYPES, fits, parse, wanted
from elastic_core.plugins.discovery import PluginEntry, core_name, find_entries
from elastic_core.plugins.entry_import import NOT_INSTALLED, mend, refusal
from elastic_core.types import API_VERSION, Record


class ServedVersions(Record, frozen=True, kw_only=True):
    """All versions from `oldest` to `newest` are served; `leaving` has those of them that are deprecated.

    Each with the release of the core that drops it: `{1: "0.4"}`.
    """

    oldest: int
    newest: int
    leaving: Mapping[int, str] = {}

    def __contains__(self, version: object) -> bool:
        """Return whether plugins of this version are loaded; what is no whole number is no version."""
        return type(version) is int and self.oldest <= version <= self.newest

    def __str__(self) -> str:
        """Return what is needed, for messages: `1`, or `2 to 3`."""
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def is_newer(self, version: object) -> bool:
        """Return whether it is the core that is too old for a plugin of this version."""
        return type(version) is int and version > self.newest

    def farewell(self, version: int) -> str:
        """Return what to tell of a plugin whose version is deprecated; empty: nothing."""
        if version not in self.leaving:
            return ""
        return (
            f"api_version {version}, which release {self.leaving[version]} of the core drops; {self.newest} is current"
        )


SERVED: Final = ServedVersions(oldest=1, newest=API_VERSION)
"""To deprecate a version: put it into `leaving`, with the second minor release from now. To drop it: raise `oldest`."""


def check_api_version(entry: PluginEntry, target: object) -> tuple[str, ...]:
    """Return a line for the user of a plugin whose version is deprecated.

    What counts is stated by the class or module itself: an inherited number says nothing about what its author had in
    mind.

    Raises:
        PluginError: none is stated, or one that is not served.
    """
    own = vars(target)
    name = target.__qualname__ if isinstance(target, type) else entry.value.partition(":")[0].strip()
    if "api_version" not in own:
        what = f"{name} states no api_version of its own; {SERVED} is needed"
        raise refusal(entry, what, hint=f"api_version = {API_VERSION} in {name}")
    version = own["api_version"]
    if version not in SERVED:
        what = f"{name} states api_version {version!r}; {SERVED} is needed"
        from elastic_core.plugins.missing import upgrade_hint

        core = core_name(find_entries())
        behind = core if SERVED.is_newer(version) else entry.distribution
        raise refusal(entry, what, hint=mend(entry) if behind == NOT_INSTALLED else upgrade_hint(behind, core=core))
    abstract = sorted(getattr(target, "__abstractmethods__", ()))
    if abstract:
        raise refusal(entry, f"{name} does not define {', '.join(abstract)}", hint=mend(entry))
    farewell = SERVED.farewell(version)
    return (str(refusal(entry, f"{name} states {farewell}", hint=mend(entry))),) if farewell else ()


_TYPES: Final = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int), "duration": (float, int)}
_TAKES_ARGS: Final = 0x04
_TAKES_KWARGS: Final = 0x08
_NOT_PLAIN: Final = {0x20: "a generator", 0x80: "a coroutine", 0x200: "an asynchronous generator"}
"""By flag of a code object: what a call gives in place of an answer."""
_UNTYPABLE: Final = frozenset(" ,='\"\t\n")
"""What the name of an option can't have, to be written as KEY=VALUE,KEY=VALUE."""
_SINCE_2: Final = frozenset(
    (
        *("close", "on_moment", "on_run_event", "on_steps_asked", "on_steps_seen", "worker_starter", "explain"),
        "master_server",
        "request_restart",
        *("keep_age_s", "survey"),
    )
)
"""Methods that version 1 of the interfaces has not: what a class of that version calls so is its own."""
_NEAR: Final = 0.8
"""How alike two names are of which one is a slip, as `difflib` counts."""


def fault_of_options(declared: object) -> str:
    """Return what is wrong with what a plugin has as `options`, to follow its name; empty: nothing."""
    if not isinstance(declared, (tuple, list)):
        return f"has options of type {type(declared).__name__}; a tuple of OptionSpec is needed"
    seen: set[str] = set()
    for spec in declared:
        if not isinstance(spec, OptionSpec):
            return f"has {spec!r} in options; an OptionSpec is needed"
        fault = fault_of_option(spec)
        if fault:
            return f"has an option {spec.name!r} {fault}"
        if spec.name in seen:
            return f"has two options named {spec.name!r}; one is needed"
        seen.add(spec.name)
    return ""


def fault_of_option(spec: OptionSpec) -> str:
    """Return what is wrong with one declaration, to follow its name; empty: nothing."""
    if not isinstance(spec.name, str) or not spec.name or _UNTYPABLE & set(spec.name):
        return "that can't be typed; a word of letters, digits and underscores is needed"
    if spec.type not in OPTION_TYPES:
        return f"with type {spec.type!r}; one of {', '.join(OPTION_TYPES)} is needed"
    if not isinstance(spec.choices, (tuple, list)) or not all(isinstance(choice, str) for choice in spec.choices):
        return f"with choices {spec.choices!r}; a tuple of texts is needed"
    if spec.default is None or _may_be_default(spec.default, spec):
        return ""
    return f"with default {spec.default!r}; {wanted(spec)} is needed"


def _may_be_default(value: object, spec: OptionSpec) -> bool:
    if spec.many:
        return isinstance(value, str) and all(parse(part.strip(), spec) is not None for part in value.split(":"))
    if type(value) not in _TYPES[spec.type] or (isinstance(value, float) and not math.isfinite(value)):
        return False
    return str(value) in spec.choices if spec.choices else isinstance(value, str | float | int) and fits(value, spec)


def fault_of_methods(cls: type, base: type) -> str:
    """Return which method can't be called as the core calls it, and what would fit; empty: all can.

    Args:
        cls: The plugin's class.
        base: The interface, which it derives from.
    """
    later = _SINCE_2 if getattr(cls, "api_version", None) == 1 else frozenset()
    for name, own in _own(cls, base):
        wanted = _found(base, name)
        if not isinstance(wanted, FunctionType) or name in later:
            continue  # a property, or nothing of the interface's
        if own is None or isinstance(own, (str, int, float, tuple, list, dict, set)):
            return f"has {own!r} as {name}; a method is needed"
        function = own.__func__ if isinstance(own, (staticmethod, classmethod)) else own
        if not isinstance(function, FunctionType):
            continue  # a callable of its own kind, of which nothing is known
        kind = next((what for flag, what in _NOT_PLAIN.items() if function.__code__.co_flags & flag), "")
        if kind:
            return f"has {name} as {kind}, which nothing awaits; an ordinary method is needed"
        if not _fits(function, wanted.__code__, bound=not isinstance(own, staticmethod)):
            return f"has {name}{_shown(function)}; {name}{_shown(wanted)} is needed"
    return ""


def _own(cls: type, base: type) -> Iterator[tuple[str, object]]:
    """Give what is in a class and what it inherits before the interface, each public name once, as it is written."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if owner in base.__mro__:
            continue  # the interface, or what it derives from itself
        for name, value in vars(owner).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _found(cls: type, name: str) -> object:
    """Return an attribute as it is written, none of it bound; None: there is none."""
    return next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), None)


def _fits(function: FunctionType, wanted: CodeType, *, bound: bool) -> bool:
    """Return whether a function takes the interface's arguments: those by position, then those by keyword."""
    code = function.__code__
    by_position, by_keyword = wanted.co_argcount - 1, set(_keywords(wanted))
    names = code.co_varnames[: code.co_argcount]
    first = int(bound and bool(names))  # `self` may be the first of *args
    if bound and not names and not code.co_flags & _TAKES_ARGS:
        return False
    room = len(names) - first
    if room < by_position and not code.co_flags & _TAKES_ARGS:
        return False
    needed = names[first + by_position : len(names) - len(function.__defaults__ or ())]
    optional = function.__kwdefaults__ or {}
    needed_keywords = [name for name in _keywords(code) if name not in optional]
    if not by_keyword.issuperset((*needed, *needed_keywords)):
        return False
    takes = {*names[max(first + by_position, code.co_posonlyargcount) :], *_keywords(code)}
    return bool(code.co_flags & _TAKES_KWARGS) or takes >= by_keyword


def _keywords(code: CodeType) -> tuple[str, ...]:
    """Return the arguments that are given by keyword alone."""
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _shown(function: FunctionType) -> str:
    """Return a signature without its types, as an author would write it."""
    import inspect  # only for a fault

    signature = inspect.signature(function, follow_wrapped=False)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def misnamed_methods(cls: type, base: type, *, every: bool = False) -> list[tuple[str, list[str]]]:
    """Return the methods that nothing calls though their names look so, each with those that were probably meant.

    Args:
        cls: The plugin's class.
        base: The interface.
        every: Also those whose names don't begin with `on_`, and those that are near none.
    """
    interface = [name for name in dir(base) if not name.startswith("_")]
    strange = [
        name
        for name, value in _own(cls, base)
        if isinstance(value, FunctionType) and name not in interface and (every or name.startswith("on_"))
    ]
    if not strange:
        return []
    import difflib  # only for a class with such methods

    found = []
    for name in strange:
        near = difflib.get_close_matches(name, interface, n=2, cutoff=_NEAR)
        if name.startswith("on_"):
            found += [(name, near)] if near or every else []
        elif near and not name.startswith(near[0]):  # `closed` is no slip for `close`
            found.append((name, near))
    return found
