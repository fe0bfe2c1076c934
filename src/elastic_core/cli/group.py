"""The `elastic` command. Its subcommands are imported when they are used."""

import click

from elastic_core.cli.command_group import CommandGroup
from elastic_core.cli.output import echo
from elastic_core.errors import ConfigError, ElasticError, nearest

# The module (its attribute `command` is the click command) and help line of each subcommand.
_COMMANDS = {
    "run": ("elastic_core.cli.run_command", "Run a training script on this node's workers; restart it after failures."),
    "runs": ("elastic_core.cli.runs_command", "List the runs on this machine, or show why one failed."),
    "plugins": ("elastic_core.cli.plugins_command", "List the installed plugins, or create a plugin."),
    "help": ("elastic_core.cli.help_command", "Show the help of a command, or explain one option of run."),
    "completion": ("elastic_core.cli.completion_command", "Print the completion script of a shell."),
}


class _Elastic(CommandGroup):
    # An unknown command is often a script or a typing mistake.
    commands_of = _COMMANDS

    def unknown(self, ctx: click.Context, name: str) -> ElasticError:
        from elastic_core.plugins.missing import command_elsewhere, commands_elsewhere

        elsewhere = command_elsewhere(name)
        if elsewhere is not None:
            return elsewhere
        looks_like_script = name.endswith(".py") or "/" in name
        near = "" if looks_like_script else nearest(name, [*self.list_commands(ctx), *commands_elsewhere()])
        hint = f"elastic {near}" if near else f"elastic run {name}" if looks_like_script else "elastic --help"
        return ConfigError(f"no such command: {name!r}", hint=hint)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from elastic_core._version import __version__

        echo(f"elastic-core {__version__}")
        ctx.exit()


@click.group(
    cls=_Elastic,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def elastic() -> None:
    """Launch distributed PyTorch training, restart it after failures, and report their causes."""
