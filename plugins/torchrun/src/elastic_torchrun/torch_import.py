"""`torch.distributed` at its first use: this distribution does not require torch."""

import importlib
from typing import Any

from elastic_core.api import ConfigError
from elastic_core.api.workers import import_torch


def torch_distributed(needed_by: str) -> Any:  # noqa: ANN401  # a module
    """Return the module.

    Args:
        needed_by: The name that the program uses, for the message.

    Raises:
        ImportError: torch is missing, or its release is not supported.
    """
    try:
        import_torch(needed_by)
    except ConfigError as error:
        raise ImportError(str(error), name="torch") from None
    return importlib.import_module("torch.distributed")
