"""The settings of this node that the other nodes of its run compare."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.options.restart_options import RULES
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.plugins.conversion import convert
from elastic_core.rendezvous.coordinated_options import COORDINATED_OPTIONS
from elastic_core.rendezvous.member.documents import STORE_FORMAT

_UNKNOWN: Final = ""
AGREED_OPTIONS: Final = ("lease_ttl", "last_call_timeout")
"""Options of every coordinated backend that must be equal on all nodes: they define how leases are judged."""
_TORCH_VERSION: Final = re.compile(r"(?:^|\n)__version__\s*=\s*['\"]([^'\"]+)")


def run_fingerprint(settings: RunSettings) -> dict[str, str]:
    """Return the settings that nodes compare when they join a run: short texts for people, none of them secret.

    Only the file name of a script's path counts, because checkouts differ by node. Only a digest of the arguments
    leaves this node, because they may contain tokens.

    Raises:
        ConfigError: An option of `--rdzv-conf` on which all nodes must agree is malformed.
    """
    entrypoint, nodes, source = settings.entrypoint, settings.nodes, settings.workers.nproc_source
    fewest, most, nproc = nodes.min_nodes, nodes.max_nodes, nodes.local_world_size
    made = {
        "nnodes": str(most) if fewest == most else f"{fewest}:{most}",
        "entrypoint": f"-m {entrypoint.module}" if entrypoint.module is not None else Path(entrypoint.name).name,
        "nproc": f"{source} ({nproc})" if source else str(nproc),
        "role": nodes.role,
        "backend_options": ",".join(f"{name}={value}" for name, value in _agreed(settings.rdzv_conf)),
        "agent": "elastic",
        "format": str(STORE_FORMAT),
        "torch": _torch(entrypoint),
        "arguments": _digest(_arguments(entrypoint)),
        "policy": _policy(settings.restarts.name, settings.policy_conf),
        "python": _python(entrypoint),
    }
    # Unknown values are not compared; a missing torch is.
    return {key: text for key, text in made.items() if text or key != "python"}


def _arguments(entrypoint: Entrypoint) -> tuple[str, ...]:
    at = entrypoint.argv.index(entrypoint.name) if entrypoint.name in entrypoint.argv else 0
    return entrypoint.argv[at + 1 :]


def _digest(arguments: Sequence[str]) -> str:
    if not arguments:
        return "none"
    # The lengths make ["a b"] and ["a", "b"] different.
    text = b"".join(b"%d:%s" % (len(raw), raw) for raw in map(os.fsencode, arguments))
    return f"{len(arguments)} (digest {hashlib.sha256(text).hexdigest()[:12]})"


def _agreed(conf: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    # With defaults, so that a typed default equals a missing one.
    for spec in COORDINATED_OPTIONS:
        if spec.name in AGREED_OPTIONS:
            value = convert(conf[spec.name], spec, flag="--rdzv-conf") if spec.name in conf else spec.default
            if value is not None:
                yield spec.name, f"{value:g}" if isinstance(value, float) else value


def _policy(name: str, options: Mapping[str, str]) -> str:
    # The name, and a digest of the options; of a rule file its content, wherever it is.
    conf = dict(options)
    if not conf:
        return name
    if name == RULES and "file" in conf:
        with suppress(OSError, ValueError):  # the policy reports the error later
            conf["file"] = Path(conf["file"]).read_bytes().hex()
    text = "\n".join(f"{key}={value}" for key, value in sorted(conf.items()))
    return f"{name} ({hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]})"


def _torch(entrypoint: Entrypoint) -> str:
    if not entrypoint.python:
        return _UNKNOWN
    return torch_version() if _is_ours(entrypoint) else torch_version(_packages(entrypoint.argv[0]))


def _python(entrypoint: Entrypoint) -> str:
    # Another interpreter's version is in the name of its folder.
    if entrypoint.python and _is_ours(entrypoint):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    folders = _packages(entrypoint.argv[0]) if entrypoint.python else []
    return Path(folders[0]).parent.name.removeprefix("python") if folders else _UNKNOWN


def _is_ours(entrypoint: Entrypoint) -> bool:
    return entrypoint.argv[0] == sys.executable


def _packages(python: str) -> list[str]:
    # Another interpreter is not started for this: it would take as long as a start.
    if os.sep not in python:
        return []
    return sorted(str(folder) for folder in Path(python).parent.parent.glob("lib/python3.*/site-packages"))


# --- torch's version, without torch


def torch_version(paths: Sequence[str] | None = None) -> str:
    """Return the torch release, without build suffix, that an interpreter with these paths would import; empty if none.

    The release is in the metadata's file name. If torch runs from its sources, a file of the build has it.

    `paths` is the interpreter's `sys.path`; `None` means the agent's.
    """
    for entry in dict.fromkeys(sys.path if paths is None else paths):
        version = _torch_in(entry or os.curdir)
        if version:
            return version.partition("+")[0]
    return ""


def _torch_in(directory: str) -> str:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            name, _, suffix = entry.name.rpartition(".")
            if suffix in ("dist-info", "egg-info") and name.startswith("torch-"):
                return name.split("-")[1]
    with suppress(OSError):
        found = _TORCH_VERSION.search(Path(directory, "torch", "version.py").read_text(errors="replace"))
        return found.group(1) if found else ""
    return ""
