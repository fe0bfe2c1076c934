"""`elastic completion`: prints the script that completes commands and options in a shell."""

import os
import sys
from typing import ClassVar

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, get_completion_class
from click.shell_completion import split_arg_string as split_words

SHELLS = ("bash", "zsh", "fish", "tcsh")
_EPILOG = """\b
Once, for the running shell:
  eval "$(elastic completion bash)"          # bash, zsh; put it in ~/.bashrc or ~/.zshrc
  elastic completion fish | source           # fish
  elastic completion tcsh > ~/.elastic.tcsh; source ~/.elastic.tcsh
"""


@add_completion_class
class TcshComplete(ShellComplete):
    """Completion for tcsh, which click lacks: the shell passes the line up to the cursor, and reads words."""

    name: ClassVar[str] = "tcsh"
    source_template: ClassVar[str] = "complete %(prog_name)s 'p/*/`env %(complete_var)s=tcsh_complete %(prog_name)s`/'"

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words after the command, and the unfinished one."""
        line = os.environ.get("COMMAND_LINE", "")
        words = split_words(line)[1:]
        return (words, "") if not words or line[-1:].isspace() else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """Return the completion without its help, which tcsh cannot show."""
        return str(item.value)


def completion_script(shell: str) -> str:
    """Return the script that completes lines of `elastic` in a shell (one of `SHELLS`)."""
    from elastic_core.cli.group import elastic
    from elastic_core.cli.main import COMPLETE_VARIABLE

    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"click knows no completion for {shell!r}")
    return complete(elastic, {}, "elastic", COMPLETE_VARIABLE).source() + "\n"


def _completion(shell: str) -> int:
    sys.stdout.write(completion_script(shell))
    return 0


command = click.Command(
    "completion",
    callback=_completion,
    params=[click.Argument(["shell"], type=click.Choice(SHELLS))],
    help="Print the completion script of a shell.",
    epilog=_EPILOG,
)
