"""The call of a worker function, and the caller's main module in a worker."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from elastic_core.api import ConfigError, Record

if TYPE_CHECKING:
    from elastic_torchrun.functions.start import FunctionStarter

START_METHODS = ("spawn", "fork", "forkserver")


class FunctionCall(Record, frozen=True, kw_only=False, eq=False):
    """A function that workers call, in processes that start in one of multiprocessing's three ways.

    `spawn`: a fresh interpreter. `fork`: a copy of the calling process from before elastic-core started any thread, so
    that closures and lambdas work. `forkserver`: a copy of a clean process that has imported the caller's main module.
    Except with `fork`, the function and its arguments must be picklable.

    Several processes call `fn` at the same time, so it must not rely on sharing state with its caller.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = ()
    """The same arguments for each worker, or arguments by local rank."""
    start_method: str = "spawn"
    with_main: bool = True
    """Whether workers import the caller's main module, as multiprocessing's do: `fn` or an argument may be from it."""

    def __post_init__(self) -> None:
        """Check both.

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

    def begin(self) -> "FunctionStarter":
        """Return the starter of its workers, for several runs of an agent. Raises as its constructor does."""
        from elastic_torchrun.functions.start import FunctionStarter  # workers know the call, and start none

        return FunctionStarter(self)

    def args_of(self, local_rank: int) -> tuple[Any, ...]:
        """Return the arguments of this worker's call."""
        return self.args if isinstance(self.args, tuple) else tuple(self.args[local_rank])


def _name_of(fn: object) -> str:
    if hasattr(fn, "func"):  # functools.partial
        return _name_of(fn.func)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name)


# --- the caller's main module in a worker: imported there, and must not start workers meanwhile

_importing: list[str] = []
"""The main module that this worker is importing for its caller; at most one."""


def begin_import(main: str) -> None:
    """Note that a main module, given by path or name, is being imported. Called: in a worker."""
    _importing.append(main)


def end_import() -> None:
    """Note that the import has ended."""
    _importing.clear()


def refuse_while_importing(name: str) -> None:
    """Reject a start of workers while a worker only imports its caller's main module.

    Without this check, each worker would begin the whole run again. Called: before a run begins.

    Args:
        name: The entry point, for people.

    Raises:
        ConfigError: the call is not below the module's `if __name__ == "__main__":` guard.
    """
    if _importing:
        raise ConfigError(
            f"{name!r}: a worker imports the main module {_importing[0]!r}, and that starts workers itself",
            hint='put what starts them below `if __name__ == "__main__":`',
        )
