"""The PCI addresses of the GPUs that a worker sees, without torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastic_core.api.workers import nvidia_gpus, visible_entries

_KFD_NODES = Path("class/kfd/kfd/topology/nodes")
_DRM = Path("class/drm")
_INTEL = "0x8086"


def visible_gpus(
    environ: Mapping[str, str], *, devices: Sequence[str] = (), sysfs: Path = Path("/sys")
) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that workers see, in order; empty if there are none or it is not known.

    NVIDIA's driver is read first, then the kernel's files for AMD and Intel. GPUs are numbered as in the driver, by PCI
    address. This is also CUDA's order if all GPUs are of one kind, or with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

    Args:
        environ: Environment variables that workers inherit.
        devices: `--devices` as entries of the visible-devices variable, in place of the inherited value.
        sysfs: Directory of the kernel's files.
    """
    nvidia = nvidia_gpus(with_uuids=True, with_pci=True)
    if nvidia.pci:
        return _narrowed(nvidia.pci, nvidia.uuids, devices or _entries(environ, "CUDA_VISIBLE_DEVICES"))
    amd = _amd(sysfs)
    if amd:
        below = _narrowed(amd, (), _entries(environ, "ROCR_VISIBLE_DEVICES"))
        hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
        return _narrowed(below, (), devices or _entries(environ, hip))
    return _narrowed(_intel(sysfs), (), devices or _entries(environ, "ZE_AFFINITY_MASK"))


def _entries(environ: Mapping[str, str], variable: str) -> Sequence[str] | None:
    return visible_entries(environ[variable]) if variable in environ else None


def _narrowed(addresses: tuple[str, ...], uuids: tuple[str, ...], entries: Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses of the entries, up to the first entry that matches none, as the runtimes do."""
    if entries is None:
        return addresses
    named: list[str] = []
    for entry in entries:
        if entry.isdecimal():
            index = int(entry) if int(entry) < len(addresses) else None
        else:
            index = next((at for at, uuid in enumerate(uuids) if uuid.startswith(entry)), None)
        if index is None:
            break
        named.append(addresses[index])
    return tuple(named)


def _amd(sysfs: Path) -> tuple[str, ...]:
    found = []
    for path in sorted((sysfs / _KFD_NODES).glob("*/properties"), key=lambda path: int(path.parent.name)):
        try:
            text = path.read_text()
        except OSError:  # a device that our control group may not use
            continue
        fields = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
        if int(fields.get("simd_count", "0")) > 0:
            place, domain = int(fields.get("location_id", "0")), int(fields.get("domain", "0"))
            found.append(f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}")
    return tuple(found)


def _intel(sysfs: Path) -> tuple[str, ...]:
    found = []
    for vendor in sorted((sysfs / _DRM).glob("renderD*/device/vendor")):
        address = vendor.parent.resolve().name
        if vendor.read_text().strip() == _INTEL and re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", address):
            found.append(address)
    return tuple(sorted(found))
