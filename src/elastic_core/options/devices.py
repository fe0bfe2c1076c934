"""Counts this node's accelerators and CPU cores without importing torch, and reads `--devices`.

Each vendor's visible-devices variable is read first, as its runtime does, then the driver: NVML for NVIDIA, the
kernel's topology files for ROCm. Other cases (MIG slices, Intel XPUs, unknown vendors) are counted by torch in a
short-lived Python process.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.accelerators.visible import visible_entries
from elastic_core.errors import ConfigError
from elastic_core.options.choices import Draft
from elastic_core.plugins.discovery import find_entries
from elastic_core.torch_release import TORCH_HINT, torch_missing
from elastic_core.types import Record

if TYPE_CHECKING:
    from elastic_core.accelerators.nvml import NvidiaGpus

_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DRM = Path("/sys/class/drm")
_INTEL = "0x8086"
_BACKENDS = "torch.backends"
_ASK_TIMEOUT_S = 120.0
_NAMES = {"cuda": "CUDA GPUs", "rocm": "ROCm GPUs", "xpu": "XPUs"}
VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""The visible-devices variable of each kind."""


class DeviceCount(Record, frozen=True, kw_only=True):
    """The number of workers for a node's devices, with the reason for users."""

    count: int
    kind: str
    """`cuda`, `rocm`, `xpu`, `cpu`, or the name of a torch backend."""
    reason: str


class Node:
    """The place where devices are counted. Tests pass their own.

    `kfd_nodes` is the kernel's topology of ROCm devices, `drm` has its display and render devices. `python` is the
    interpreter whose torch counts devices that no other source reports.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        kfd_nodes: Path = _KFD_NODES,
        drm: Path = _DRM,
        python: str = sys.executable,
    ) -> None:
        self.environ = environ
        self.kfd_nodes = kfd_nodes
        self.drm = drm
        self.python = python

    def nvidia(self, *, with_uuids: bool = False) -> "NvidiaGpus":
        """Return the NVIDIA GPUs that the driver reports."""
        from elastic_core.accelerators.nvml import nvidia_gpus

        return nvidia_gpus(with_uuids=with_uuids)

    def rocm(self) -> int:
        """Return the number of AMD GPUs that the kernel shows."""
        count = 0
        for properties in sorted(self.kfd_nodes.glob("*/properties")):
            with suppress(OSError, ValueError):  # the control group forbids the device, or it is gone
                lines = properties.read_text().splitlines()
                fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
                count += int(fields.get("simd_count", "0")) > 0
        return count

    def has_intel_gpu(self) -> bool:
        """Return whether the node has a render device of Intel."""
        for vendor in self.drm.glob("renderD*/device/vendor"):
            with suppress(OSError, ValueError):
                if vendor.read_text().strip() == _INTEL:
                    return True
        return False

    def torch_kinds(self) -> frozenset[str] | None:
        """Return the kinds of accelerators that the installed torch supports. `None` if not known."""
        if self.python != sys.executable:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        try:
            text = (Path(spec.origin).parent / "version.py").read_text()
        except OSError:
            return None
        built = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*= *(.+)$", text, re.MULTILINE))
        if not built:
            return None
        return frozenset(kind.replace("hip", "rocm") for kind, value in built.items() if value.strip() != "None")

    def ask_torch(self, kind: str) -> tuple[str, int]:
        """Return the kind and number of accelerators that torch sees.

        `kind` is `auto`, or the name of a backend, including `cuda` and `rocm`.

        Raises:
            ConfigError: torch is missing, failed, or did not answer in time.
        """
        import subprocess

        module = {"rocm": "cuda"}.get(kind, kind)
        try:
            answer = subprocess.run(
                [self.python, "-c", _QUESTION, module],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ASK_TIMEOUT_S,
                check=True,
            )
            name, number = answer.stdout.split()[-2:]
            return kind if name == module else name, int(number)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            if last == "ModuleNotFoundError: No module named 'torch'":
                missing = torch_missing("the number of devices", self.python)
                raise ConfigError(missing, hint=f"{TORCH_HINT}, or {_GIVE_NUMBER}") from error
            raise ConfigError(f"devices could not be counted: torch said {last!r}", hint=_GIVE_NUMBER) from error
        except subprocess.TimeoutExpired as error:
            what = f"devices could not be counted: torch gave no answer within {_ASK_TIMEOUT_S:g} s"
            raise ConfigError(what, hint=_GIVE_NUMBER) from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"devices could not be counted: {error}", hint=_GIVE_NUMBER) from error


def node_here(environ: Mapping[str, str]) -> Node:
    """Return this node, with the workers' interpreter."""
    return Node(environ, python=environ.get("PYTHON_EXEC") or sys.executable)


_GIVE_NUMBER = "give the number, as in --nproc-per-node 8"

# Runs in an interpreter of its own; prints the kind and the number as the last two words.
_QUESTION = """
import sys, torch
kind = sys.argv[1]
if kind == "auto":
    here = torch.accelerator.is_available()
    kind = torch.accelerator.current_accelerator().type if here else "cpu"
    print(kind, torch.accelerator.device_count() if here else 0)
elif kind in ("cuda", "xpu", torch._C._get_privateuse1_backend_name()) and hasattr(torch, kind):
    module = getattr(torch, kind)
    print(kind, module.device_count() if module.is_available() else 0)
else:
    print(kind, -1)
"""


def count_for(word: str, node: Node) -> DeviceCount | None:
    """Return the workers for `auto`, `gpu`, `xpu`, `cpu` or a backend's name. `None` for any other text.

    A count of 0 means that the node has no such device.

    Raises:
        ConfigError: The devices could not be counted.
    """
    if word == "cpu":
        cores = len(os.sched_getaffinity(0))
        return DeviceCount(count=cores, kind="cpu", reason=f"{cores} CPU cores")
    if word == "gpu":
        return _first_found(("cuda", "rocm"), node)
    if word == "xpu":
        return _first_found(("xpu",), node)
    if word == "auto":
        found = _first_found(("cuda", "rocm", "xpu"), node)
        if found.count == 0 and _own_backend_installed():
            kind, number = node.ask_torch("auto")
            found = DeviceCount(count=number, kind=kind, reason=f"{number} {kind} devices, says torch")
        return found if found.count > 0 else count_for("cpu", node)
    if word.isidentifier() and _own_backend_installed():
        _, number = node.ask_torch(word)
        return (
            None if number < 0 else DeviceCount(count=number, kind=word, reason=f"{number} {word} devices, says torch")
        )
    return None


def _own_backend_installed() -> bool:
    # Packages can add device backends to torch.
    return any(entry.group == _BACKENDS for entry in find_entries(_BACKENDS))


def _first_found(kinds: tuple[str, ...], node: Node) -> DeviceCount:
    built = node.torch_kinds()
    usable = tuple(kind for kind in kinds if built is None or kind in built)
    if not usable:
        return DeviceCount(count=0, kind=kinds[0], reason=f"the installed torch is built without {_listing(kinds)}")
    for kind in usable:
        count, how = visible_count(kind, node)
        if count > 0:
            return DeviceCount(count=count, kind=kind, reason=f"{count} {_NAMES[kind]}, {how}")
    hidden = [
        name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if name in node.environ
    ]
    values = "".join(f"; {name}={node.environ[name]!r}" for name in hidden)
    return DeviceCount(count=0, kind=usable[0], reason=f"no {_listing(usable)} on this node{values}")


def _listing(kinds: tuple[str, ...]) -> str:
    return " or ".join({"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}[kind] for kind in kinds)


def visible_count(kind: str, node: Node) -> tuple[int, str]:
    """Return the number of devices of a kind that a worker would see, and the source of that number.

    Raises:
        ConfigError: The devices could not be counted.
    """
    if kind == "cuda":
        return _visible_cuda(node)
    if kind == "rocm":
        return _visible_rocm(node)
    if not node.has_intel_gpu():
        return 0, "says the kernel"
    return node.ask_torch("xpu")[1], "says torch"


def _visible_cuda(node: Node) -> tuple[int, str]:
    text = node.environ.get("CUDA_VISIBLE_DEVICES")
    entries = None if text is None else visible_entries(text)
    if entries == ():
        return 0, "by CUDA_VISIBLE_DEVICES"
    if entries is not None and entries[0].startswith("MIG-"):
        return (0 if node.nvidia().count == 0 else node.ask_torch("cuda")[1]), "says torch"
    by_uuid = entries is not None and not entries[0].isdecimal()
    gpus = node.nvidia(with_uuids=by_uuid)
    if gpus.count is None or (by_uuid and gpus.count and not gpus.uuids):
        return node.ask_torch("cuda")[1], "says torch"
    if entries is None:
        return gpus.count, "says the driver"
    return _leading(entries, gpus.count, gpus.uuids), "by CUDA_VISIBLE_DEVICES"


def _visible_rocm(node: Node) -> tuple[int, str]:
    count, how = node.rocm(), "says the kernel"
    # ROCR narrows what HIP sees; HIP falls back to CUDA's variable.
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in node.environ else "CUDA_VISIBLE_DEVICES"
    for name in ("ROCR_VISIBLE_DEVICES", hip):
        if name in node.environ:
            entries = visible_entries(node.environ[name])
            if entries and not entries[0].isdecimal():
                count, how = min(count, len(entries)), f"by {name}"
            else:
                count, how = _leading(entries, count, ()), f"by {name}"
    return count, how


def _leading(entries: tuple[str, ...], count: int, uuids: tuple[str, ...]) -> int:
    # The runtimes stop at the first entry that does not exist.
    for index, entry in enumerate(entries):
        exists = int(entry) < count if entry.isdecimal() else any(uuid.startswith(entry) for uuid in uuids)
        if not exists:
            return index
    return len(entries)


# --- the workers' devices ---


def choose_devices(draft: Draft, node: Node | None) -> tuple[str, tuple[str, ...]]:
    """Return the workers' visible-devices variable, and its entries by `--devices` (empty: inherited).

    Raises:
        ConfigError: `--devices` is malformed, or has devices that do not exist.
    """
    node = node or node_here(draft.environ)
    kind = _kind(node)
    variable = _variable(kind, draft)
    origin = f"derived: torch is built for {kind}" if kind != "cuda" else "default"
    draft.set("workers.device_variable", variable, origin)
    chosen = draft.choices.text("devices") is not None
    return variable, _devices(draft, kind, variable, node) if chosen else ()


def _kind(node: Node) -> str:
    # `--devices` means the kind of accelerator that the installed torch supports.
    built = node.torch_kinds() or frozenset(("cuda",))
    return next((kind for kind in VARIABLES if kind in built), "cuda")


def _variable(kind: str, draft: Draft) -> str:
    if draft.choices.flag("virtual_local_rank") and draft.environ.get("HIP_VISIBLE_DEVICES"):
        return "HIP_VISIBLE_DEVICES"  # as torch 2.15 and later, whatever it is built for
    variable = VARIABLES[kind]
    inherited_cuda = "CUDA_VISIBLE_DEVICES" in draft.environ and variable not in draft.environ
    return "CUDA_VISIBLE_DEVICES" if kind == "rocm" and inherited_cuda else variable


def _devices(draft: Draft, kind: str, variable: str, node: Node) -> tuple[str, ...]:
    # Numbers are positions in an inherited list, so that a scheduler's list stays the limit.
    choices = draft.choices
    items = [part.strip() for part in (choices.text("devices") or "").split(",")]
    entries = visible_entries(",".join(items))
    if len(entries) != len(items):
        choices.reject("devices", "different device numbers, or GPU UUIDs, between commas", hint="--devices 1,3,5")
    if variable in draft.environ and draft.environ[variable].strip():
        inherited = visible_entries(draft.environ[variable])
        if not entries[0].isdecimal():
            return entries
        if max(map(int, entries)) >= len(inherited):
            hint = f"numbers from 0 to {len(inherited) - 1}, or unset {variable}" if inherited else f"unset {variable}"
            choices.reject("devices", f"numbers within {variable}={draft.environ[variable]!r}", hint=hint)
        return tuple(inherited[int(entry)] for entry in entries)
    if entries[0].isdecimal():
        _refuse_absent(draft, entries, kind, node)
    return entries


def _refuse_absent(draft: Draft, entries: tuple[str, ...], kind: str, node: Node) -> None:
    count, how = visible_count(kind, node)
    if max(map(int, entries)) >= count:
        needed = f"devices of this node, which has {count or 'none'} ({kind}, {how})"
        draft.choices.reject("devices", needed, hint=f"numbers from 0 to {count - 1}" if count else "no --devices")
