"""`elastic plugins`: what is installed, and what is wrong with it."""

import click


def _plugins(as_json: bool) -> int:
    from elastic_core.plugins.registry import PluginRegistry

    found = [
        (plugin.name, plugin.kind, plugin.distribution, plugin.version, plugin.status)
        for plugin in PluginRegistry().list_plugins(load=True)
    ]
    heads = ("name", "kind", "distribution", "version", "status")
    if as_json:
        import json

        click.echo(json.dumps([dict(zip(heads, row, strict=True)) for row in found], indent=2))
        return 0
    widths = [max(len(row[column]) for row in (heads, *found)) for column in range(len(heads) - 1)]
    for row in (tuple(head.upper() for head in heads), *found):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join((*cells, row[-1])).rstrip())
    return 0


command = click.Command(
    "plugins",
    callback=_plugins,
    params=[click.Option(["--json", "as_json"], is_flag=True, help="Write a JSON array, for programs.")],
    help="List the installed plugins: name, kind, distribution, version, and whether each loads, or why not.",
)
