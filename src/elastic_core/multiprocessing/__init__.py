"""Worker processes: start, stop ladder, output, log files.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the hook in a failing worker imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.multiprocessing.context import PContext
    from elastic_core.multiprocessing.errors import ProcessFailure
    from elastic_core.multiprocessing.functions import FunctionCall
    from elastic_core.multiprocessing.group_context import MultiprocessContext, SubprocessContext
    from elastic_core.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from elastic_core.multiprocessing.run_result import RunProcsResult
    from elastic_core.multiprocessing.signals import SignalException
    from elastic_core.multiprocessing.start import start_processes
    from elastic_core.multiprocessing.std import Std, to_map

__all__ = [
    "DefaultLogsSpecs",
    "FunctionCall",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "start_processes",
    "to_map",
]

_MODULES = {
    "DefaultLogsSpecs": "logs_specs",
    "FunctionCall": "functions",
    "LogsDest": "logs_specs",
    "LogsSpecs": "logs_specs",
    "MultiprocessContext": "group_context",
    "PContext": "context",
    "ProcessFailure": "errors",
    "RunProcsResult": "run_result",
    "SignalException": "signals",
    "Std": "std",
    "SubprocessContext": "group_context",
    "start_processes": "start",
    "to_map": "std",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # a failing worker's hook needs none of this

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
