"""One process of a program, with the files that its output goes to: torch's `SubprocessHandler`."""

from elastic_core.workers.subprocess_handler.handlers import get_subprocess_handler
from elastic_core.workers.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
