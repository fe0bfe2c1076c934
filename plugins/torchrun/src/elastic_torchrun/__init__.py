"""Torch's library surface for elastic-core: `torch.distributed.elastic` by ours, under `elastic_core.compat`."""
