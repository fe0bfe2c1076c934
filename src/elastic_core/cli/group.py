"""The `elastic` command: its subcommands are imported when they are used."""

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click

from elastic_core.errors import ConfigError

_COMMANDS = {
    "run": ("elastic_core.cli.run_command", "Run a training script on this node's workers, and keep it alive."),
    "plugins": ("elastic_core.cli.plugins_command", "List the installed plugins, or begin one of your own."),
    "completion": ("elastic_core.cli.completion_command", "Print the completion script of a shell."),
}
"""Module (its attribute `command` is the click command) and help line of each subcommand."""


class LazyGroup(click.Group):
    """A group whose commands are known by name, and imported by use."""

    known: ClassVar[Mapping[str, tuple[str, str]]] = _COMMANDS
    """Module (its attribute `command` is the click command) and help line of each; a subclass has others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which people need them."""
        return list(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is no such."""
        if cmd_name not in self.known:
            return None
        command = importlib.import_module(self.known[cmd_name][0]).command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.known.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say what was probably meant."""
        name = args[0]
        if name not in _COMMANDS and not ctx.resilient_parsing:
            from elastic_core.launcher.values import nearest

            near = nearest(name, _COMMANDS)
            looks_like_script = name.endswith(".py") or "/" in name
            hint = f"elastic {near}" if near else f"elastic run {name}" if looks_like_script else "elastic --help"
            raise ConfigError(f"no such command: {name!r}", hint=hint)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from elastic_core._version import __version__

        click.echo(f"elastic-core {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def elastic(ctx: click.Context) -> None:
    """Launch distributed PyTorch training, keep it alive, and say why it failed."""
    if ctx.invoked_subcommand is None:
        raise ConfigError("no command given", hint="elastic run SCRIPT, or elastic --help")
