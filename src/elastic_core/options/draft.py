"""A run's settings while they are being worked out: each value with its origin, and notices for the user."""

from collections.abc import Iterable, Mapping

from elastic_core.options.choices import Choices
from elastic_core.options.option import OptionRow


class Draft:
    """Collects the fields of `RunSettings`, by path: `nodes.spares`.

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
        """Return what the user gave the option with: `--nnodes` or `PET_NNODES`."""
        return self.choices.origin(dest).rpartition(" ")[-1]
