"""`elastic run` for click: help and completion. Parsing the command line and starting a run need no click."""

import click

from elastic_core.cli.arguments import read_arguments
from elastic_core.cli.main import start
from elastic_core.cli.option_help import option_names, write_options
from elastic_core.cli.output import echo
from elastic_core.option_spec import RunOption
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import OPTIONS

_EPILOG = """\b
Examples:
  elastic run train.py
  elastic run --nproc-per-node 4 --max-restarts 3 train.py --epochs 10
  elastic run --nproc-per-node gpu -m package.train

Words after SCRIPT are its arguments; ${local_rank} in them becomes the worker's local rank. Each torchrun command line
works: both spellings of an option, unambiguous prefixes, and the PET_ variables. The command line overrides a variable
(PET_MAX_RESTARTS for --max-restarts), which overrides the default. An empty variable counts as unset. PYTHON_EXEC
selects another interpreter. SECONDS may have a unit: 10, 500ms, 30s, 5m, 1.5h, 1d.

Exit codes: 0; the code of a failed worker (128+N if signal N killed it); 2 usage; 3 plugin; 4 rendezvous; 128+N if
signal N stopped the run.
"""
_EVERYTHING = f"{__name__}.everything"


class RunCommand(click.Command):
    """A command whose arguments are parsed as by torchrun; click writes help and completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments into the context."""
        if ctx.resilient_parsing:  # completion passes an incomplete line
            return super().parse_args(ctx, args)
        arguments = read_arguments(args)
        if arguments.help:
            ctx.meta[_EVERYTHING] = arguments.help_all
            echo(*ctx.get_help().split("\n"))
            ctx.exit()
        ctx.params = {"arguments": arguments}
        return []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the core's options, and those of installed hooks, for help and completion."""
        return [*super().get_params(ctx), *map(_option, all_hook_options())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the most used options, or all of them."""
        write_options(formatter, everything=ctx.meta.get(_EVERYTHING, False))


def _option(option: RunOption) -> click.Option:
    kind = click.Choice(option.choices) if option.choices else click.Path() if option.metavar == "DIR" else None
    return click.Option(
        option_names(option), is_flag=not option.value_name, multiple=option.many, type=kind, help=option.help
    )


command = RunCommand(
    "run",
    callback=start,
    params=[
        *map(_option, OPTIONS),
        click.Option(["--help-all"], is_flag=True, help="Show all options and exit."),
        click.Argument(["script"], type=click.Path(), metavar="SCRIPT", required=False),
        click.Argument(["rest"], type=click.Path(), nargs=-1, metavar="[ARGS]..."),
    ],
    help="Run SCRIPT on this node's workers, restart it after failures, and exit with its code.",
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": False},
)
