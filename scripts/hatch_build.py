"""Adds the worker hooks' `.pth` file to the core's wheels."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "elastic_core_worker_hooks.pth"


class WorkerHooksPth(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own examples leave the parameter open
    """Puts the file beside the package: Hatch's own mechanism leaves force-included files out of editable wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to what goes to the top of site-packages."""
        source = str(Path(self.root) / "src" / PTH)
        key = "force_include_editable" if version == "editable" else "force_include"
        build_data.setdefault(key, {})[source] = PTH
