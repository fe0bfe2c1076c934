"""`torch.distributed.elastic.utils`, by ours."""
