"""`python -m elastic_core.run ARGS` is `elastic run ARGS`, as `python -m torch.distributed.run` is torchrun."""

import sys
from collections.abc import Sequence


def process() -> None:
    """Be the process of `python -m elastic_core.run`."""
    from elastic_core.cli.main import process as elastic_process

    elastic_process(["run", *sys.argv[1:]])


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic run` with these arguments (default: the process's own) and return its exit code."""
    from elastic_core.cli.main import main as elastic_main

    return elastic_main(["run", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    process()
