"""`torch.distributed.elastic.utils.distributed`, by ours."""

from elastic_core.rendezvous.tcp_store import create_c10d_store, get_free_port, get_socket_with_port

__all__ = ["create_c10d_store", "get_free_port", "get_socket_with_port"]
