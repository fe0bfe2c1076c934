"""The options that a plugin was given, read as the types that they were declared with."""

from collections.abc import Iterable, Mapping
from typing import TypeVar, overload

_T = TypeVar("_T", bound=str | float)  # and int and bool, which are floats to a type checker
_D = TypeVar("_D")


class OptionValues:
    """What the settings of every kind of plugin have: its options, converted, defaults filled in."""

    __slots__ = ()

    options: Mapping[str, str | int | float | bool | None]
    lists: Mapping[str, tuple[str | int | float | bool, ...]]

    @overload
    def option(self, name: str, kind: type[_T], /) -> _T: ...
    @overload
    def option(self, name: str, kind: type[_T], otherwise: _D, /) -> _T | _D: ...
    def option(self, name: str, kind: type[_T], /, *otherwise: _D) -> _T | _D:
        """Return an option's value.

        Args:
            name: As it was declared.
            kind: `str`, `int`, `float` or `bool`; of a duration `float`, which is its seconds.
            otherwise: What is returned where it was not given and has no default.

        Raises:
            LookupError: it is not declared, or has no value and `otherwise` was not given.
            TypeError: it is of another type.
        """
        if name not in self.options:
            raise _undeclared("option", name, self.options)
        value = self.options[name]
        if value is not None:
            return _as(kind, name, value)
        if not otherwise:
            raise LookupError(f"option {name!r} was not given and has no default: option({name!r}, …, None)")
        return otherwise[0]

    def option_list(self, name: str, kind: type[_T], /) -> tuple[_T, ...]:
        """Return the values of an option that is a list (`OptionSpec.many`); raises as `option`."""
        if name not in self.lists:
            raise _undeclared("list", name, self.lists)
        return tuple(_as(kind, name, value) for value in self.lists[name])


def _undeclared(what: str, name: str, declared: Iterable[str]) -> LookupError:
    return LookupError(f"no {what} {name!r} is declared in `options`; declared: {', '.join(declared) or 'none'}")


def _as(kind: type[_T], name: str, value: str | float) -> _T:
    """Return a value that is of the type; a whole number is a number, true and false are none."""
    if type(value) is int and issubclass(kind, float):
        return kind(value)
    if type(value) is not kind:
        raise TypeError(f"option {name!r} is {value!r}, of type {type(value).__name__}, not {kind.__name__}")
    return value
