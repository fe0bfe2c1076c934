"""Worker processes: start, stop ladder, output, log files.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the hook in a failing worker imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from elastic_core.multiprocessing.signal_exception import SignalException
    from elastic_core.multiprocessing.std import Std, to_map

__all__ = ["DefaultLogsSpecs", "LogsDest", "LogsSpecs", "SignalException", "Std", "to_map"]


def __getattr__(name: str) -> object:
    if name in ("Std", "to_map"):
        from elastic_core.multiprocessing import std

        return getattr(std, name)
    if name == "SignalException":
        from elastic_core.multiprocessing.signal_exception import SignalException

        return SignalException
    if name in __all__:
        from elastic_core.multiprocessing import logs_specs

        return getattr(logs_specs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
