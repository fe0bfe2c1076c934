"""`python -m elastic_core.launch ARGS` is `elastic run ARGS` for scripts that read `--local-rank` from their arguments.

It corresponds to `python -m torch.distributed.launch`, and is deprecated like it. Each worker's script gets
`--local-rank=N` as its first argument, unless `--use-env` is given.
"""

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from elastic_core.api import ConfigError

__all__ = ["launch", "main", "parse_args", "process"]

_DEPRECATED: Final = (
    "elastic_core.launch is deprecated, as torch.distributed.launch is: 'elastic run' is what it does with --use-env. "
    "Scripts find their local rank in the variable LOCAL_RANK"
)
_USE_ENV: Final = "--use-env"
_ABBREVIATED: Final = "--use"
"""The shortest prefix of the option that is unambiguous."""


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Return the options of a line, `use_env` among them. `None` means this process's own line.

    Raises:
        SystemExit: argparse rejects the line.
    """
    from elastic_torchrun.launcher.torchs_parser import get_args_parser

    parser = get_args_parser()
    help_text = "Leave the script's arguments as they are: it reads LOCAL_RANK from its environment."
    parser.add_argument(_USE_ENV, "--use_env", action="store_true", help=help_text)
    return parser.parse_args(args)


def launch(args: Namespace) -> None:
    """Run as `elastic_core.run.run` does, with `--local-rank` for the script if `use_env` is false.

    Raises:
        ChildFailedError: a worker failed, and no restart was left.
        ConfigError: a program would get `--local-rank`; or as for `run`, with its other exceptions.
    """
    from elastic_torchrun.launcher.torchs_parser import run

    _refuse_program(no_python=args.no_python, use_env=args.use_env)
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Run with this line (default: this process's own). Failures are exceptions.

    Raises:
        ChildFailedError: as for `launch`, with its other exceptions.
    """
    warnings.warn(_DEPRECATED, FutureWarning, stacklevel=2)
    launch(parse_args(args))


def process() -> None:
    """Run as the process of `python -m elastic_core.launch`, with the agent and exit codes of `elastic run`."""
    from elastic_core.api.commands import echo
    from elastic_core.embedding import elastic_process

    warnings.warn(_DEPRECATED, FutureWarning, stacklevel=2)
    try:
        words = _line(sys.argv[1:])
    except ConfigError as error:
        echo(f"elastic: error: {error}", err=True)
        sys.exit(error.exit_code)
    elastic_process(["run", *words])


def _line(words: Sequence[str]) -> list[str]:
    """Return the equivalent command line of `elastic run`."""
    from elastic_core.embedding import BY_DEST, Choices, read_arguments
    from elastic_torchrun.launcher.torchs_parser import LOCAL_RANK_ARGUMENT

    rest, use_env = _without_use_env(words)
    try:
        arguments = read_arguments(rest)
    except ConfigError:
        return rest  # reported by the command itself
    if arguments.help or arguments.script is None:
        return rest
    _refuse_program(no_python=Choices(arguments.given, os.environ, BY_DEST).flag("no_python"), use_env=use_env)
    behind_script = len(rest) - len(arguments.rest)
    return rest if use_env else [*rest[:behind_script], LOCAL_RANK_ARGUMENT, *rest[behind_script:]]


def _without_use_env(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without the option that `elastic run` lacks, and whether it was there before the script."""
    from elastic_core.embedding import read_arguments

    kept: list[str] = []
    found = False
    for word in words:
        if word.startswith(_ABBREVIATED) and _USE_ENV.startswith(word.replace("_", "-")):
            try:
                before_script = read_arguments(kept).script is None
            except ConfigError:
                before_script = False
            if before_script and "--" not in kept:
                found = True
                continue
        kept.append(word)
    return kept, found


def _refuse_program(*, no_python: bool, use_env: bool) -> None:
    if no_python and not use_env:
        raise ConfigError("--no-python: a program is not given --local-rank", hint="--use-env as well")


if __name__ == "__main__":
    process()
