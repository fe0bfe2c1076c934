"""Writes and reads the records that workers leave about their failures.

Importing it imports nothing else: each name is imported at its first use.
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
