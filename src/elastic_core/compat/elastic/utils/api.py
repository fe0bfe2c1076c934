"""`torch.distributed.elastic.utils.api`, by ours."""

import os
from collections.abc import Iterable
from typing import Any, Final

from elastic_core.rendezvous.tcp_store import get_socket_with_port

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]


def get_env_variable_or_raise(env_name: str) -> str:
    """Return the value of an environment variable.

    Raises:
        ValueError: it is not set.
    """
    value = os.environ.get(env_name)
    if value is None:
        raise ValueError(f"environment variable {env_name} is not set")
    return value


class macros:  # torch's name
    """What stands for a worker's own values in the arguments of its command."""

    local_rank: Final = "${local_rank}"

    @staticmethod
    def substitute(args: Iterable[Any], local_rank: str) -> list[Any]:
        """Return the arguments of the worker with this local rank; what is no text stays as it is."""
        return [arg.replace(macros.local_rank, local_rank) if isinstance(arg, str) else arg for arg in args]
