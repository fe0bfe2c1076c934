"""Binding of workers to the processors near their GPUs.

`elastic run --numa-binding MODE` does it from the command line; `NumaOptions` is for `LaunchConfig`, `WorkerSpec` and
`start_processes`. Importing the package loads nothing: each name is fetched when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_numa.binding import AffinityMode, NumaOptions

__all__ = ["AffinityMode", "NumaOptions"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from elastic_numa import binding

        return getattr(binding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
