"""torch.numa.binding, under its name."""

from elastic_core.numa.binding import AffinityMode, NumaOptions

__all__ = ["AffinityMode", "NumaOptions"]
