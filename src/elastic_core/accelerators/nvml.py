"""The NVIDIA GPUs of this node, read by the driver's management library, without torch or CUDA."""

import ctypes
from collections.abc import Callable
from pathlib import Path

from elastic_core.types import Record

_DRIVER_NOT_LOADED = 9
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg")


class NvidiaGpus(Record, frozen=True, kw_only=True):
    """The NVIDIA GPUs of this node as the driver reports them."""

    count: int | None
    """The number of GPUs. `None` if the driver cannot report it."""
    uuids: tuple[str, ...] = ()
    """The UUIDs by number. Empty if they were not requested or one cannot be read."""
    pci: tuple[str, ...] = ()
    """The PCI addresses by number, as sysfs names directories: `0000:dc:00.0`. Empty as for `uuids`."""


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
    """Return this node's NVIDIA GPUs. Without a driver there are none."""
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
            uuids=_of_each(nvml, count.value, _uuid) if with_uuids else (),
            pci=_of_each(nvml, count.value, _pci_address) if with_pci else (),
        )
    finally:
        nvml.nvmlShutdown()


def _of_each(nvml: ctypes.CDLL, count: int, read: Callable[[ctypes.CDLL, ctypes.c_void_p], str]) -> tuple[str, ...]:
    # Empty if `read` returns nothing for one of the devices.
    found = []
    for index in range(count):
        handle = ctypes.c_void_p()
        status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if status != 0 or not (text := read(nvml, handle)):
            return ()
        found.append(text)
    return tuple(found)


def _uuid(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(96)
    status = nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(len(text)))
    return text.value.decode("ascii", "replace") if status == 0 else ""


def _pci_address(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    info = _PciInfo()
    status = nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(info))
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if status == 0 else ""
