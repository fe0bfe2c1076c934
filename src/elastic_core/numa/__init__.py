"""Binds workers to the processors near their GPUs: torch's room of that name.

`elastic run --numa-binding MODE` does it from the command line; `NumaOptions` is for `LaunchConfig`, `WorkerSpec` and
`start_processes`.
"""

from elastic_core.numa.binding import AffinityMode, NumaOptions

__all__ = ["AffinityMode", "NumaOptions"]
