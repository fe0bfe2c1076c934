"""The user's choices of options of `elastic run`, and the settings that are being computed from them.

The command line overrides a variable, which overrides a proposal of the environment (`options.environments`), which
overrides the default.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import OptionSpec, RunOption
from elastic_core.plugins.conversion import GivenValue, needed, parse


class Section(enum.StrEnum):
    """The headings of the help."""

    WORKERS = "Workers"
    NODES = "Nodes and rendezvous"
    RESTARTS = "Restarts"
    LOGS = "Logs"
    SIGNALS = "Signals and stop"
    DEBUGGING = "Debugging"
    COMPATIBILITY = "Compatibility"


def section(heading: Section, *options: RunOption) -> tuple[RunOption, ...]:
    """Return options with a heading of the help."""
    return tuple(replace(option, heading=heading) for option in options)


Given = Mapping[str, str | bool | tuple[str, ...]]


class Proposed(NamedTuple):
    """A value that an environment proposes, such as `Slurm`, `4`, `SLURM_STEP_NUM_NODES`."""

    title: str
    text: str
    reason: str


class Choices:
    """The value of each option as text, with its origin.

    `given` is the command line: option identifier to text, to True for a flag, to a tuple for a repeatable option;
    options that were not given are missing. An empty variable in `environ` counts as unset. `proposed` values are
    used if neither the command line nor a variable gives one.
    """

    def __init__(
        self,
        given: Given,
        environ: Mapping[str, str],
        options: Mapping[str, RunOption],
        proposed: Mapping[str, Proposed] | None = None,
    ) -> None:
        self._given = given
        self.environ = environ
        self.options = options
        self.proposed = proposed or {}

    def _variable(self, option: RunOption) -> str | None:
        return None if option.name in self._given else self.environ.get(option.env_name) or None

    def chosen(self, dest: str) -> bool:
        """Return whether the command line, a variable or a proposal gives the option."""
        return dest in self._given or self._else_than_default(dest) is not None

    def _else_than_default(self, dest: str) -> str | None:
        # The value of a variable or a proposal, if the command line has none.
        variable = self._variable(self.options[dest])
        if variable is None and dest in self.proposed and dest not in self._given:
            return self.proposed[dest].text
        return variable

    def origin(self, dest: str) -> str:
        """Return the value's origin for users: `flag --nnodes`, `env PET_NNODES`, `Slurm: …`, `default`."""
        option = self.options[dest]
        if dest in self._given:
            return f"flag --{option.flag}"
        if self._variable(option) is not None:
            return f"env {option.env_name}"
        proposed = self.proposed.get(dest)
        return "default" if proposed is None else f"{proposed.title}: {proposed.reason}"

    def text(self, dest: str) -> str | None:
        """Return the value as text. `None` if there is neither a value nor a default."""
        given = self._given.get(dest)
        if isinstance(given, str):
            return given
        text = self._else_than_default(dest)
        return self.options[dest].default_text if text is None else text

    def texts(self, dest: str) -> tuple[str, ...]:
        """Return all values of a repeatable option."""
        given = self._given.get(dest)
        if isinstance(given, tuple):
            return given
        text = self._else_than_default(dest)
        return () if text is None else (text,)

    def flag(self, dest: str) -> bool:
        """Return whether a flag is on.

        Raises:
            ConfigError: The text of its variable is neither true nor false.
        """
        if dest in self._given:
            return bool(self._given[dest])
        text = (self._else_than_default(dest) or "").strip()
        value = parse(text, self.options[dest]) if text else False
        if value is None:
            self.reject(dest, "yes or no", hint="1 or 0 (also true or false, yes or no)")
        return value is True

    def value(self, dest: str) -> GivenValue:
        """Return the value, of the declared type. `None` if there is neither a value nor a default.

        Raises:
            ConfigError: The value is invalid.
        """
        option = self.options[dest]
        if option.many:
            return tuple(self.converted(dest, text) for text in self.texts(dest))
        if option.type == "bool":
            return self.flag(dest)
        text = self.text(dest)
        return None if text is None else self.converted(dest, text)

    def converted(self, dest: str, text: str, spec: OptionSpec | None = None) -> str | int | float | bool:
        """Return the value of a text by the option's declaration, or by `spec` instead. Raises as `value`."""
        option = self.options[dest]
        value = parse(text, spec or option)
        if value is None:
            hint = option.hint or nearest(text, option.choices)
            self.reject(dest, needed(text, spec or option), hint=hint)
        return value

    def label(self, dest: str, between: str = "") -> str:
        """Return the option as the user wrote it, for messages: `--nnodes 'two'`, `PET_NNODES='two'`."""
        option = self.options[dest]
        variable = self._variable(option)
        if variable is not None:
            return f"{option.env_name}{between or '='}{variable!r}"
        by = "" if dest in self._given or dest not in self.proposed else f" by {self.origin(dest)}"
        return f"--{option.flag}" + (f"{between or ' '}{self.text(dest) or ''!r}" if option.type != "bool" else "") + by

    def reject(self, dest: str, needed: str, *, hint: str = "", cause: BaseException | None = None) -> NoReturn:
        """Reject the option's value: expected was `needed`. Without a hint, the hint is the default."""
        raise ConfigError(f"{self.label(dest, ': ')}; expected {needed}", hint=hint or self._way_back(dest)) from cause

    def _way_back(self, dest: str) -> str:
        option, default = self.options[dest], self.options[dest].default_text
        by_variable = self._variable(option) is not None
        if not by_variable and dest in self.proposed and dest not in self._given:
            return f"give --{option.flag}, or --environment none"
        if default is None:
            return f"unset {option.env_name}" if by_variable else f"leave --{option.flag} out"
        return f"{option.env_name}={default}, the default" if by_variable else f"--{option.flag} {default}, the default"


class Draft:
    """A run's settings while they are computed: fields by path (`nodes.spares`) with their origins, and notices."""

    def __init__(self, choices: Choices, environ: Mapping[str, str]) -> None:
        self.choices = choices
        self.environ = environ
        self.fields: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        self.notices: list[str] = []

    def set(self, field: str, value: object, origin: str) -> None:
        """Set one field; a later call overrides an earlier one."""
        self.fields[field] = value
        self.origins[field] = origin

    def take(self, dest: str, value: object) -> None:
        """Set the field of an option."""
        self.set(self.choices.options[dest].field, value, self.choices.origin(dest))

    def settle(self, options: Iterable[RunOption]) -> None:
        """Set the fields of the options that can be read independently.

        Raises:
            ConfigError: A value is malformed.
        """
        for option in options:
            if option.read is not None:
                self.take(option.name, option.read(self.choices, option.name))

    def mark(self, name: str, origin: str) -> None:
        """Keep the origin of a hook's option, which has no field."""
        self.origins[name] = origin

    def notice(self, *lines: str) -> None:
        """Keep lines that the user sees before the workers start."""
        self.notices += lines

    def name(self, dest: str) -> str:
        """Return the source of the option's value, such as `--nnodes`, `PET_NNODES` or `SLURM_STEP_NUM_NODES`."""
        return self.choices.origin(dest).rpartition(" ")[-1]
