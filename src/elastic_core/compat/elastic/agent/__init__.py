"""`torch.distributed.elastic.agent`, by ours."""
