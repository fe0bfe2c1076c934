"""The kinds of failures: what policies and rule files tell apart."""

import enum


class FailureClass(enum.StrEnum):
    """What kind of thing went wrong first."""

    USER_EXCEPTION = "user exception"
    USAGE = "import or usage error"
    EXIT = "non-zero exit"
    SIGNAL = "signal"
    OOM_HOST = "out of memory on host"
    DEVICE = "device"
    """An accelerator, its driver or a library of it has failed; `DeviceFault` says how."""
    OOM_DEVICE = "out of memory on device"
    """A case of `DEVICE`, apart as it has another remedy: `on_device` is true of both."""
    HANG = "hang"
    NODE_LOST = "node lost"
    PREEMPTED = "preempted"
    HEALTH_CHECK = "health check"
    RENDEZVOUS = "rendezvous"
    STORE = "store"
    START_UP = "start-up"

    @property
    def on_device(self) -> bool:
        """Whether an accelerator or its software failed: `DEVICE` or `OOM_DEVICE`."""
        return self in (FailureClass.DEVICE, FailureClass.OOM_DEVICE)


class DeviceFault(enum.StrEnum):
    """What failed about an accelerator, by what CUDA, HIP, XPU, NCCL and their libraries say."""

    OUT_OF_MEMORY = "out of memory"
    """Its memory is too small for what was asked of it."""
    ECC = "ecc"
    """Its memory or a link of it has errors that can't be corrected: the device is to be replaced or reset."""
    ASSERT = "assert"
    """A kernel's assertion does not hold, such as an index out of range: mostly the script's own fault."""
    LOST = "lost"
    """The device is gone, busy or not there."""
    DRIVER = "driver"
    """The driver does not fit, or is not ready."""
    KERNEL = "kernel"
    """A kernel made an illegal access or did not end: the script's fault, or the hardware's."""
    COMMUNICATION = "communication"
    """NCCL, RCCL, oneCCL or HCCL failed here; that a peer is gone is none."""
    LIBRARY = "library"
    """cuBLAS, cuDNN, cuSOLVER, MIOpen or the like failed."""
    OTHER = "other"
    """Any other error of an accelerator."""
