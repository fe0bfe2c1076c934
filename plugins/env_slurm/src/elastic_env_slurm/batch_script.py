"""What `elastic slurm submit` gives to sbatch: a user's script in a wrapper that ends with the run's code. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

_DIRECTIVE: Final = re.compile(r"#SBATCH\b")
_HEREDOC: Final = "END_OF_THE_SCRIPT_OF_ELASTIC_SLURM_SUBMIT"

WRAPPER: Final = """\
#!/bin/bash
{directives}
# Made by `elastic slurm submit`. It runs the script below, and ends with the run's code: srun's is that of a lost node.
export {variables}
export ELASTIC_SLURM_VERDICTS="${{SLURM_SUBMIT_DIR:-$PWD}}/.elastic-slurm/$SLURM_JOB_ID"
rm -rf "$ELASTIC_SLURM_VERDICTS" # of an attempt that was killed
mkdir -p "$ELASTIC_SLURM_VERDICTS"
script=$(mktemp)
trap 'rm -rf "$script" "$ELASTIC_SLURM_VERDICTS"; rmdir "${{ELASTIC_SLURM_VERDICTS%/*}}" 2>/dev/null' EXIT
cat >"$script" <<'{end}'
{text}
{end}
chmod 700 "$script"
"$script"{arguments}
code=$?
verdict=$(cat "$ELASTIC_SLURM_VERDICTS"/* 2>/dev/null | # a failure, else a good end, else a signal
    awk '$1 == 0 {{ well = 1 }} $1 > 0 && $1 < 128 {{ failed = $1 }} {{ last = $1 }}
         END {{ if (NR) print failed ? failed : well ? 0 : last }}')
[ "$code" = 0 ] || exit "${{verdict:-$code}}"
"""


def directives_of(text: str) -> list[str]:
    """Return the lines for sbatch: those before the first command, as sbatch itself reads them."""
    found: list[str] = []
    for line in text.splitlines():
        if _DIRECTIVE.match(line):
            found.append(line.rstrip())
        elif line.strip() and not line.startswith("#"):
            break
    return found


def wrapped(text: str, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return a batch script in a wrapper.

    Args:
        text: The user's script.
        arguments: Its arguments.
        variables: What it finds in its environment.
    """
    return WRAPPER.format(
        directives="\n".join(directives_of(text)),
        variables=" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
        text=text.rstrip("\n"),
        arguments="".join(f" {shlex.quote(word)}" for word in arguments),
        end=_HEREDOC,
    )
