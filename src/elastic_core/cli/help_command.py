"""`elastic help`: the help of a command, or the explanation of one option of `elastic run`."""

import click

from elastic_core.cli.output import echo
from elastic_core.errors import ConfigError


def _help(words: tuple[str, ...]) -> int:
    context = click.get_current_context().find_root()
    command, rest = context.command, list(words)
    while rest and isinstance(command, click.Group) and rest[0] in command.list_commands(context):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is not None:
            command, context = found, click.Context(found, info_name=name, parent=context)
    if rest and command.name in ("elastic", "run"):
        from elastic_core.cli.option_help import explanation, named_option

        commands = context.find_root().command
        others = commands.list_commands(context.find_root()) if isinstance(commands, click.Group) else ()
        option = named_option(rest[0], others if command.name == "elastic" else ())
        if option is not None:
            echo(*explanation(option, context.make_formatter().width))
            return 0
    elif rest and isinstance(command, click.Group):
        command.resolve_command(context, rest)  # raises: the group has no such command
    elif rest:
        what = f"elastic help {' '.join(words)}: it explains single options of elastic run only"
        raise ConfigError(what, hint=f"{context.command_path} --help")
    echo(*context.get_help().split("\n"))
    return 0


command = click.Command(
    "help",
    callback=_help,
    params=[click.Argument(["words"], nargs=-1, metavar="[COMMAND | OPTION]", type=click.UNPROCESSED)],
    help="Show the help of a command, or explain one option of elastic run: its value, its default and its variable.",
    epilog="""\b
Examples:
  elastic help status
  elastic help --max-restarts
  elastic help hang               # the beginning of --hang-timeout
""",
    context_settings={"ignore_unknown_options": True},
)
