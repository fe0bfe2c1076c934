"""`torch.distributed.elastic.utils.data.cycling_iterator`, by ours."""

from elastic_core.data import CyclingIterator

__all__ = ["CyclingIterator"]
