"""Chooses what a program's process is handled by."""

from collections.abc import Mapping
from typing import Any

from elastic_core.workers.subprocess_handler.subprocess_handler import SubprocessHandler


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: Mapping[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: object = None,
) -> SubprocessHandler:
    """Return a handler whose process was started; its arguments are those of `SubprocessHandler`."""
    return SubprocessHandler(
        entrypoint=entrypoint,
        args=args,
        env=env,
        stdout=stdout,
        stderr=stderr,
        local_rank_id=local_rank_id,
        numa_options=numa_options,
    )
