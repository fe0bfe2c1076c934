"""`elastic plugins`: lists the installed plugins and their faults."""

from typing import TYPE_CHECKING

import click

from elastic_core.cli.command_group import CommandGroup
from elastic_core.cli.output import echo, echo_json

if TYPE_CHECKING:
    from elastic_core.plugins.listing import PluginInfo


class _Plugins(CommandGroup):
    words = "plugins "


def _plugins(as_json: bool, verbose: bool) -> int | None:
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("--json is for the list of plugins", context)
        return None
    from elastic_core.plugins.listing import list_plugins
    from elastic_core.plugins.registry import PluginRegistry

    plugins = list_plugins(PluginRegistry())
    if not (as_json or verbose):
        echo(*_by_distribution(plugins))
        return 0
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


def _by_distribution(plugins: "list[PluginInfo]") -> list[str]:
    # A heading for each distribution, then a line for each plugin: its title, or why it is not loaded.
    import shutil

    width = shutil.get_terminal_size((120, 24)).columns
    formatter = click.HelpFormatter(width=max(60, min(width, 120)))
    for heading in sorted({(plugin.distribution, plugin.version) for plugin in plugins}):
        found = [plugin for plugin in plugins if (plugin.distribution, plugin.version) == heading]
        formatter.write(f"{' '.join(heading).strip()}\n")
        formatter.indent()
        rows = [(_label(each), (each.title or "-") if each.status == "loaded" else each.status) for each in found]
        formatter.write_dl(rows, col_max=36)
        formatter.dedent()
        formatter.write_paragraph()
    return formatter.getvalue().rstrip().splitlines()


def _label(plugin: "PluginInfo") -> str:
    if plugin.kind == "command":
        return f"elastic {plugin.name}"
    if plugin.kind == "option" and not plugin.name.isupper():
        return f"--{plugin.name}"
    return f"{plugin.name} ({plugin.kind})"


def _cell(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


command = _Plugins(
    "plugins",
    invoke_without_command=True,
    callback=_plugins,
    params=[
        click.Option(["--json", "as_json"], is_flag=True, help="Write a JSON array, for programs."),
        click.Option(
            ["-v", "--verbose", "verbose"],
            is_flag=True,
            help="Show a table with kind, version, status and powers. Powers are what a hook may do beside observing: "
            "change how workers start (launches), use the run's handle (run), hold a planned stop (holds), receive "
            "all events (feed), keep a node out (refusal), start workers (starts), host their store (hosts).",
        ),
    ],
    help="List the installed plugins by distribution, and what each does, or why it does not load.",
    subcommand_metavar="[COMMAND]",
)
