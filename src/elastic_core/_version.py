"""The one version of every distribution of this repository."""

__version__ = "0.1.0"
