"""What this node was started with, for the others of its run to compare."""

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
    """Return what nodes compare when they join a run; see `rendezvous.identity.fingerprint`.

    Raises:
        ConfigError: an option of `--rdzv-conf` that all nodes must agree on is malformed.
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
    # What is not known is not compared; of torch, whether there is one is worth a word.
    return {key: text for key, text in made.items() if text or key != "python"}


def _arguments(entrypoint: Entrypoint) -> tuple[str, ...]:
    """Return what follows the script, module or program."""
    at = entrypoint.argv.index(entrypoint.name) if entrypoint.name in entrypoint.argv else 0
    return entrypoint.argv[at + 1 :]


def _agreed(conf: Mapping[str, str]) -> dict[str, OptionValue]:
    """Return the values that leases and last calls go by, defaults filled in: `5` typed or left out is the same."""
    return {
        spec.name: convert(conf[spec.name], spec, flag="--rdzv-conf") if spec.name in conf else spec.default
        for spec in COORDINATED_OPTIONS
        if spec.name in AGREED_OPTIONS
    }


def _policy(name: str, options: Mapping[str, str]) -> str:
    """Return the policy's name, and a digest of its options: of a rule file the content, wherever it lies."""
    conf = dict(options)
    if not conf:
        return name
    if name == RULES and "file" in conf:
        with suppress(OSError, ValueError):  # the policy itself says what is wrong with it
            conf["file"] = Path(conf["file"]).read_bytes().hex()
    text = "\n".join(f"{key}={value}" for key, value in sorted(conf.items()))
    return f"{name} ({hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]})"


def _torch(entrypoint: Entrypoint) -> str:
    if not entrypoint.python:
        return _UNKNOWN
    return torch_version() if _is_ours(entrypoint) else torch_version(_packages(entrypoint.argv[0]))


def _python(entrypoint: Entrypoint) -> str | None:
    """Return the version of the workers' interpreter, None: ours. Another's is read off its folder's name."""
    if entrypoint.python and _is_ours(entrypoint):
        return None
    folders = _packages(entrypoint.argv[0]) if entrypoint.python else []
    return Path(folders[0]).parent.name.removeprefix("python") if folders else _UNKNOWN


def _is_ours(entrypoint: Entrypoint) -> bool:
    return entrypoint.argv[0] == sys.executable


def _packages(python: str) -> list[str]:
    """Return where another interpreter has its packages, without asking it, which would take as long as a start."""
    if os.sep not in python:
        return []
    return sorted(str(folder) for folder in Path(python).parent.parent.glob("lib/python3.*/site-packages"))
