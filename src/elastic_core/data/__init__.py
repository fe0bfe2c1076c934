"""Going on with a data set where it was left: for training scripts.

Importing it loads nothing; the sampler imports torch when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.data.cycling import CyclingIterator
    from elastic_core.data.sampler import ElasticDistributedSampler

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]


def __getattr__(name: str) -> object:
    if name == "CyclingIterator":
        from elastic_core.data.cycling import CyclingIterator

        return CyclingIterator
    if name == "ElasticDistributedSampler":
        from elastic_core.data.sampler import ElasticDistributedSampler

        return ElasticDistributedSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
