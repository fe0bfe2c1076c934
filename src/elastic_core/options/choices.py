"""An option of `elastic run`: its row, what the user chose of it, and the settings while they are worked out of that.

The command line beats a variable, which beats what the environment proposes (`options.environments`), which beats the
default.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

from elastic_core.errors import ConfigError
from elastic_core.types import Record

VARIABLE_PREFIX: Final = "PET_"
"""How the variables of options begin, as torchrun's do."""


class Section(enum.StrEnum):
    """Where an option stands in the help."""

    WORKERS = "Workers"
    NODES = "Nodes and rendezvous"
    RESTARTS = "Restarts"
    LOGS = "Logs"
    SIGNALS = "Signals and stop"
    DEBUGGING = "Debugging"
    COMPATIBILITY = "Compatibility"


class OptionRow(Record, frozen=True, kw_only=True):
    """One option.

    `default` is text as a user would type it; None: no default, or derived. `metavar` None makes it a flag. `env` is
    the variable that gives its value where the command line does not. `many`: may be given more than once.
    """

    name: str
    short: str | None = None
    metavar: str | None = None
    default: str | None = None
    default_note: str = ""
    """For the help, where the default is derived."""
    section: str
    """One of `Section`, or the heading of the hook that brings it."""
    help: str
    torch: bool = False
    many: bool = False
    env: str | None = None
    choices: tuple[str, ...] = ()
    field: str = ""
    """The setting that it gives, by its path: `nodes.spares`; empty: none, or several."""
    read: Callable[..., object] | None = None
    """What makes the setting of it, given the choices and `dest`; None: it takes more than this option."""

    @property
    def dest(self) -> str:
        """The option as an identifier."""
        return self.name.replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to type it in full, the one with dashes first."""
        long = (f"--{self.name}",) if "-" not in self.name else (f"--{self.name}", f"--{self.dest}")
        return long if self.short is None else (f"-{self.short}", *long)


def row(
    section: Section,
    name: str,
    metavar: str | None,
    help_text: str,
    *,
    default: str | None = None,
    default_note: str = "",
    short: str | None = None,
    torch: bool = False,
    many: bool = False,
    env: bool = True,
    choices: tuple[str, ...] = (),
    field: str = "",
    read: Callable[..., object] | None = None,
) -> OptionRow:
    """Return a row; its environment variable is torch's spelling unless `env` is false."""
    return OptionRow(
        name=name,
        short=short,
        metavar=metavar,
        default=default,
        default_note=default_note,
        section=section,
        help=help_text,
        torch=torch,
        many=many,
        env=VARIABLE_PREFIX + name.replace("-", "_").upper() if env else None,
        choices=choices,
        field=field,
        read=read,
    )


_TRUE = frozenset(("1", "true", "yes", "on", "t", "y"))
_FALSE = frozenset(("0", "false", "no", "off", "f", "n", ""))
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
        rows: The options, by identifier.
        proposed: Values of options for which neither gives one.
    """

    def __init__(
        self,
        given: Given,
        environ: Mapping[str, str],
        rows: Mapping[str, OptionRow],
        proposed: Mapping[str, Proposed] | None = None,
    ) -> None:
        self._given = given
        self.environ = environ
        self.rows = rows
        self.proposed = proposed or {}

    def _variable(self, row: OptionRow) -> str | None:
        """Return the text of the option's variable, None where it does not count."""
        return (self.environ.get(row.env) or None) if row.env is not None and row.dest not in self._given else None

    def chosen(self, dest: str) -> bool:
        """Return whether there is more than the default: by the command line, a variable or a proposal."""
        return dest in self._given or self._else_than_default(dest) is not None

    def _else_than_default(self, dest: str) -> str | None:
        """Return what a variable or a proposal has, where the command line has nothing."""
        variable = self._variable(self.rows[dest])
        if variable is None and dest in self.proposed and dest not in self._given:
            return self.proposed[dest].text
        return variable

    def origin(self, dest: str) -> str:
        """Return where the value is from, for people: `flag --nnodes`, `env PET_NNODES`, `Slurm: …`, `default`."""
        row = self.rows[dest]
        if dest in self._given:
            return f"flag --{row.name}"
        if self._variable(row) is not None:
            return f"env {row.env}"
        proposed = self.proposed.get(dest)
        return "default" if proposed is None else f"{proposed.title}: {proposed.reason}"

    def text(self, dest: str) -> str | None:
        """Return the value as text; None where there is neither a value nor a default."""
        given = self._given.get(dest)
        if isinstance(given, str):
            return given
        text = self._else_than_default(dest)
        return self.rows[dest].default if text is None else text

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
        text = (self._else_than_default(dest) or "").strip().lower()
        if text not in _TRUE and text not in _FALSE:
            self.reject(dest, "yes or no", hint="1 or 0 (also true or false, yes or no)")
        return text in _TRUE

    def label(self, dest: str) -> str:
        """Return how the user wrote it, for messages: `--nnodes 'two'`, `PET_NNODES='two'`."""
        row = self.rows[dest]
        variable = self._variable(row)
        if variable is not None:
            return f"{row.env}={variable!r}"
        by = "" if dest in self._given or dest not in self.proposed else f" by {self.origin(dest)}"
        return f"--{row.name}{by}" if row.metavar is None else f"--{row.name} {self.text(dest) or ''!r}{by}"

    def reject(self, dest: str, needed: str, *, hint: str = "", cause: BaseException | None = None) -> NoReturn:
        """Refuse the option's value: it should have been `needed`; without a hint, the way back is the default."""
        raise ConfigError(f"{self.label(dest)}: needed {needed}", hint=hint or self._way_back(dest)) from cause

    def _way_back(self, dest: str) -> str:
        row = self.rows[dest]
        by_variable = self._variable(row) is not None
        if not by_variable and dest in self.proposed and dest not in self._given:
            return f"give --{row.name}, or --environment none"
        if row.default is None:
            return f"unset {row.env}" if by_variable else f"leave --{row.name} out"
        return f"{row.env}={row.default}, the default" if by_variable else f"--{row.name} {row.default}, the default"


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
        self.set(self.choices.rows[dest].field, value, self.choices.origin(dest))

    def settle(self, rows: Iterable[OptionRow]) -> None:
        """Settle the fields of those options that can be read one by one.

        Raises:
            ConfigError: a value is malformed.
        """
        for row in rows:
            if row.read is not None:
                self.take(row.dest, row.read(self.choices, row.dest))

    def mark(self, name: str, origin: str) -> None:
        """Keep where an option of a hook is from, which is no field of its own."""
        self.origins[name] = origin

    def notice(self, *lines: str) -> None:
        """Keep lines for the user to see before the workers start."""
        self.notices += lines

    def name(self, dest: str) -> str:
        """Return what gave the option: `--nnodes`, `PET_NNODES`, or `SLURM_STEP_NUM_NODES`, say."""
        return self.choices.origin(dest).rpartition(" ")[-1]
