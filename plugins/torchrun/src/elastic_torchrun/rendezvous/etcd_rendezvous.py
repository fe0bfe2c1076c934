"""Torch's legacy `etcd` handler by name: the core's rendezvous on the etcd store of elastic-rdzv-etcd (v3 API).

Torch's protocol on the server is not used: all nodes of a run must use elastic-core.
"""

from typing import Any, ClassVar

from elastic_core.api import API_VERSION
from elastic_torchrun.rendezvous.dynamic import DynamicRendezvousHandler
from elastic_torchrun.rendezvous.etcd_client import import_plugin
from elastic_torchrun.rendezvous.parameters import RendezvousParameters, run_id_of


class EtcdRendezvous:
    """A run on an etcd server, with the interface of torch's class.

    Args:
        client: python-etcd's `Client`, of which host, port and protocol are used; or the endpoint, `HOST:PORT`.
        prefix: Prefix of the run's keys.
        run_id: The run's id.
        num_min_workers: The fewest nodes.
        num_max_workers: The most nodes.
        timeout: Seconds for the minimum of nodes to join.
        last_call_timeout: Seconds for more nodes, after the minimum has joined.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401  # python-etcd has no types
        prefix: str,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
    ) -> None:
        """Connect to nothing yet."""
        self.client = client
        config: dict[str, Any] = {
            "etcd_prefix": prefix,
            "timeout": timeout,
            "last_call_timeout": last_call_timeout,
        }
        endpoint = client if isinstance(client, str) else f"{client.protocol}://{client.host}:{client.port}"
        self._parameters = RendezvousParameters(
            "etcd", endpoint, run_id_of(run_id), num_min_workers, num_max_workers, **config
        )
        self._handler: EtcdRendezvousHandler | None = None

    @property
    def parameters(self) -> RendezvousParameters:
        """The parameters from which it was made."""
        return self._parameters

    def rendezvous_barrier(self) -> tuple[int, int, int]:
        """Block until there is a round with this node in it. Return its token, this node's rank, and the node count.

        Raises:
            RendezvousError: and its subclasses.
        """
        info = self._own().next_rendezvous()
        return info.round_token, info.rank, info.world_size

    def set_closed(self) -> None:
        """End the run for all nodes."""
        self._own().set_closed()

    def shutdown(self) -> bool:
        """Leave."""
        return self._own().shutdown()

    def _own(self) -> "EtcdRendezvousHandler":
        if self._handler is None:
            self._handler = EtcdRendezvousHandler(self, None)
        return self._handler


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """The handler of torch's name `etcd`, for library users.

    Args:
        rdzv_impl: The run.
        local_addr: This node's address, as the others reach it.

    Raises:
        ValueError: an option is invalid.
        PluginError: elastic-rdzv-etcd is not installed.
    """

    api_version: ClassVar[int] = API_VERSION

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None) -> None:
        """Connect to nothing yet."""
        made = _made(rdzv_impl.parameters, local_addr)
        super().__init__(made.store, made.settings)


def create_rdzv_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Return a handler on the `etcd` backend of elastic-rdzv-etcd, with its options; torch's names of them work, too.

    Raises:
        ValueError: an option is invalid.
        PluginError: elastic-rdzv-etcd is not installed.
    """
    made: DynamicRendezvousHandler = _made(params, params.local_addr)
    return made


def _made(params: RendezvousParameters, local_addr: str | None) -> Any:  # noqa: ANN401  # a handler of the backend's
    import_plugin()
    config = dict(params.config)
    if "timeout" in config:  # of the whole rendezvous, in this handler of torch's
        config.setdefault("join_timeout", config.pop("timeout"))
    named = RendezvousParameters(
        "etcd", params.endpoint, params.run_id, params.min_nodes, params.max_nodes, local_addr, **config
    )
    from elastic_torchrun.hosting.library import make_handler  # which needs what this room has

    return make_handler(named)


def __getattr__(name: str) -> object:
    if name == "EtcdServer":
        return import_plugin().EtcdServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
