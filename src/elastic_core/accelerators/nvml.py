"""Asks the driver's management library about NVIDIA GPUs, without torch or CUDA."""

import ctypes
from pathlib import Path

from elastic_core.types import Record

_DRIVER_NOT_LOADED = 9
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg")


class NvidiaGpus(Record, frozen=True, kw_only=True):
    """What the driver says: how many GPUs, and their UUIDs where it told them; `count` None: it can't tell."""

    count: int | None
    """How many there are."""
    uuids: tuple[str, ...] = ()
    """Their UUIDs, by number."""
    pci: tuple[str, ...] = ()
    """Their PCI addresses, as directories of sysfs are named: `0000:dc:00.0`."""


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t` of the library's third version."""

    _fields_ = (
        ("short_bus_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def nvidia_gpus(*, with_uuids: bool = False, with_pci: bool = False, library: str = "libnvidia-ml.so.1") -> NvidiaGpus:
    """Return this node's NVIDIA GPUs; no driver means none."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        # Some boards and virtual machines have GPUs but no management library: only CUDA itself can tell there.
        return NvidiaGpus(count=None if any(Path(name).exists() for name in _DEVICE_FILES) else 0)
    status = nvml.nvmlInit_v2()
    if status != 0:
        return NvidiaGpus(count=0 if status == _DRIVER_NOT_LOADED else None)
    try:
        count = ctypes.c_uint(0)
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return NvidiaGpus(count=None)
        return NvidiaGpus(
            count=count.value,
            uuids=_uuids(nvml, count.value) if with_uuids else (),
            pci=_pci(nvml, count.value) if with_pci else (),
        )
    finally:
        nvml.nvmlShutdown()


def _uuids(nvml: ctypes.CDLL, count: int) -> tuple[str, ...]:
    """Return the UUIDs of all devices, none of them where one can't be read."""
    uuids = []
    for index in range(count):
        handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            return ()
        if nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(len(text))) != 0:
            return ()
        uuids.append(text.value.decode("ascii", "replace"))
    return tuple(uuids)


def _pci(nvml: ctypes.CDLL, count: int) -> tuple[str, ...]:
    """Return the PCI addresses of all devices, none of them where one can't be read."""
    addresses = []
    for index in range(count):
        handle = ctypes.c_void_p()
        info = _PciInfo()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            return ()
        if nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(info)) != 0:
            return ()
        addresses.append(f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0")
    return tuple(addresses)
