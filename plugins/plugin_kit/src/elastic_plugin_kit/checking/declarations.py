"""What of a plugin's class would fail at its first call: its methods' signatures, and names that nothing calls."""

import difflib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Final

_TAKES_ARGS: Final = 0x04
_TAKES_KWARGS: Final = 0x08
_NOT_PLAIN: Final = {0x20: "a generator", 0x80: "a coroutine", 0x200: "an asynchronous generator"}
"""By flag of a code object: what a call gives in place of an answer."""
_NEAR: Final = 0.8
"""How alike two names are of which one is a slip, as `difflib` counts."""


def fault_of_methods(cls: type, base: type) -> str:
    """Return which method can't be called as the core calls it, and what would fit; empty: all can.

    Args:
        cls: The plugin's class.
        base: The interface, which it derives from.
    """
    for name, own in _own(cls, base):
        wanted = _found(base, name)
        if not isinstance(wanted, FunctionType):
            continue  # a property, or nothing of the interface's
        if own is None or isinstance(own, (str, int, float, tuple, list, dict, set)):
            return f"has {own!r} as {name}; expected a method"
        function = own.__func__ if isinstance(own, (staticmethod, classmethod)) else own
        if not isinstance(function, FunctionType):
            continue  # a callable of its own kind, of which nothing is known
        kind = next((what for flag, what in _NOT_PLAIN.items() if function.__code__.co_flags & flag), "")
        if kind:
            return f"has {name} as {kind}, which nothing awaits; expected an ordinary method"
        if not _fits(function, wanted.__code__, bound=not isinstance(own, staticmethod)):
            return f"has {name}{_shown(function)}; expected {name}{_shown(wanted)}"
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
    signature = inspect.signature(function, follow_wrapped=False)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def misnamed_methods(cls: type, base: type) -> list[tuple[str, list[str]]]:
    """Return the methods that nothing calls though their names look so, each with those that were probably meant.

    Args:
        cls: The plugin's class.
        base: The interface.
    """
    interface = [name for name in dir(base) if not name.startswith("_")]
    found = []
    for name, value in _own(cls, base):
        if not isinstance(value, FunctionType) or name in interface:
            continue
        near = difflib.get_close_matches(name, interface, n=2, cutoff=_NEAR)
        if name.startswith("on_") or (near and not name.startswith(near[0])):  # `closed` is no slip for `close`
            found.append((name, near))
    return found
