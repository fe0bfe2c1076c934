"""How agents find each other and agree on rounds; and torch's rendezvous, name by name, as a library.

Importing it loads nothing: each name is fetched when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from elastic_core.rendezvous.c10d_backend import C10dRendezvousBackend
    from elastic_core.rendezvous.creators import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )
    from elastic_core.rendezvous.dynamic import DynamicRendezvousHandler, RendezvousTimeout, create_handler
    from elastic_core.rendezvous.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler, EtcdServer
    from elastic_core.rendezvous.etcd_store import EtcdStore
    from elastic_core.rendezvous.etcd_v2_backend import EtcdRendezvousBackend
    from elastic_core.rendezvous.handler import RendezvousHandler
    from elastic_core.rendezvous.parameters import RendezvousParameters
    from elastic_core.rendezvous.state_backend import RendezvousBackend
    from elastic_core.rendezvous.state_store import StateStore
    from elastic_core.rendezvous.static_tcp import StaticTCPRendezvous
    from elastic_core.rendezvous.store_helpers import barrier, get_all, store_timeout, synchronize
    from elastic_core.rendezvous.store_info import RendezvousInfo, RendezvousStoreInfo
    from elastic_core.rendezvous.tcp_store import create_c10d_store, get_free_port
    from elastic_core.rendezvous.torch_endpoint import parse_rendezvous_endpoint

_HOMES: Final = {
    "elastic_core.errors": (
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousError",
        "RendezvousGracefulExitError",
        "RendezvousStateError",
        "RendezvousTimeoutError",
    ),
    "elastic_core.rendezvous.c10d_backend": ("C10dRendezvousBackend",),
    "elastic_core.rendezvous.creators": (
        "RendezvousHandlerCreator",
        "RendezvousHandlerRegistry",
        "get_rendezvous_handler",
        "rendezvous_handler_registry",
    ),
    "elastic_core.rendezvous.dynamic": ("DynamicRendezvousHandler", "RendezvousTimeout", "create_handler"),
    "elastic_core.rendezvous.etcd_rendezvous": ("EtcdRendezvous", "EtcdRendezvousHandler", "EtcdServer"),
    "elastic_core.rendezvous.etcd_store": ("EtcdStore",),
    "elastic_core.rendezvous.etcd_v2_backend": ("EtcdRendezvousBackend",),
    "elastic_core.rendezvous.handler": ("RendezvousHandler",),
    "elastic_core.rendezvous.parameters": ("RendezvousParameters",),
    "elastic_core.rendezvous.state_backend": ("RendezvousBackend",),
    "elastic_core.rendezvous.state_store": ("StateStore",),
    "elastic_core.rendezvous.static_tcp": ("StaticTCPRendezvous",),
    "elastic_core.rendezvous.store_helpers": ("barrier", "get_all", "store_timeout", "synchronize"),
    "elastic_core.rendezvous.store_info": ("RendezvousInfo", "RendezvousStoreInfo"),
    "elastic_core.rendezvous.tcp_store": ("create_c10d_store", "get_free_port"),
    "elastic_core.rendezvous.torch_endpoint": ("parse_rendezvous_endpoint",),
}

__all__ = [
    "C10dRendezvousBackend",
    "DynamicRendezvousHandler",
    "EtcdRendezvous",
    "EtcdRendezvousBackend",
    "EtcdRendezvousHandler",
    "EtcdServer",
    "EtcdStore",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "StateStore",
    "StaticTCPRendezvous",
    "barrier",
    "create_c10d_store",
    "create_handler",
    "get_all",
    "get_free_port",
    "get_rendezvous_handler",
    "parse_rendezvous_endpoint",
    "rendezvous_handler_registry",
    "store_timeout",
    "synchronize",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    if name == "registry":  # as a module, for `elastic_core.rendezvous.registry.register` without an import of its own
        return importlib.import_module(f"{__name__}.registry")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
