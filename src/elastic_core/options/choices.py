"""What the user chose of the options of `elastic run`, and the settings while they are worked out of that.

The command line beats a variable, which beats what the environment proposes (`options.environments`), which beats the
default.
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
    """Return options under a heading of the help."""
    return tuple(replace(option, heading=heading) for option in options)


Given = Mapping[str, str | bool | tuple[str, ...]]


class Proposed(NamedTuple):
    """A value that an environment proposes, as text: `Slurm`, `4`, `SLURM_STEP_NUM_NODES`."""

    title: str
    text: str
    reason: str


class Choices:
    """The value of each option, as text, with its origin.

    Args:
        given: What the command line gave: option identifier to text; to True for a flag; to a tuple where an option
            may be repeated. Options that are not there were not given.
        environ: Where the other values are looked up, by the option's variable; an empty variable counts as unset.
        options: The options, by identifier.
        proposed: Values of options for which neither gives one.
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
        """Return the text of the option's variable, None where it does not count."""
        return None if option.name in self._given else self.environ.get(option.env_name) or None

    def chosen(self, dest: str) -> bool:
        """Return whether there is more than the default: by the command line, a variable or a proposal."""
        return dest in self._given or self._else_than_default(dest) is not None

    def _else_than_default(self, dest: str) -> str | None:
        """Return what a variable or a proposal has, where the command line has nothing."""
        variable = self._variable(self.options[dest])
        if variable is None and dest in self.proposed and dest not in self._given:
            return self.proposed[dest].text
        return variable

    def origin(self, dest: str) -> str:
        """Return where the value is from, for people: `flag --nnodes`, `env PET_NNODES`, `Slurm: …`, `default`."""
        option = self.options[dest]
        if dest in self._given:
            return f"flag --{option.flag}"
        if self._variable(option) is not None:
            return f"env {option.env_name}"
        proposed = self.proposed.get(dest)
        return "default" if proposed is None else f"{proposed.title}: {proposed.reason}"

    def text(self, dest: str) -> str | None:
        """Return the value as text; None where there is neither a value nor a default."""
        given = self._given.get(dest)
        if isinstance(given, str):
            return given
        text = self._else_than_default(dest)
        return self.options[dest].default_text if text is None else text

    def texts(self, dest: str) -> tuple[str, ...]:
        """Return all values of an option that may be repeated."""
        given = self._given.get(dest)
        if isinstance(given, tuple):
            return given
        text = self._else_than_default(dest)
        return () if text is None else (text,)

    def flag(self, dest: str) -> bool:
        """Return whether a flag is on.

        Raises:
            ConfigError: its variable is neither a yes nor a no.
        """
        if dest in self._given:
            return bool(self._given[dest])
        text = (self._else_than_default(dest) or "").strip()
        value = parse(text, self.options[dest]) if text else False
        if value is None:
            self.reject(dest, "yes or no", hint="1 or 0 (also true or false, yes or no)")
        return value is True

    def value(self, dest: str) -> GivenValue:
        """Return the value, of the declared type; None where there is neither one nor a default.

        Raises:
            ConfigError: the declaration excludes it.
        """
        option = self.options[dest]
        if option.many:
            return tuple(self.converted(dest, text) for text in self.texts(dest))
        if option.type == "bool":
            return self.flag(dest)
        text = self.text(dest)
        return None if text is None else self.converted(dest, text)

    def converted(self, dest: str, text: str, spec: OptionSpec | None = None) -> str | int | float | bool:
        """Return what a text stands for, by the option's declaration or, in its place, by `spec`; raises as `value`."""
        option = self.options[dest]
        value = parse(text, spec or option)
        if value is None:
            hint = option.hint or nearest(text, option.choices)
            self.reject(dest, needed(text, spec or option), hint=hint)
        return value

    def label(self, dest: str, between: str = "") -> str:
        """Return how the user wrote it, for messages: `--nnodes 'two'`, `PET_NNODES='two'`, or with `between`."""
        option = self.options[dest]
        variable = self._variable(option)
        if variable is not None:
            return f"{option.env_name}{between or '='}{variable!r}"
        by = "" if dest in self._given or dest not in self.proposed else f" by {self.origin(dest)}"
        return f"--{option.flag}" + (f"{between or ' '}{self.text(dest) or ''!r}" if option.type != "bool" else "") + by

    def reject(self, dest: str, needed: str, *, hint: str = "", cause: BaseException | None = None) -> NoReturn:
        """Refuse the option's value: it should have been `needed`; without a hint, the way back is the default."""
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
    """A run's settings while they are worked out: fields by path (`nodes.spares`) with their origins, and notices.

    Args:
        choices: What the user chose.
        environ: The environment that the run starts in.
    """

    def __init__(self, choices: Choices, environ: Mapping[str, str]) -> None:
        self.choices = choices
        self.environ = environ
        self.fields: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        self.notices: list[str] = []

    def set(self, field: str, value: object, origin: str) -> None:
        """Settle one field; a later word replaces an earlier one."""
        self.fields[field] = value
        self.origins[field] = origin

    def take(self, dest: str, value: object) -> None:
        """Settle the field of an option."""
        self.set(self.choices.options[dest].field, value, self.choices.origin(dest))

    def settle(self, options: Iterable[RunOption]) -> None:
        """Settle the fields of those options that can be read one by one.

        Raises:
            ConfigError: a value is malformed.
        """
        for option in options:
            if option.read is not None:
                self.take(option.name, option.read(self.choices, option.name))

    def mark(self, name: str, origin: str) -> None:
        """Keep where an option of a hook is from, which is no field of its own."""
        self.origins[name] = origin

    def notice(self, *lines: str) -> None:
        """Keep lines for the user to see before the workers start."""
        self.notices += lines

    def name(self, dest: str) -> str:
        """Return what gave the option: `--nnodes`, `PET_NNODES`, or `SLURM_STEP_NUM_NODES`, say."""
        return self.choices.origin(dest).rpartition(" ")[-1]
