"""The batch script of `elastic slurm submit`: a user's script in a wrapper that ends with the run's exit code. Pure."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_SIGNALS: Final = "HUP INT QUIT USR1 USR2 ALRM TERM CONT URG VTALRM PROF WINCH IO PWR XCPU XFSZ"
"""The signals that the wrapper passes on: those that `sbatch --signal=B:…` may name and a shell can catch."""
_NAMED: Final = re.compile(r"(?:^|\s)(?:-J|--job-name\b)")
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
script=$(mktemp 2>/dev/null) || script="$ELASTIC_SLURM_VERDICTS.script"
trap 'rm -rf "$script" "$ELASTIC_SLURM_VERDICTS"; rmdir "${{ELASTIC_SLURM_VERDICTS%/*}}" 2>/dev/null' EXIT
cat >"$script" <<'{end}'
{text}
{end}
child= early= again=1 code=127
pass() {{ # the signals of Slurm reach the batch shell alone: the script has the traps
    again=1
    if [ -n "$child" ]; then kill -s "$1" "$child" 2>/dev/null; else early="$early $1"; fi
}}
for name in {signals}; do trap "pass $name" "$name"; done
set -m # else the script could not catch INT and QUIT
{interpreter} "$script"{arguments} &
child=$!
set +m
for name in $early; do pass "$name"; done
while [ -n "$again" ]; do # a signal ends `wait`, not the script
    again=
    wait "$child"
    status=$?
    [ "$status" = 127 ] || code=$status
done
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


def names_its_job(options: Iterable[str]) -> bool:
    """Return whether options of sbatch, or lines for it, name the job."""
    return any(_NAMED.search(each) for each in options)


def interpreter_of(text: str) -> tuple[str, ...]:
    """Return the program that runs a script, and its argument, from the script's first line.

    The wrapper starts it itself: the script's file may be where nothing can be executed (`noexec`).
    """
    first = text.partition("\n")[0]
    return tuple(first[2:].strip().split(None, 1)) if first.startswith("#!") and first[2:].strip() else ("/bin/bash",)


def wrapped(text: str, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return a batch script in a wrapper.

    Args:
        text: The user's script.
        arguments: Its arguments.
        variables: Variables for its environment.
    """
    return WRAPPER.format(
        directives="\n".join(directives_of(text)),
        variables=" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
        text=text.rstrip("\n"),
        signals=_SIGNALS,
        interpreter=shlex.join(interpreter_of(text)),
        arguments="".join(f" {shlex.quote(word)}" for word in arguments),
        end=_HEREDOC,
    )
