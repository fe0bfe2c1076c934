"""The composition root: options in, wired objects out; and the functions that run workers from Python.

Importing it loads nothing: each name is fetched when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.launcher.api import LaunchConfig, elastic_launch, launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from elastic_core.launcher import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
