"""`torch.distributed.elastic` for elastic-core, under `elastic_core.compat`."""
