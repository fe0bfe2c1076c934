"""`elastic plugins`: what is installed, and what is wrong with it."""

import click

from elastic_core.cli.command_group import CommandGroup
from elastic_core.cli.output import echo, echo_json


class _Plugins(CommandGroup):
    """Lists, or does what a subcommand says."""

    words = "plugins "


def _plugins(as_json: bool) -> int | None:
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("--json is for the list of plugins", context)
        return None
    from elastic_core.plugins.listing import list_plugins
    from elastic_core.plugins.registry import PluginRegistry

    plugins = list_plugins(PluginRegistry())
    heads = ["name", "kind", "distribution", "version", "status"]
    if any(plugin.powers for plugin in plugins):  # most plugins have none
        heads.insert(2, "powers")
    found = [[_cell(getattr(plugin, head)) for head in heads] for plugin in plugins]
    if as_json:
        import json

        echo_json(json.dumps([dict(zip(heads, row, strict=True)) for row in found], indent=2))
        return 0
    widths = [max(len(row[column]) for row in (heads, *found)) for column in range(len(heads) - 1)]
    for row in ([head.upper() for head in heads], *found):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        echo("  ".join((*cells, row[-1])).rstrip())
    return 0


def _cell(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


command = _Plugins(
    "plugins",
    invoke_without_command=True,
    callback=_plugins,
    params=[click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON array.")],
    help="List the installed plugins: name, kind, distribution, version, and whether each one loads, or why not.",
    subcommand_metavar="[COMMAND]",
)
