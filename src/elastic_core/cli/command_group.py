"""A group of commands, the core's and those of distributions; each is imported when it is used."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import click

from elastic_core.errors import ConfigError, ElasticError, PluginError
from elastic_core.plugins.commands import CommandPlugins, load_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from elastic_core.plugins.discovery import PluginEntry


class CommandGroup(click.Group):
    """Commands by name. Commands of distributions follow the core's and cannot replace them."""

    commands_of: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """The core's commands: the module (its attribute `command` is the click command) and help line of each."""
    words: ClassVar[str] = ""
    """The prefix of this group's commands in entry points, such as `plugins `. Empty for `elastic` itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return [*self.commands_of, *_installed(ctx).names(self.words.strip())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command. `None` if there is none, or if it is broken during completion."""
        if cmd_name in self.commands_of:
            command: Any = importlib.import_module(self.commands_of[cmd_name][0]).command
            return command if isinstance(command, click.Command) else None
        try:
            entry = _installed(ctx).entry(f"{self.words}{cmd_name}")
            if entry is None:
                return None
            return load_command(entry)
        except PluginError:
            if ctx.resilient_parsing:
                return None
            raise

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # the exit code, by click's declaration anything
        """Run the command. An unexpected exception in a distribution's command names the distribution."""
        try:
            return super().invoke(ctx)
        except click.Abort as err:
            raise KeyboardInterrupt from err
        except (ElasticError, click.ClickException, click.exceptions.Exit, OSError):
            raise
        except Exception as err:
            entry = self._of_distribution(ctx, ctx.invoked_subcommand)
            if entry is None:
                raise
            from elastic_core.plugin_faults import text_of
            from elastic_core.plugins.entry_import import plugin_refusal

            hint = f"ELASTIC_DEBUG=1 shows where; report it to the authors of {entry.distribution}"
            raise plugin_refusal(entry, f"it raised {text_of(err, entry.value)}", hint=hint) from err

    def _of_distribution(self, ctx: click.Context, name: str | None) -> "PluginEntry | None":
        return None if name is None or name in self.commands_of else _installed(ctx).entry(f"{self.words}{name}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        lines = [(name, self._help_line(ctx, name)) for name in self.list_commands(ctx)]
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the matching names, without importing their commands, and this command's own options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        fits = [CompletionItem(name, help=self._help_line(ctx, name)) for name in names]
        return fits + click.Command.shell_complete(self, ctx, incomplete)

    def _help_line(self, ctx: click.Context, name: str) -> str:
        if name in self.commands_of:
            return self.commands_of[name][1]
        return _installed(ctx).help_line(f"{self.words}{name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown name raises an error that lists the commands."""
        name = args[0]
        if not ctx.resilient_parsing and name not in self.commands_of and name not in self.list_commands(ctx):
            raise self.unknown(ctx, name)
        return super().resolve_command(ctx, args)

    def unknown(self, ctx: click.Context, name: str) -> ElasticError:
        """Return the error for a name that no command has."""
        from elastic_core.plugins.missing import command_elsewhere, commands_elsewhere

        elsewhere = [known.removeprefix(self.words) for known in commands_elsewhere() if known.startswith(self.words)]
        known, group = ", ".join(dict.fromkeys((*self.list_commands(ctx), *elsewhere))), f"elastic {self.name}"
        return command_elsewhere(f"{self.words}{name}") or ConfigError(
            f"{group} has no command {name!r}; it has {known}", hint=f"{group} --help"
        )


def _installed(ctx: click.Context) -> CommandPlugins:
    # Entry points are read once in a call of `elastic`.
    found: CommandPlugins = ctx.meta.get(__name__) or CommandPlugins()
    ctx.meta[__name__] = found
    return found
