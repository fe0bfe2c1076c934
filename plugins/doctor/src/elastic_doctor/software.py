"""Checks of installed software and GPUs, from metadata only; torch is not imported."""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from elastic_core.api.plugins import find_entries
from elastic_core.api.workers import TORCH_HINT, NvidiaGpus, is_supported_torch, nvidia_gpus, visible_entries
from elastic_doctor.findings import WORKERS, Asked, Finding, Level

_ASSIGNED: Final = re.compile(r"""^(__version__|cuda|hip)\b[^=\n]*=\s*['"]([^'"]*)['"]""", re.MULTILINE)
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_CORE: Final = "elastic-core"
_GROUPS: Final = "elastic_core."


def python(asked: Asked) -> Iterator[Finding]:
    """Report the Python of the agents, and by default of the workers."""
    release = ".".join(map(str, sys.version_info[:3]))
    yield Finding(check="python", level=Level.OK, what=f"{release} ({sys.executable})")


def torch_release() -> dict[str, str]:
    """Return the content of torch's version file: `__version__`, `cuda`, `hip`; empty without torch."""
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return {}
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(errors="replace")
    except OSError:
        return {"__version__": "of an unknown version"}
    return dict(_ASSIGNED.findall(text))


def nccl_release() -> str:
    """Return the release of torch's NCCL; empty if there is none, or if it is inside torch's own library."""
    for entry in metadata.distributions():
        name = entry.metadata["Name"] or ""
        if name.startswith("nvidia-nccl-"):
            return f"{name} {entry.version}"
    return ""


def facts(asked: Asked) -> dict[str, str]:
    """Return values that should be the same on all nodes of a run, by name."""
    release = torch_release()
    core = next((entry.version for entry in find_entries(_GROUPS) if entry.distribution == _CORE), "")
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": release.get("__version__", ""),
        "nccl": nccl_release() if release.get("cuda") else "",
        _CORE: core,
        "gpu count": str(nvidia_gpus().count or 0),
        WORKERS: "" if asked.worker_count is None else str(asked.worker_count),
    }


def torch(asked: Asked) -> Iterator[Finding]:
    """Check torch and NCCL of the workers, and whether they fit this node's GPUs."""
    release = torch_release()
    if not release:
        remedy = f"{TORCH_HINT}, or run elastic with the Python that has it"
        yield Finding(check="torch", level=Level.WARN, what=f"not installed for {sys.executable}", remedy=remedy)
        return
    built = f"CUDA {release['cuda']}" if release.get("cuda") else "ROCm" if release.get("hip") else "processors only"
    what = f"{release.get('__version__', '')}, for {built}"
    gpus = nvidia_gpus().count or 0
    if gpus and built == "processors only":
        remedy = "the build of torch for CUDA (pytorch.org/get-started)"
        yield Finding(check="torch", level=Level.FAIL, what=f"{what}: it can't use {gpus} GPUs", remedy=remedy)
    elif not is_supported_torch(release.get("__version__", "")):
        expected = "expected 2.13 to 2.15 for elastic_train and --agent-store"
        yield Finding(check="torch", level=Level.WARN, what=f"{what}; {expected}", remedy=TORCH_HINT)
    else:
        yield Finding(check="torch", level=Level.OK, what=what)
    if release.get("cuda"):
        yield Finding(check="nccl", level=Level.OK, what=nccl_release() or "inside torch, or none")


def plugins(asked: Asked) -> Iterator[Finding]:
    """Check whether elastic-core's distributions have the core's version.

    `endpoint` checks the chosen backend's needs.
    """
    found = {entry.distribution: entry.version for entry in find_entries(_GROUPS)}
    core = found.get(_CORE, "")
    odd = {name: version for name, version in found.items() if _is_ours(name) and version != core}
    if core and odd:
        shown = ", ".join(f"{name} {version}" for name, version in sorted(odd.items()))
        remedy = f"install them from the same checkout as {_CORE}"
        what = f"{_CORE} {core} beside {shown}"
        yield Finding(check="plugins", level=Level.WARN, what=what, remedy=remedy)
        return
    others = sorted(f"{name} {version}".strip() for name, version in found.items() if not _is_ours(name))
    ours = sorted(name.removeprefix("elastic-") for name in found if _is_ours(name) and name != _CORE)
    shown = f"{_CORE} {core}, with {', '.join(ours) or 'nothing else'}"
    yield Finding(check="plugins", level=Level.OK, what="; ".join((shown, *others)))


def _is_ours(name: str) -> bool:
    return name.startswith("elastic-")


def gpus(asked: Asked) -> Iterator[Finding]:
    """Check how many NVIDIA GPUs the driver has, how many a worker would see, and whether these are enough."""
    found = nvidia_gpus(with_uuids=_VISIBLE in asked.environ)
    if found.count is None:
        what = "there are devices, and the driver's library does not answer"
        remedy = "nvidia-smi shows why (a driver of another version than its library, most often)"
        yield Finding(check="gpus", level=Level.WARN, what=what, remedy=remedy)
        return
    visible = _visible(asked, found)
    what = (
        "none" if not found.count else f"{visible} of {found.count} visible" if visible != found.count else f"{visible}"
    )
    if visible < found.count and _VISIBLE in asked.environ:
        what += f" ({_VISIBLE}={asked.environ[_VISIBLE]!r})"
    if found.count and not visible:
        remedy = f"unset {_VISIBLE}, or name devices that there are"
        yield Finding(check="gpus", level=Level.FAIL, what=what, remedy=remedy)
    elif visible and asked.worker_count is not None and asked.worker_count > visible:
        what = f"{what}, {asked.worker_count} workers"
        yield Finding(check="gpus", level=Level.WARN, what=what, remedy=f"--nproc-per-node {visible}, or gpu")
    else:
        yield Finding(check="gpus", level=Level.OK, what=what)


def _visible(asked: Asked, found: NvidiaGpus) -> int:
    count = found.count or 0
    text = asked.environ.get(_VISIBLE)
    if text is None:
        return count
    entries = visible_entries(text)
    known = [entry for entry in entries if not entry.isdecimal() or int(entry) < count]
    return len(known) if len(known) == len(entries) else entries.index(next(e for e in entries if e not in known))
