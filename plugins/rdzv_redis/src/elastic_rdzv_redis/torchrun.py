"""`torchrun --rdzv-backend redis`: the object in stock torchrun's entry-point group, `torchrun.handlers`.

Every start of torchrun imports this module, with any backend, so it imports nothing.
"""


def redis() -> object:
    """Return the maker of handlers. Called: by torch, when its rendezvous package is imported."""
    return _make_handler


def _make_handler(parameters: object) -> object:
    from elastic_core.api.rendezvous import torch_handler  # now that it is asked for

    return torch_handler(parameters, backend="redis")
