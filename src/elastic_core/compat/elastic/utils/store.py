"""`torch.distributed.elastic.utils.store`, by ours."""

from elastic_core.rendezvous.store_helpers import barrier, get_all, store_timeout, synchronize

__all__ = ["barrier", "get_all", "store_timeout", "synchronize"]
