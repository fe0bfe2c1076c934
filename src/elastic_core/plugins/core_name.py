"""The name under which the core itself was installed: pyproject.toml is its one place, metadata the way to it."""

from collections.abc import Iterable
from typing import Final

from elastic_core.plugins.discovery import PluginEntry

_BUILT_IN: Final = __name__.partition(".")[0] + "."


def is_built_in(entry: PluginEntry) -> bool:
    """Return whether the entry point leads into the core."""
    return entry.value.startswith(_BUILT_IN)


def core_name(entries: Iterable[PluginEntry]) -> str:
    """Return the distribution that brings the core, for hints; of sources that nobody installed, its usual name."""
    return next((entry.distribution for entry in entries if is_built_in(entry)), "elastic-core")
