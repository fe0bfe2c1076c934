"""The built-in handlers of events, for `logging`, by name."""

import logging
import os
from collections.abc import Callable
from typing import Final

from elastic_ops.built_in_handlers import make

BUILT_IN: Final = ("console", "dynamic_rendezvous", "jsonl", "null")


class JsonlHandler(logging.Handler):
    """Appends each event as a line of JSON to a file, in one write, so that processes may share the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file; its content is kept.

        Raises:
            OSError: it can't be opened.
        """
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. Errors are reported by `logging` (`handleError`)."""
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


def make_handler(name: str, conf: str = "") -> logging.Handler:
    """Build a built-in handler.

    Args:
        name: One of `BUILT_IN`.
        conf: The file of `jsonl`; the others accept none.

    Raises:
        ConfigError: there is no such handler, or it can't be built with this file.
    """
    plain: dict[str, Callable[[], logging.Handler]] = {
        "console": logging.StreamHandler,
        "dynamic_rendezvous": logging.NullHandler,
        "null": logging.NullHandler,
    }
    return make("event", name, conf, plain=plain, jsonl=JsonlHandler, example="events.jsonl")
