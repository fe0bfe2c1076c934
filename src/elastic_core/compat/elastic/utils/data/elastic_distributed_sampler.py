"""`torch.distributed.elastic.utils.data.elastic_distributed_sampler`, by ours."""

from elastic_core.data import ElasticDistributedSampler

__all__ = ["ElasticDistributedSampler"]
