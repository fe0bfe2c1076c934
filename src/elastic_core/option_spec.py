"""The declaration of an option, and access to its value in a plugin's settings.

Options are values that a plugin reads by name, or flags of `elastic run`: the core's own or a hook's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, overload

import msgspec

_T = TypeVar("_T", bound=str | float)  # and int and bool, which are floats to a type checker
_D = TypeVar("_D")

VARIABLE_PREFIX: Final = "PET_"
"""The prefix of the options' variables, as in torchrun."""


class OptionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One option that a plugin declares and reads by `settings.option(name, kind)`. Undeclared options are errors.

    `type` is one of `str`, `int`, `float`, `bool`, `duration` (`30s`, `5m`, seconds: a float). `least`, `most` and
    `above` bound numbers and durations; `unit` is for users. An option without `default` that is not `required` may
    have no value.
    """

    name: str
    """The name, in lower case, digits and underscores."""
    type: str = "str"
    """The type of its value."""
    default: str | int | float | bool | None = None
    """The value if none is given. `None` means no default."""
    required: bool = False
    """Whether a run without the option is rejected."""
    unit: str = ""
    """The unit, for users, such as `seconds`."""
    help: str = ""
    """One line for users."""
    choices: tuple[str, ...] = ()
    """The allowed values, as typed. Empty means any value."""
    least: float | None = None
    """The least allowed value. `None` means no bound."""
    above: float | None = None
    """A bound that the value must exceed. `None` means no bound."""
    most: float | None = None
    """The greatest allowed value. `None` means no bound."""
    many: bool = False
    """Whether it is a list (`settings.option_list`): values between colons, as in `default`, or one per flag."""
    words: tuple[str, ...] = ()
    """Words in lower case that a number or a duration may be instead, such as `auto`: the value is then a `str`."""


class RunOption(OptionSpec, frozen=True, kw_only=True):
    """A flag of `elastic run`: the core's own, or a hook's, by an entry point of the group `elastic_core.options`.

    `name` has underscores; the entry point has the flag's name, with dashes. A `bool` has no value on the command line.
    The declaring module is imported if the flag, its variable or help is used; it should import only
    `elastic_core.api`.
    """

    hook: str = ""
    """The hook's class, `package.module:Class`: imported if one of its options is given. Empty for the core's
    options."""
    hook_name: str = ""
    """The hook's name in lines, `status.json`, incidents and `-p no:NAME`: the same in all options of its class. If
    empty, the flag's name, of several given flags the first by alphabet."""
    heading: str = ""
    """The heading in the help. If empty, the distribution's name."""
    metavar: str = ""
    """The name of the value in the help. If empty: the choices, the unit, or `N`, `SECONDS` or `TEXT` by type."""
    default_note: str = ""
    """For the help of an option without default: the behaviour without it."""
    fault: Callable[[str], str] | None = None
    """Validator: returns what is expected instead of a text, or "" if the text is valid. `None` disables validation."""
    hint: str = ""
    """What to try if a value is rejected. If empty, the nearest of `choices`, or the default."""
    variable: str = ""
    """A variable of torch, `TORCHELASTIC_…`, that sets the value too: an entry point has its name, in capitals, beside
    the flag's or instead of it."""
    time_limit: bool = False
    """Whether it limits how long workers may take. With `--debug-rank`, its value is 0, which means no limit."""
    torch: bool = False
    """Whether torchrun has the same flag, with the same default and meaning."""
    short: str = ""
    """The option's letter after one dash; for the core's own options."""
    env: str | None = None
    """The variable that sets the value after the command line. `None`: `PET_` and the name; empty: no variable."""
    field: str = ""
    """The path of the setting that the option sets, such as `nodes.spares`. Empty: none or several; core only."""
    read: Callable[..., object] | None = None
    """Returns that setting, given the user's choices and `name`. `None`: the setting depends on other options too."""

    @property
    def flag(self) -> str:
        """The option as it is typed, without the two dashes."""
        return self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """All full spellings, the one with dashes first."""
        long = dict.fromkeys((f"--{self.flag}", f"--{self.name}"))
        return (f"-{self.short}", *long) if self.short else tuple(long)

    @property
    def env_name(self) -> str:
        """The variable that sets the option. Empty if there is none."""
        return VARIABLE_PREFIX + self.name.upper() if self.env is None else self.env

    @property
    def value_name(self) -> str:
        """The value's name in the help: `metavar`, or the choices, the unit or a name by type. Empty for a flag."""
        by_type = {"bool": "", "int": "N", "duration": "SECONDS", "str": "TEXT"}.get(self.type, self.type.upper())
        return "" if self.type == "bool" else self.metavar or "|".join(self.choices) or self.unit.upper() or by_type

    @property
    def default_text(self) -> str | None:
        """The default as a user would type it. `None` means no default."""
        if self.default is None or isinstance(self.default, str):
            return self.default
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


class OptionValues:
    """The plugin's options in its settings, converted, with defaults."""

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
            name: The declared name.
            kind: `str`, `int`, `float` or `bool`; for a duration `float`, in seconds.
            otherwise: The result if the option was not given and has no default.

        Raises:
            LookupError: The option is not declared, or has no value and `otherwise` was not given.
            TypeError: The option has another type.
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
        """Return the values of a list option (`OptionSpec.many`). Raises the errors of `option`."""
        if name not in self.lists:
            raise _undeclared("list", name, self.lists)
        return tuple(_as(kind, name, value) for value in self.lists[name])


def _undeclared(what: str, name: str, declared: Iterable[str]) -> LookupError:
    return LookupError(f"no {what} {name!r} is declared in `options`; declared: {', '.join(declared) or 'none'}")


def _as(kind: type[_T], name: str, value: str | float) -> _T:
    # An int is accepted as a float; a bool is not a number.
    if type(value) is int and issubclass(kind, float):
        return kind(value)
    if type(value) is not kind:
        raise TypeError(f"option {name!r} is {value!r}, of type {type(value).__name__}, not {kind.__name__}")
    return value
