"""Torch's legacy `etcd` handler by name: the core's rendezvous on the etcd store of elastic-rdzv-etcd (v3 API).

Nothing of torch's protocol on the server is kept: nodes of one run must all be ours.
"""

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from elastic_core.rendezvous.dynamic import DynamicRendezvousHandler
from elastic_core.rendezvous.etcd_client import import_plugin
from elastic_core.rendezvous.parameters import RendezvousParameters
from elastic_core.types import API_VERSION

if TYPE_CHECKING:
    from elastic_core.types import RendezvousInfo


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """The handler that library users get for torch's name `etcd`."""

    api_version: ClassVar[int] = API_VERSION

    def get_backend(self) -> str:
        """Return `etcd`."""
        return "etcd"


class EtcdRendezvous:
    """Joins rounds on etcd: the part of the handler that torch has as a class of its own.

    Args:
        params: As `create_rdzv_handler` takes them.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        """Connect to nothing yet."""
        self.handler = create_rdzv_handler(params)

    def rendezvous_barrier(self) -> "RendezvousInfo":
        """Block until there is a round with this node in it."""
        return self.handler.next_rendezvous()

    def set_closed(self) -> None:
        """End the run for all nodes."""
        self.handler.set_closed()


def create_rdzv_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Return a handler on the `etcd` backend of elastic-rdzv-etcd, with its options; torch's names of them do.

    Raises:
        ValueError: an option can't be.
        PluginError: elastic-rdzv-etcd is not installed.
    """
    import_plugin()
    named = RendezvousParameters(
        "etcd", params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, **params.config
    )
    made: Any = importlib.import_module("elastic_core.compat.library").make_handler(named)  # above this room
    return EtcdRendezvousHandler(made.store, made.settings)


def __getattr__(name: str) -> object:
    if name == "EtcdServer":
        return import_plugin().EtcdServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
