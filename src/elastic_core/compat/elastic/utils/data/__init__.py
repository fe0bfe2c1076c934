"""`torch.distributed.elastic.utils.data`, by ours."""

from elastic_core.data import CyclingIterator, ElasticDistributedSampler

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]
