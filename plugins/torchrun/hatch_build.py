"""Ties the distribution to exactly the core that it was released with, and writes its type stubs."""

import runpy
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersionOfCore(MetadataHookInterface):
    """One version for all distributions of the repository, and one place for the core's name.

    In an unpacked sdist hatchling has read version and dependencies from PKG-INFO before it calls this.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Require the core in this very version, so that no index can answer with another project's file."""
        if "dependencies" not in metadata:
            core = tomllib.loads(Path(self.root, "../../pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
            others = [other.format(version=metadata["version"]) for other in self.config["others"]]
            metadata["dependencies"] = [f"{core}=={metadata['version']}", *others]


class Stubs(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own examples leave the parameter open
    """Type stubs of `elastic_core.compat`, whose modules are made at run time: a partial stub package (PEP 561)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write a stub for each module of the table."""
        table = runpy.run_path(str(Path(self.root, "src/elastic_torchrun/names.py")))
        self.folder = tempfile.TemporaryDirectory()
        stubs = Path(self.folder.name)
        texts = {"__init__.pyi": "", **{f"{_path(name, table)}": table["stub"](name) for name in table["NAMES"]}}
        for path, text in texts.items():
            self._add(stubs / "elastic_core-stubs/compat" / path, text, build_data)
        self._add(stubs / "elastic_core-stubs/py.typed", "partial\n", build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written."""
        self.folder.cleanup()

    def _add(self, path: Path, text: str, build_data: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        target = str(path.relative_to(self.folder.name))
        for key in ("force_include", "force_include_editable"):
            build_data.setdefault(key, {})[str(path)] = target


def _path(name: str, table: dict[str, Any]) -> str:
    return f"{name.replace('.', '/')}{'/__init__' if table['is_package'](name) else ''}.pyi"
