"""Where events go: `logging` handlers by name. Whoever wants another one puts it into `log_handlers`."""

import logging
import os
from collections.abc import Callable
from typing import Final, cast

from elastic_ops.built_in_handlers import make

GROUP: Final = "elastic_core.events"
"""The entry-point group of further handlers: a subclass of `logging.Handler`, or a function that returns one."""
BUILT_IN: Final = ("console", "dynamic_rendezvous", "jsonl", "null")

log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}
"""The handlers of this process by name. Events of a rendezvous go to `dynamic_rendezvous`."""


class JsonlHandler(logging.Handler):
    """Appends each event as a line of JSON to a file, whole and at once, so that processes may share it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file; what it holds stays.

        Raises:
            OSError: it can't be opened.
        """
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; what goes wrong is `logging`'s to tell (`handleError`)."""
        try:
            os.write(self._fd, self.format(record).encode() + b"\n")
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: a key of `log_handlers`, `jsonl:FILE`, or an entry point's name.

    Raises:
        KeyError: there is none.
        ConfigError: the file of `jsonl` can't be opened.
    """
    if destination not in log_handlers:
        name, _, conf = destination.partition(":")
        handler = make_handler(name, conf) if name == "jsonl" else _installed(destination)
        if handler is None:
            raise KeyError(f"no event handler {destination!r}: there are {', '.join(sorted(log_handlers))}, jsonl:FILE")
        log_handlers[destination] = handler
    return log_handlers[destination]


def make_handler(name: str, conf: str = "") -> logging.Handler:
    """Build a built-in handler anew.

    Args:
        name: One of `BUILT_IN`.
        conf: The file of `jsonl`; the others take none.

    Raises:
        ConfigError: there is no such handler, or it can't be built so.
    """
    plain: dict[str, Callable[[], logging.Handler]] = {
        "console": logging.StreamHandler,
        "dynamic_rendezvous": logging.NullHandler,
        "null": logging.NullHandler,
    }
    return make("event", name, conf, plain=plain, jsonl=JsonlHandler, example="events.jsonl")


def _installed(name: str) -> logging.Handler | None:
    from elastic_core.api.plugins import find_entries, import_entry  # only for names that nothing here has

    for entry in find_entries(GROUP):
        if (entry.group, entry.name) == (GROUP, name):
            make = cast("Callable[[], logging.Handler]", import_entry(entry))
            return make()
    return None
