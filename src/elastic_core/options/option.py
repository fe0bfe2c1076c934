"""One option of `elastic run`: its names, its text for people, and the setting that it gives."""

import enum
from collections.abc import Callable
from typing import Final

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
