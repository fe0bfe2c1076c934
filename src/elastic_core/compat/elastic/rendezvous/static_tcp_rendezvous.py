"""`torch.distributed.elastic.rendezvous.static_tcp_rendezvous`, by ours."""

from elastic_core.rendezvous.static_tcp import StaticTCPRendezvous, create_rdzv_handler

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]
