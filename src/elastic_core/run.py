"""`python -m elastic_core.run ARGS` is `elastic run ARGS`, as `python -m torch.distributed.run` is torchrun.

Programs that use torchrun's parser find its functions here, if elastic-torchrun is installed: `get_args_parser`,
`config_from_args`, `run`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from elastic_core.cli import main as command_line

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
    """Run the process of `python -m elastic_core.run`."""
    command_line.elastic_process(["run", *sys.argv[1:]])


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic run` with these arguments (default: the process's own) and return its exit code."""
    return command_line.main(["run", *(sys.argv[1:] if argv is None else argv)])


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes and functions
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastic_core.plugins.torch_side import torch_import

    return getattr(torch_import("parser", needed_by=f"{__name__}.{name}"), name)


if __name__ == "__main__":
    process()
