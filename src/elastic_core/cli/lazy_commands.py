"""A group of commands below `elastic`, each imported when it is used."""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from elastic_core.errors import ConfigError


class LazyCommands(click.Group):
    """Knows its commands by name, and says what there is where it does not."""

    commands_of: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Module (its attribute `command` is the click command) and help line of each subcommand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which people need them."""
        return list(self.commands_of)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is no such."""
        if cmd_name not in self.commands_of:
            return None
        command: Any = importlib.import_module(self.commands_of[cmd_name][0]).command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.commands_of.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say what there is."""
        if args[0] not in self.commands_of and not ctx.resilient_parsing:
            known, group = ", ".join(self.commands_of), f"elastic {self.name}"
            raise ConfigError(f"{group} has no command {args[0]!r}; it has {known}", hint=f"{group} --help")
        return super().resolve_command(ctx, args)
