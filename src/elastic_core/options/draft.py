"""A run's settings while they are being worked out: each value with its origin, and what the user must be told."""

from collections.abc import Mapping

import msgspec

from elastic_core.options.choices import Choices
from elastic_core.options.settings import RunSettings
from elastic_core.types import Record


class Resolution(Record, frozen=True, kw_only=True):
    """Settings, and where each field's value is from, for people."""

    settings: RunSettings
    origins: Mapping[str, str]


class Draft:
    """Collects the fields of `RunSettings`.

    Args:
        choices: What the user chose.
        environ: The environment that the run starts in.
    """

    def __init__(self, choices: Choices, environ: Mapping[str, str]) -> None:
        """Start without any field."""
        self.choices = choices
        self.environ = environ
        self._fields: dict[str, object] = {}
        self._origins: dict[str, str] = {}
        self._notices: list[str] = []

    def set(self, field: str, value: object, origin: str) -> None:
        """Settle one field; a later word replaces an earlier one."""
        self._fields[field] = value
        self._origins[field] = origin

    def take(self, field: str, value: object, dest: str | None = None) -> None:
        """Settle one field from the option of that name (or `dest`)."""
        self.set(field, value, self.choices.origin(dest or field))

    def mark(self, name: str, origin: str) -> None:
        """Keep where an option of a hook is from, which is no field of its own."""
        self._origins[name] = origin

    def tell(self, *lines: str) -> None:
        """Keep lines for the user to see before the workers start."""
        self._notices += lines

    def name(self, dest: str) -> str:
        """Return what the user gave the option with: `--nnodes` or `PET_NNODES`."""
        return self.choices.origin(dest).rpartition(" ")[-1]

    def finish(self) -> Resolution:
        """Return the settings."""
        settings = msgspec.convert({**self._fields, "notices": tuple(self._notices)}, RunSettings)
        return Resolution(settings=settings, origins=dict(self._origins))
