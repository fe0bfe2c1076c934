"""`elastic run` for click: its help and its completion; reading the line and starting need no click."""

import click

from elastic_core.cli.arguments import read_arguments
from elastic_core.cli.main import start
from elastic_core.cli.output import echo
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Section
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import OPTIONS
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
        return [*super().get_params(ctx), *map(_option, all_hook_options())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each option does, its default and its variable: ours, then those of each plugin."""
        every = [*OPTIONS, *all_hook_options()]
        for heading in dict.fromkeys((*map(str, Section), *(str(option.heading) for option in every))):
            with formatter.section(heading):
                formatter.write_dl([_entry(option) for option in every if option.heading == heading], col_max=26)
        with formatter.section("Help"):
            formatter.write_dl([("-h, --help", "Show this and exit.")])
        if elsewhere := options_elsewhere([option.flag for option in every]):
            with formatter.section("With distributions that are not installed"):
                formatter.write_dl([(name, ", ".join(flags)) for name, flags in elsewhere.items()], col_max=26)


def _names(option: RunOption) -> list[str]:
    return [f"-{option.short}", f"--{option.flag}"] if option.short else [f"--{option.flag}"]


def _entry(option: RunOption) -> tuple[str, str]:
    default = option.default_note or option.default_text
    facts = [f"default: {default}"] if default and option.value_name else []
    facts += [option.env_name] if option.env_name else []
    shown = f"  [{'; '.join(facts)}]" if facts else ""
    return f"{', '.join(_names(option))} {option.value_name}".rstrip(), option.help + shown


def _option(option: RunOption) -> click.Option:
    kind = click.Choice(option.choices) if option.choices else click.Path() if option.metavar == "DIR" else None
    return click.Option(
        _names(option), is_flag=not option.value_name, multiple=option.many, type=kind, help=option.help
    )


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
