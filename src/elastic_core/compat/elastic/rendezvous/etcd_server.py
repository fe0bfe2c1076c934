"""`torch.distributed.elastic.rendezvous.etcd_server`, by ours."""

from elastic_core.rendezvous import EtcdServer

__all__ = ["EtcdServer"]
