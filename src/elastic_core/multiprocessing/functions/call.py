"""What a worker function is called with, and how its process begins."""

from collections.abc import Callable, Mapping
from typing import Any

from elastic_core.errors import ConfigError
from elastic_core.types import Record

START_METHODS = ("spawn", "fork", "forkserver")


class FunctionCall(Record, frozen=True, kw_only=False, eq=False):
    """A function for workers to call, in processes that are begun by one of multiprocessing's three ways.

    `spawn`: a fresh interpreter. `fork`: a copy of the calling process as it was before any thread of ours was started,
    so that closures and lambdas work. `forkserver`: a copy of a clean process that has imported the caller's main
    module. Except with `fork`, the function and its arguments must be picklable.

    Called by different processes at once, `fn` must not count on what it shares with its caller.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = ()
    """The same for each worker, or by local rank."""
    start_method: str = "spawn"
    with_main: bool = True
    """The workers import the caller's main module, as multiprocessing's do: `fn` or what it is given may be from it."""

    def __post_init__(self) -> None:
        """Refuse what is neither.

        Raises:
            ConfigError: there is no such start method, or `fn` can't be called.
        """
        if self.start_method not in START_METHODS:
            raise ConfigError(f"start method {self.start_method!r} is none", hint=", ".join(START_METHODS))
        if not callable(self.fn):
            raise ConfigError(f"{self.fn!r} is not a function that workers could call", hint="pass the function itself")

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return _name_of(self.fn)

    def args_of(self, local_rank: int) -> tuple[Any, ...]:
        """Return what this worker's call gets."""
        return self.args if isinstance(self.args, tuple) else tuple(self.args[local_rank])


def _name_of(fn: object) -> str:
    if hasattr(fn, "func"):  # functools.partial
        return _name_of(fn.func)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name)
