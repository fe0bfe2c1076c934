"""A worker function: its call, and the caller's main module in a worker."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from elastic_core.api import ConfigError, Record

if TYPE_CHECKING:
    from elastic_torchrun.functions.start import FunctionStarter

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

    def begin(self) -> "FunctionStarter":
        """Return what starts its workers, run after run of an agent; raises as its constructor does."""
        from elastic_torchrun.functions.start import FunctionStarter  # workers know the call, and start none

        return FunctionStarter(self)

    def args_of(self, local_rank: int) -> tuple[Any, ...]:
        """Return what this worker's call gets."""
        return self.args if isinstance(self.args, tuple) else tuple(self.args[local_rank])


def _name_of(fn: object) -> str:
    if hasattr(fn, "func"):  # functools.partial
        return _name_of(fn.func)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name)


# --- the caller's main module in a worker: imported there, and must not start workers meanwhile

_importing: list[str] = []
"""The main module that this process, a worker, is importing on its caller's behalf; at most one."""


def begin_import(main: str) -> None:
    """Note that the module is being imported: by its path, or its name. Called: in a worker."""
    _importing.append(main)


def end_import() -> None:
    """Note that it has been."""
    _importing.clear()


def refuse_while_importing(name: str) -> None:
    """Refuse to start workers from a main module that a worker is only importing.

    Without this, each worker would begin the whole run again. Called: before anything of a run begins.

    Args:
        name: The entry point, for people.

    Raises:
        ConfigError: the call is not below the module's guard.
    """
    if _importing:
        raise ConfigError(
            f"{name!r}: a worker imports the main module {_importing[0]!r}, and that starts workers itself",
            hint='put what starts them below `if __name__ == "__main__":`',
        )
