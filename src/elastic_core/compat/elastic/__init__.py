"""`torch.distributed.elastic`, by ours: the same module paths, each a re-export."""
