"""Finds installed plugins by their group, reading only metadata.

Importing `importlib.metadata` takes 20 ms, as much as the rest of the launcher. So `*.dist-info/entry_points.txt` in
directories of `sys.path` are read directly. Other cases (a zip file, an egg, another finder of distributions) use
`importlib.metadata`; both return the same result.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

GROUP_PREFIX: Final = "elastic_core."
RENDEZVOUS_GROUP: Final = "elastic_core.rendezvous"
FAILURE_GROUP: Final = "elastic_core.failure"
HOOKS_GROUP: Final = "elastic_core.hooks"
COMMANDS_GROUP: Final = "elastic_core.commands"
OPTIONS_GROUP: Final = "elastic_core.options"
ENVIRONMENTS_GROUP: Final = "elastic_core.environments"
METRICS_GROUP: Final = "elastic_core.metrics"
EVENTS_GROUP: Final = "elastic_core.events"

KINDS: Final = {
    RENDEZVOUS_GROUP: "rendezvous backend",
    FAILURE_GROUP: "policy",
    HOOKS_GROUP: "hook",
    COMMANDS_GROUP: "command",
    OPTIONS_GROUP: "option",
    ENVIRONMENTS_GROUP: "environment",
    METRICS_GROUP: "metrics handler",
    EVENTS_GROUP: "event handler",
}
"""The name of each group's plugins for users."""

ENVIRONMENTS_ELSEWHERE: Final = {
    "SLURM_STEP_NUM_NODES": "elastic-env-slurm",
    "ELASTIC_K8S_NNODES": "elastic-env-kubernetes",
}
"""Variables with a number of nodes, and the distribution of this project that reads them."""

TORCH_GROUP: Final = "torchrun.handlers"
"""The group in which stock torchrun finds rendezvous handlers."""
TORCH_SIDE_GROUP: Final = "elastic_core.torch"
GROUPS: Final = frozenset((*KINDS, TORCH_SIDE_GROUP))
"""All groups that this project reads."""

OUR_DISTRIBUTIONS: Final = frozenset(
    {
        "elastic-backend-net",
        "elastic-core",
        "elastic-doctor",
        "elastic-env-kubernetes",
        "elastic-env-slurm",
        "elastic-numa",
        "elastic-ops",
        "elastic-plugin-kit",
        "elastic-policy-rules",
        "elastic-rdzv-etcd",
        "elastic-rdzv-redis",
        "elastic-rdzv-static",
        "elastic-report",
        "elastic-standby",
        "elastic-torchrun",
        "elastic-train",
        "elastic-warm",
        "elastic-watch",
    }
)
"""The distributions of this project; other authors may use similar names."""

# The prefix of the core's own entry points, whatever its distribution's name is.
_BUILT_IN: Final = __name__.partition(".")[0] + "."
# By `sys.path`. `None` means that each call reads them.
_kept: "dict[tuple[str, ...], list[PluginEntry]] | None" = None


class PluginEntry(NamedTuple):
    """One entry point in one of our groups: `value` is `package.module` or `package.module:attribute`."""

    group: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def label(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".rstrip()


def is_built_in(entry: PluginEntry) -> bool:
    """Return whether the entry point's value is in the core."""
    return entry.value.startswith(_BUILT_IN)


def is_of_this_project(entry: PluginEntry) -> bool:
    """Return whether the entry point belongs to this project, by its distribution and its value."""
    package = entry.distribution.replace("-", "_")
    top = entry.value.partition(":")[0].partition(".")[0]
    return is_built_in(entry) or (entry.distribution in OUR_DISTRIBUTIONS and top == package)


def core_name(entries: Iterable[PluginEntry]) -> str:
    """Return the core's distribution, for hints. If the sources are not installed, its usual name."""
    return next((entry.distribution for entry in entries if is_built_in(entry)), "elastic-core")


def find_entries(prefix: str = GROUP_PREFIX) -> list[PluginEntry]:
    """Return all entry points of our groups. If a distribution is found twice, the first on `sys.path` counts.

    Args:
        prefix: The prefix of the groups' names.
    """
    paths = tuple(entry or os.curdir for entry in sys.path if isinstance(entry, str))
    if _kept is None or not prefix.startswith(GROUP_PREFIX):
        return _scan(paths, prefix) if _is_ordinary(paths) else _ask_importlib(prefix)
    if paths not in _kept:
        _kept[paths] = _scan(paths) if _is_ordinary(paths) else _ask_importlib()
    return [entry for entry in _kept[paths] if entry.group.startswith(prefix)]


def keep_entries() -> None:
    """Read the metadata of each `sys.path` only once from now on. Called: by a process that serves one command."""
    global _kept
    _kept = {}


def environments_here(environ: Mapping[str, str]) -> list[PluginEntry]:
    """Return the environments that apply: the variables with the names of their entry points are set."""
    return [entry for entry in find_entries(ENVIRONMENTS_GROUP) if environ.get(entry.name)]


def _is_ordinary(paths: Sequence[str]) -> bool:
    if any(path.endswith(".egg") or Path(path).is_file() for path in paths):
        return False
    # Only the standard path finder may know distributions. Other finders of sys.meta_path import modules only.
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return [getattr(finder, "__name__", "") for finder in finders] == ["PathFinder"]


def _scan(paths: Sequence[str], prefix: str = GROUP_PREFIX) -> list[PluginEntry]:
    found: list[PluginEntry] = []
    seen: set[str] = set()
    for path in dict.fromkeys(paths):
        for name in _metadata_directories(path):
            key = _canonical(name.rpartition(".")[0].partition("-")[0])
            if key in seen:
                continue
            seen.add(key)
            found += _read(path, name, prefix)
    return found


def _metadata_directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith((".dist-info", ".egg-info")))
    except OSError:  # sys.path may have missing or unreadable entries; Python's import skips them too
        return []


def _read(path: str, directory: str, prefix: str) -> Iterator[PluginEntry]:
    text = _text(f"{path}/{directory}/entry_points.txt")
    if prefix not in text:
        return
    distribution, version = _identity(path, directory)
    group = ""
    for raw_line in text.splitlines():
        line = raw_line.strip()
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif group.startswith(prefix) and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield PluginEntry(
                group=group, name=name.strip(), value=_plain(value), distribution=distribution, version=version
            )


def _identity(path: str, directory: str) -> tuple[str, str]:
    # Name and version from the metadata, or else from the directory's name.
    text = _text(f"{path}/{directory}/METADATA") or _text(f"{path}/{directory}/PKG-INFO")
    head = text.partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", head, flags=re.MULTILINE))
    stem = directory.rpartition(".")[0]
    return fields.get("Name", stem.partition("-")[0]), fields.get("Version", stem.partition("-")[2])


def _text(path: str) -> str:
    # Every start reads the entry points of every installed distribution: a `Path` and a text stream for each would
    # take three times as long.
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- see above
            return file.read().decode(errors="replace").replace("\r\n", "\n")
    except OSError:  # most distributions have no entry points
        return ""


def _plain(value: str) -> str:
    # An entry point's value may end with extras.
    return value.partition("[")[0].strip()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _ask_importlib(prefix: str = GROUP_PREFIX) -> list[PluginEntry]:
    import importlib.metadata  # 20 ms: only if direct reading would miss something

    found: list[PluginEntry] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if _canonical(name) in seen:
            continue
        seen.add(_canonical(name))
        found += [
            PluginEntry(
                group=point.group,
                name=point.name,
                value=_plain(point.value),
                distribution=name,
                version=distribution.version,
            )
            for point in distribution.entry_points
            if point.group.startswith(prefix)
        ]
    return found
