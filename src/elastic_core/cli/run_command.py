"""`elastic run` for click: its help and its completion; reading the line and starting need no click."""

import click

from elastic_core.cli.arguments import read_arguments
from elastic_core.cli.main import start
from elastic_core.cli.output import echo
from elastic_core.options.hook_options import all_rows
from elastic_core.options.table import OPTIONS, OptionRow, Section
from elastic_core.plugins.missing import options_elsewhere

_EPILOG = """\b
Examples:
  elastic run train.py
  elastic run --nproc-per-node 4 --max-restarts 3 train.py --epochs 10
  elastic run --nproc-per-node gpu -m package.train

Everything after SCRIPT belongs to it; ${local_rank} in its arguments becomes the worker's local rank. Every torchrun
line works: both spellings of an option, its unambiguous beginnings, and the PET_ variables. The command line beats
a variable, which beats the default; an empty variable counts as unset. PYTHON_EXEC names another interpreter.

SECONDS may have a unit, here, in a variable and in --rdzv-conf: 10, 500ms, 30s, 5m, 1.5h, 1d.

Exit codes: 0; a failed worker's own (128+N if signal N killed it); 2 usage; 3 plugin; 4 rendezvous; 128+N if the run
was told to stop by signal N.
"""


class RunCommand(click.Command):
    """A command that reads its arguments as torchrun's parser does; click writes help and completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments into the context."""
        if ctx.resilient_parsing:  # completion asks with half a line
            return super().parse_args(ctx, args)
        arguments = read_arguments(args)
        if arguments.help:
            echo(*ctx.get_help().split("\n"))
            ctx.exit()
        ctx.params = {"arguments": arguments}
        return []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return our options, and those that installed hooks bring: only help and completion ask."""
        return [*super().get_params(ctx), *map(_option, all_rows())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each option does, its default and its variable: ours, then those of each plugin."""
        rows = [*OPTIONS, *all_rows()]
        for section in dict.fromkeys((*map(str, Section), *(str(row.section) for row in rows))):
            with formatter.section(section):
                formatter.write_dl([_entry(row) for row in rows if row.section == section], col_max=26)
        with formatter.section("Help"):
            formatter.write_dl([("-h, --help", "Show this and exit.")])
        if elsewhere := options_elsewhere([row.name for row in rows]):
            with formatter.section("With distributions that are not installed"):
                formatter.write_dl([(name, ", ".join(flags)) for name, flags in elsewhere.items()], col_max=26)


def _entry(row: OptionRow) -> tuple[str, str]:
    names = f"--{row.name}" if row.short is None else f"-{row.short}, --{row.name}"
    default = row.default_note or row.default
    facts = [f"default: {default}"] if default and row.metavar is not None else []
    facts += [row.env] if row.env else []
    return names if row.metavar is None else f"{names} {row.metavar}", row.help + (
        f"  [{'; '.join(facts)}]" if facts else ""
    )


def _option(row: OptionRow) -> click.Option:
    names = [f"--{row.name}"] if row.short is None else [f"-{row.short}", f"--{row.name}"]
    kind = click.Choice(row.choices) if row.choices else click.Path() if row.metavar == "DIR" else None
    return click.Option(names, is_flag=row.metavar is None, multiple=row.many, type=kind, help=row.help)


command = RunCommand(
    "run",
    callback=start,
    params=[
        *map(_option, OPTIONS),
        click.Argument(["script"], type=click.Path(), metavar="SCRIPT", required=False),
        click.Argument(["rest"], type=click.Path(), nargs=-1, metavar="[ARGS]..."),
    ],
    help="Run SCRIPT on this node's workers, restart it when it fails, and end with its exit code.",
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": False},
)
