"""Composition root: connects the parts of a run and runs it.

From Python: `launch`, `elastic_launch`, `launch_agent` and `LaunchConfig`, which come with elastic-torchrun.
"""

from typing import Any

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes and functions
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastic_core.plugins.torch_side import torch_import

    return getattr(torch_import("launcher", needed_by=f"{__name__}.{name}"), name)
