"""Writes the options of `elastic run` in sections: what each does, its default, and its variable."""

import click

from elastic_core.options.hook_options import all_rows
from elastic_core.options.table import OPTIONS, OptionRow, Section


def write_options(formatter: click.HelpFormatter) -> None:
    """Write all options, section by section: ours, then those of each plugin under its heading."""
    rows = [*OPTIONS, *all_rows()]
    for section in dict.fromkeys((*map(str, Section), *(str(row.section) for row in rows))):
        with formatter.section(section):
            formatter.write_dl([_entry(row) for row in rows if row.section == section], col_max=26)
    with formatter.section("Help"):
        formatter.write_dl([("-h, --help", "Show this and exit.")])


def _entry(row: OptionRow) -> tuple[str, str]:
    names = f"--{row.name}" if row.short is None else f"-{row.short}, --{row.name}"
    default = row.default_note or row.default
    facts = [f"default: {default}"] if default and row.metavar is not None else []
    facts += [row.env] if row.env else []
    return names if row.metavar is None else f"{names} {row.metavar}", row.help + (
        f"  [{'; '.join(facts)}]" if facts else ""
    )
