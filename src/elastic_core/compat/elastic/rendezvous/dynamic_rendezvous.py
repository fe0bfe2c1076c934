"""`torch.distributed.elastic.rendezvous.dynamic_rendezvous`, by ours."""

from elastic_core.rendezvous.dynamic import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
    create_handler,
)
from elastic_core.rendezvous.state_backend import RendezvousBackend, Token

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "Token",
    "create_handler",
]
