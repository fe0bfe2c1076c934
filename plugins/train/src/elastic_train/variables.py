"""The environment variables of a worker, read and checked."""

import os

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""The variables with the worker's rank. Either all are set or none."""


def whole_number(name: str, *, least: int = 0) -> int | None:
    """Return a variable's number. `None` if the variable is not set.

    Raises:
        ConfigError: it is not a whole number, or less than `least`.
    """
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise error(f"{name}={text!r} in the environment; expected a whole number, {least} at least", start_hint())
    return int(text)


def place() -> tuple[int, int, int] | None:
    """Return rank, local rank and world size. `None` if none is set, so that this process is alone.

    Raises:
        ConfigError: one of them is missing or malformed, or the rank is not below the world size.
    """
    missing = [name for name in PLACE if name not in os.environ]
    if len(missing) == len(PLACE):
        return None
    if missing:
        there = ", ".join(name for name in PLACE if name not in missing)
        raise error(f"{' and '.join(missing)} missing in the environment, where {there} is set", start_hint())
    rank, local_rank, world_size = (whole_number(name, least=int(name == "WORLD_SIZE")) or 0 for name in PLACE)
    if rank >= world_size:
        raise error(f"RANK={rank} in the environment; expected less than WORLD_SIZE={world_size}", start_hint())
    return rank, local_rank, world_size


def start_hint() -> str:
    """Return the command that starts a script with all its variables."""
    return "elastic run SCRIPT, which sets them all, and nothing that changes them"


def error(what: str, hint: str) -> ValueError:
    """Return a `ConfigError`. Its module is imported only for an error."""
    from elastic_core.api import ConfigError

    return ConfigError(what, hint=hint)
