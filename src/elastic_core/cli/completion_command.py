"""`elastic completion`: the script that teaches a shell our commands and options."""

import sys

import click

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """\b
Once, for the running shell:
  eval "$(elastic completion bash)"          # bash, zsh; put it in ~/.bashrc or ~/.zshrc
  elastic completion fish | source           # fish
"""


def _completion(shell: str) -> int:
    from click.shell_completion import get_completion_class

    from elastic_core.cli.group import elastic
    from elastic_core.cli.main import COMPLETE_VARIABLE

    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"click knows no completion for {shell!r}")
    sys.stdout.write(complete(elastic, {}, "elastic", COMPLETE_VARIABLE).source() + "\n")
    return 0


command = click.Command(
    "completion",
    callback=_completion,
    params=[click.Argument(["shell"], type=click.Choice(_SHELLS))],
    help="Print the completion script of a shell.",
    epilog=_EPILOG,
)
