"""Ties the plugin to exactly the core that it was released with."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersionOfCore(MetadataHookInterface):
    """One version for all distributions of the repository.

    Hatchling reads it from the core's sources or, in an unpacked sdist, from PKG-INFO, before it calls this.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Require the core in this very version, so that no index can answer with another project's file."""
        metadata["dependencies"] = [f"elastic-core=={metadata['version']}"]
