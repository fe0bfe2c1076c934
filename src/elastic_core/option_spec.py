"""What an option is, and its value in the settings of a plugin.

Options are values that a plugin takes by name, or flags of `elastic run`, the core's own or a hook's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, overload

import msgspec

_T = TypeVar("_T", bound=str | float)  # and int and bool, which are floats to a type checker
_D = TypeVar("_D")

VARIABLE_PREFIX: Final = "PET_"
"""How the variables of options begin, as torchrun's do."""


class OptionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One option that a plugin declares, read by `settings.option(name, kind)`; unknown ones are errors.

    `type` is one of `str`, `int`, `float`, `bool`, `duration` (`30s`, `5m`, seconds: a float); `least`, `most` and
    `above` bound numbers and durations; `unit` is for people. Without `default`, and not `required`, there may be no
    value.
    """

    name: str
    """Lower case, digits and underscores."""
    type: str = "str"
    """Of what type its value is."""
    default: str | int | float | bool | None = None
    """The value where none is given; None: there is none."""
    required: bool = False
    """Whether a run without it is refused."""
    unit: str = ""
    """For people: `seconds`."""
    help: str = ""
    """A line for people."""
    choices: tuple[str, ...] = ()
    """The values that there are, as they are typed; empty: any."""
    least: float | None = None
    """The least value; None: any."""
    above: float | None = None
    """What the value must be more than; None: any will do."""
    most: float | None = None
    """The greatest value; None: any."""
    many: bool = False
    """A list, read by `settings.option_list`: between colons, or, of a flag, one by one. `default` has colons."""


class RunOption(OptionSpec, frozen=True, kw_only=True):
    """A flag of `elastic run`: the core's own, or a hook's, by an entry point of group `elastic_core.options`.

    `name` with underscores; the entry point has the flag's name, with dashes. A `bool` takes no value on the command
    line. The module that declares it is imported where the flag, its variable, or help is wanted: it imports nothing
    but `elastic_core.api`.
    """

    hook: str = ""
    """Where the hook's class is, `package.module:Class`: imported and built only where one of its options is given.
    Empty for the core's own."""
    hook_name: str = ""
    """What that hook is called, in lines, `status.json`, incidents and `-p no:NAME`: the same in all options of its
    class. Empty: as the flag, of several that are given the first by alphabet."""
    heading: str = ""
    """Under which the help has it; empty: the distribution's name."""
    metavar: str = ""
    """Name of the value in the help. Empty: the choices, the unit, or a name by type (`N`, `SECONDS`, `TEXT`)."""
    default_note: str = ""
    """For the help, where there is no default: what holds without it."""
    fault: Callable[[str], str] | None = None
    """Validator: returns what is expected instead of a text, or "" if the text is valid. `None` disables validation."""
    hint: str = ""
    """What to try in place of a value that is refused; empty: the nearest of `choices`, or the default."""
    variable: str = ""
    """One of torch's, `TORCHELASTIC_…`, that gives the value too: an entry point of its name, in capitals, beside the
    flag's or in its place."""
    time_limit: bool = False
    """It limits how long workers may take for something: 0, without a limit, where `--debug-rank` has one debugged."""
    torch: bool = False
    """Whether torchrun has the flag too, with its default and meaning."""
    short: str = ""
    """The letter that stands for it behind one dash; of the core's own."""
    env: str | None = None
    """The variable that gives the value where the command line does not; None: `PET_` and the name; empty: none."""
    field: str = ""
    """The setting that one of the core's own gives, by its path: `nodes.spares`; empty: none, or several."""
    read: Callable[..., object] | None = None
    """What makes that setting, given the user's choices and `name`; None: it takes more than this option."""

    @property
    def flag(self) -> str:
        """The option as it is typed, without the two dashes."""
        return self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to type it in full, the one with dashes first."""
        long = dict.fromkeys((f"--{self.flag}", f"--{self.name}"))
        return (f"-{self.short}", *long) if self.short else tuple(long)

    @property
    def env_name(self) -> str:
        """The variable that gives it; empty: none does."""
        return VARIABLE_PREFIX + self.name.upper() if self.env is None else self.env

    @property
    def value_name(self) -> str:
        """The value in the help: the choices, `N` or `SECONDS` by type, if `metavar` is empty; empty for a flag."""
        by_type = {"bool": "", "int": "N", "duration": "SECONDS", "str": "TEXT"}.get(self.type, self.type.upper())
        return "" if self.type == "bool" else self.metavar or "|".join(self.choices) or self.unit.upper() or by_type

    @property
    def default_text(self) -> str | None:
        """The default as a user would type it; None: there is none."""
        if self.default is None or isinstance(self.default, str):
            return self.default
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


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
