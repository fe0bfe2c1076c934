"""Workers of these tests fork from an interpreter that has imported torch."""

from chaos.with_torch.warm_nodes import states
from torch_server import elastic_with_torch, torch_python

__all__ = ["elastic_with_torch", "states", "torch_python"]
