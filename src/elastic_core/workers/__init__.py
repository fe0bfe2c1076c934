"""Worker processes: start, stop ladder, output, log files.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the hook in a failing worker imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.workers.context import PContext
    from elastic_core.workers.errors import ProcessFailure
    from elastic_core.workers.functions import FunctionCall
    from elastic_core.workers.group_context import MultiprocessContext, SubprocessContext
    from elastic_core.workers.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from elastic_core.workers.output.std import Std, to_map
    from elastic_core.workers.run_result import RunProcsResult
    from elastic_core.workers.signals import SignalException
    from elastic_core.workers.start import start_processes

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
    "Std": "output.std",
    "SubprocessContext": "group_context",
    "start_processes": "start",
    "to_map": "output.std",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # a failing worker's hook needs none of this

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
