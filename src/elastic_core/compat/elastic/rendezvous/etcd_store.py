"""`torch.distributed.elastic.rendezvous.etcd_store`, by ours."""

from elastic_core.rendezvous.etcd_store import EtcdStore

__all__ = ["EtcdStore"]
