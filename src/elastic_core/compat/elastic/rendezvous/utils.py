"""`torch.distributed.elastic.rendezvous.utils`, by ours."""

from elastic_core.rendezvous.torch_endpoint import parse_rendezvous_endpoint

__all__ = ["parse_rendezvous_endpoint"]
