"""The settings of this node that the other nodes of its run compare."""

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.options.restart_options import RULES
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.plugins.conversion import OptionValue, convert
from elastic_core.rendezvous.coordinated_options import COORDINATED_OPTIONS
from elastic_core.rendezvous.identity import AGREED_OPTIONS, fingerprint, torch_version
from elastic_core.rendezvous.member.documents import STORE_FORMAT

_UNKNOWN: Final = ""


def run_fingerprint(settings: RunSettings) -> dict[str, str]:
    """Return the settings that nodes compare when they join a run; see `rendezvous.identity.fingerprint`.

    Raises:
        ConfigError: An option of `--rdzv-conf` on which all nodes must agree is malformed.
    """
    entrypoint = settings.entrypoint
    made = fingerprint(
        min_nodes=settings.nodes.min_nodes,
        max_nodes=settings.nodes.max_nodes,
        entrypoint=entrypoint.module or entrypoint.name,
        is_module=entrypoint.module is not None,
        arguments=_arguments(entrypoint),
        nproc=settings.nodes.local_world_size,
        nproc_source=settings.workers.nproc_source,
        role=settings.nodes.role,
        backend_options=_agreed(settings.rdzv_conf),
        wire_format=STORE_FORMAT,
        torch=_torch(entrypoint),
        python=_python(entrypoint),
        policy=_policy(settings.restarts.name, settings.policy_conf),
    )
    # Unknown values are not compared; a missing torch is.
    return {key: text for key, text in made.items() if text or key != "python"}


def _arguments(entrypoint: Entrypoint) -> tuple[str, ...]:
    at = entrypoint.argv.index(entrypoint.name) if entrypoint.name in entrypoint.argv else 0
    return entrypoint.argv[at + 1 :]


def _agreed(conf: Mapping[str, str]) -> dict[str, OptionValue]:
    # With defaults, so that a typed default equals a missing one.
    return {
        spec.name: convert(conf[spec.name], spec, flag="--rdzv-conf") if spec.name in conf else spec.default
        for spec in COORDINATED_OPTIONS
        if spec.name in AGREED_OPTIONS
    }


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


def _python(entrypoint: Entrypoint) -> str | None:
    # `None` means our version. Another interpreter's version is in the name of its folder.
    if entrypoint.python and _is_ours(entrypoint):
        return None
    folders = _packages(entrypoint.argv[0]) if entrypoint.python else []
    return Path(folders[0]).parent.name.removeprefix("python") if folders else _UNKNOWN


def _is_ours(entrypoint: Entrypoint) -> bool:
    return entrypoint.argv[0] == sys.executable


def _packages(python: str) -> list[str]:
    # Another interpreter is not started for this: it would take as long as a start.
    if os.sep not in python:
        return []
    return sorted(str(folder) for folder in Path(python).parent.parent.glob("lib/python3.*/site-packages"))
