"""What workers leave about their own failures, and how it is read.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the hook in a failing worker imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.processes.errors.handler import ErrorHandler, get_error_handler, set_error_handler
    from elastic_core.processes.errors.recording import record

__all__ = ["ErrorHandler", "get_error_handler", "record", "set_error_handler"]


def __getattr__(name: str) -> object:
    if name == "record":
        from elastic_core.processes.errors.recording import record

        return record
    if name in __all__:
        from elastic_core.processes.errors import handler

        return getattr(handler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
