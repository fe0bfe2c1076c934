"""`python -m elastic_core.run ARGS` is `elastic run ARGS`, as `python -m torch.distributed.run` is torchrun.

Programs that build upon torchrun's parser find its functions here: `get_args_parser`, `config_from_args`, `run`.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.launcher.arguments import (
        config_from_args,
        determine_local_world_size,
        get_args_parser,
        get_rdzv_endpoint,
        get_use_env,
        parse_args,
        parse_min_max_nnodes,
        run,
        run_script_path,
    )

__all__ = [
    "config_from_args",
    "determine_local_world_size",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "process",
    "run",
    "run_script_path",
]


def process() -> None:
    """Be the process of `python -m elastic_core.run`."""
    from elastic_core.cli.main import process as elastic_process

    elastic_process(["run", *sys.argv[1:]])


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic run` with these arguments (default: the process's own) and return its exit code."""
    from elastic_core.cli.main import main as elastic_main

    return elastic_main(["run", *(sys.argv[1:] if argv is None else argv)])


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastic_core.launcher import arguments  # argparse among it: the command itself needs none of this

    return getattr(arguments, name)


if __name__ == "__main__":
    process()
