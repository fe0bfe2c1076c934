"""Destinations of events: `logging` handlers by name. `log_handlers` can be extended."""

import logging
from collections.abc import Callable
from typing import Final, cast

from elastic_core.api import ConfigError

GROUP: Final = "elastic_core.events"
"""The entry-point group of more handlers: a subclass of `logging.Handler`, or a function that returns one."""

log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}
"""The handlers of this process by name. Events of a rendezvous go to `dynamic_rendezvous`."""
_BUILT_IN: Final = {name: type(handler) for name, handler in log_handlers.items()}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: a key of `log_handlers`, `jsonl:FILE`, or an entry point's name.

    Raises:
        KeyError: there is no such handler.
        ConfigError: the file of `jsonl` can't be opened.
    """
    if destination not in log_handlers:
        name, _, path = destination.partition(":")
        handler = _file(path) if name == "jsonl" and path else _installed(destination)
        if handler is None:
            raise KeyError(f"no event handler {destination!r}: there are {', '.join(sorted(log_handlers))}, jsonl:FILE")
        log_handlers[destination] = handler
    return log_handlers[destination]


def _file(path: str) -> logging.Handler:
    try:
        return logging.FileHandler(path)
    except OSError as err:
        raise ConfigError(
            f"event file {path!r} can't be opened: {err.strerror}", hint="jsonl:FILE with a file that can be written"
        ) from err


def _installed(name: str) -> logging.Handler | None:
    from elastic_core.api.plugins import find_entries, import_entry  # only for names that nothing here has

    for entry in find_entries(GROUP):
        if (entry.group, entry.name) == (GROUP, name):
            make = cast("Callable[[], logging.Handler]", import_entry(entry))
            return make()
    return None


def is_own(destination: str) -> bool:
    """Return whether code of this process has set its own handler for a destination."""
    handler = log_handlers.get(destination)
    return handler is not None and type(handler) is not _BUILT_IN.get(destination)
