"""What workers leave about their own failures, how it is read, and the errors made of it.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the hook in a failing worker imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.processes.errors.child_failed import ChildFailedError
    from elastic_core.processes.errors.handler import ErrorHandler, get_error_handler, set_error_handler
    from elastic_core.processes.errors.process_failure import ProcessFailure
    from elastic_core.processes.errors.recording import record

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record", "set_error_handler"]


def __getattr__(name: str) -> object:
    if name == "record":
        from elastic_core.processes.errors.recording import record

        return record
    if name == "ChildFailedError":
        from elastic_core.processes.errors.child_failed import ChildFailedError

        return ChildFailedError
    if name == "ProcessFailure":
        from elastic_core.processes.errors.process_failure import ProcessFailure

        return ProcessFailure
    if name in __all__:
        from elastic_core.processes.errors import handler

        return getattr(handler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
