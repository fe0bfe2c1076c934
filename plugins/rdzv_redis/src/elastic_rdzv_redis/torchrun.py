"""`torchrun --rdzv-backend redis`: what stock torchrun finds in its group of entry points, `torchrun.handlers`.

Every start of torchrun imports this module, with whatever backend, so that it imports nothing.
"""


def redis() -> object:
    """Return what makes a handler. Called: by torch, when its rendezvous package is imported."""
    return _make_handler


def _make_handler(parameters: object) -> object:
    from elastic_core.api.rendezvous import torch_handler  # now that it is asked for

    return torch_handler(parameters, backend="redis")
