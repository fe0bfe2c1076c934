"""`torch.distributed.elastic.rendezvous.etcd_rendezvous`, by ours."""

from elastic_core.rendezvous.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler, create_rdzv_handler

__all__ = ["EtcdRendezvous", "EtcdRendezvousHandler", "create_rdzv_handler"]
