"""`torch.distributed.elastic.rendezvous.registry`, by ours."""

from elastic_core.rendezvous import get_rendezvous_handler

__all__ = ["get_rendezvous_handler"]
