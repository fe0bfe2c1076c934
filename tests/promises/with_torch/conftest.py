"""Workers of these tests fork from an interpreter that has imported torch."""

from torch_server import elastic_with_torch, torch_python

__all__ = ["elastic_with_torch", "torch_python"]
