"""Ties the plugin to exactly the core that it was released with."""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersionOfCore(MetadataHookInterface):
    """One version for all distributions of the repository, and one place for the core's name.

    In an unpacked sdist hatchling has read version and dependencies from PKG-INFO before it calls this.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Require the core in this very version, so that no index can answer with another project's file."""
        if "dependencies" not in metadata:
            core = tomllib.loads(Path(self.root, "../../pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
            metadata["dependencies"] = [f"{core}=={metadata['version']}", *self.config["others"]]
