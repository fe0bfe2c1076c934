"""`torch.distributed.elastic.rendezvous.etcd_rendezvous_backend`, by ours."""

from elastic_core.rendezvous.etcd_v2_backend import EtcdRendezvousBackend, create_backend

__all__ = ["EtcdRendezvousBackend", "create_backend"]
