"""The way to what knows torch, for those who must not: plugins and the supervisor.

`compat` is above this room, and torch nowhere in the supervisor, so that both are named in strings; whoever calls has
torch, or asks for it.
"""

import importlib
from typing import Any


def torch_handler(parameters: object, *, backend: str) -> Any:  # noqa: ANN401  # torch's RendezvousHandler
    """Return a handler for stock torchrun on one of our backends.

    For an entry point of torch's group `torchrun.handlers`: a function that returns a function which calls this one.
    Import this within that function: every start of torchrun imports the entry point's module, whatever backend is
    asked for.

    Args:
        parameters: torch's `RendezvousParameters`, as the entry point's function is handed them.
        backend: The name of the backend in our group; it must be one on a `CoordinationStore`.

    Raises:
        ValueError: an option can't be, or there is no such backend.
    """
    return importlib.import_module("elastic_core.compat.torchrun").make_handler(parameters, backend)
