"""`torchrun --rdzv-backend etcd-v3`: the object in stock torchrun's entry-point group, `torchrun.handlers`.

Torchrun's own `etcd` and `etcd-v2` use the v2 API, and their names can't be replaced. Every start of torchrun imports
this module, with any backend, so it imports nothing.
"""


def etcd_v3() -> object:
    """Return the maker of handlers. Called: by torch, when its rendezvous package is imported."""
    return _make_handler


def _make_handler(parameters: object) -> object:
    from elastic_core.api.rendezvous import torch_handler  # now that it is asked for

    return torch_handler(parameters, backend="etcd")
