"""`torch.distributed.elastic.utils.logging`, by ours."""

import inspect
import logging
import os

__all__ = ["get_logger"]


def get_logger(name: str | None = None) -> logging.Logger:
    """Return a logger with the level that LOGLEVEL names, else WARNING; without a name, the calling module's."""
    if name is None:
        here = inspect.currentframe()
        caller = here.f_back if here is not None else None
        name = caller.f_globals.get("__name__") if caller is not None else None
    logger = logging.getLogger(name)
    known = logging.getLevelNamesMapping()
    logger.setLevel(known.get(os.environ.get("LOGLEVEL", "").upper(), logging.WARNING))
    return logger
