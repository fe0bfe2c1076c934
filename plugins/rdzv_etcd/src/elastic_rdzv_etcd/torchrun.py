"""`torchrun --rdzv-backend etcd-v3`: what stock torchrun finds in its group of entry points, `torchrun.handlers`.

Its own `etcd` and `etcd-v2` speak the v2 API, and their names can't be taken. Every start of torchrun imports this
module, with whatever backend, so that it imports nothing.
"""


def etcd_v3() -> object:
    """Return what makes a handler. Called: by torch, when its rendezvous package is imported."""
    return _make_handler


def _make_handler(parameters: object) -> object:
    from elastic_core.api.rendezvous import torch_handler  # now that it is asked for

    return torch_handler(parameters, backend="etcd")
