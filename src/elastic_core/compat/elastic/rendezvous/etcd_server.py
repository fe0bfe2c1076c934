"""`torch.distributed.elastic.rendezvous.etcd_server`, by ours."""

from elastic_core.compat.elastic.utils.distributed import get_socket_with_port as find_free_port
from elastic_core.rendezvous import EtcdServer

__all__ = ["EtcdServer", "find_free_port"]
