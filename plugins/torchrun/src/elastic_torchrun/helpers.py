"""Torch's small helpers and constants."""

import inspect
import logging
import os
from collections.abc import Iterable
from typing import Any, Final

from elastic_torchrun.proc import read_stat
from elastic_torchrun.rendezvous.tcp_store import find_free_port

__all__ = [
    "JSON",
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "TORCH_WORKER_SERVER_SOCKET",
    "GlobalRank",
    "find_free_port",
    "get_env_variable_or_raise",
    "get_log_level",
    "get_logger",
    "is_uninterruptible_state",
    "macros",
    "read_proc_state",
]

TORCHELASTIC_ENABLE_FILE_TIMER: Final = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT: Final = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE: Final = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT: Final = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
TORCH_WORKER_SERVER_SOCKET: Final = "TORCH_WORKER_SERVER_SOCKET"
JSON = dict[str, Any]
GlobalRank = int


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
    """Placeholders for a worker's own values in the arguments of its command."""

    local_rank: Final = "${local_rank}"

    @staticmethod
    def substitute(args: Iterable[Any], local_rank: str | int) -> list[Any]:
        """Return the arguments of the worker with this local rank. Values that are not text are unchanged."""
        return [arg.replace(macros.local_rank, str(local_rank)) if isinstance(arg, str) else arg for arg in args]


def get_log_level() -> str:
    """Return the default level of loggers if LOGLEVEL is not set."""
    return "WARNING"


def get_logger(name: str | None = None) -> logging.Logger:
    """Return a logger with the level in LOGLEVEL, else WARNING. Without a name, the calling module's name is used."""
    if name is None:
        here = inspect.currentframe()
        caller = here.f_back if here is not None else None
        name = caller.f_globals.get("__name__") if caller is not None else None
    logger = logging.getLogger(name)
    known = logging.getLevelNamesMapping()
    logger.setLevel(known.get(os.environ.get("LOGLEVEL", "").upper(), logging.WARNING))
    return logger


def read_proc_state(pid: int) -> str | None:
    """Return the letter of a process's state (`R`, `S`, `D`, `Z` …), or `None` if there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def is_uninterruptible_state(state: str | None) -> bool:
    """Return whether a state is uninterruptible sleep."""
    return (state or "").startswith("D")
