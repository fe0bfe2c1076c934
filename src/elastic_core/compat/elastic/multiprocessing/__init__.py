"""`torch.distributed.elastic.multiprocessing`, by ours."""
