"""Launcher and supervisor for elastic, fault-tolerant distributed PyTorch training.

Importing the package loads nothing: each name is fetched from its room when it is first used.
"""

from elastic_core._version import __version__

__all__ = ["__version__"]
