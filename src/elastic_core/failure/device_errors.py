"""Error messages of accelerators, their drivers and libraries, in one table for reports, policies and rules."""

import re
from collections.abc import Iterable

from elastic_core.types import DeviceFault

TABLE: dict[DeviceFault, str] = {
    DeviceFault.OUT_OF_MEMORY: (
        r"\b(?:CUDA|HIP|XPU|MPS backend|NPU)(?: error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|\b(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)\b|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
    ),
    DeviceFault.ECC: (
        r"\buncorrectable (?:NVLink |ECC )?error|\bECC error|\b[Dd]ouble[- ][Bb]it|\b[Rr]ow[- ][Rr]emap"
        r"|cudaError(?:ECCUncorrectable|NvlinkUncorrectable)\b|hipErrorECCNotCorrectable"
        r"|\bXid\b\D{0,8}(?:\(PCI:[^)]*\): )?(?:48|63|64|94|95)\b"
    ),
    DeviceFault.ASSERT: r"\b[Dd]evice-side assert|cudaErrorAssert\b|hipErrorAssert\b",
    DeviceFault.LOST: (
        r"\bfallen off the bus|\b(?:GPU|device) (?:is|was) lost\b|UR_RESULT_ERROR_DEVICE_LOST"
        r"|\bXid\b\D{0,8}(?:\(PCI:[^)]*\): )?79\b|\bCUDA-capable device\(s\) is/are busy or unavailable"
        r"|\bno (?:CUDA|ROCm)-capable device is detected|\bNo (?:CUDA|HIP|XPU) (?:GPUs|devices) are available"
        r"|\bhipErrorNoDevice\b|cudaError(?:NoDevice|DevicesUnavailable)\b|\b(?:CUDA|HIP) error: invalid device ordinal"
    ),
    DeviceFault.DRIVER: (
        r"\b(?:CUDA|NVIDIA|HIP) driver (?:version is insufficient|initialization failed|on your system is too old)"
        r"|\b(?:CUDA|HIP) error: (?:system not yet initialized|initialization error|no kernel image is available"
        r"|system has unsupported display driver|forward compatibility)|\bFound no NVIDIA driver"
    ),
    DeviceFault.KERNEL: (
        r"\b(?:CUDA|HIP) error: (?:an illegal (?:memory access|instruction)|misaligned address"
        r"|unspecified launch failure|hardware stack error|invalid program counter|the launch timed out)"
        r"|\bMemory access fault by GPU\b|cudaError(?:Illegal(?:Address|Instruction)|Launch(?:Failure|Timeout))\b"
        r"|hipError(?:IllegalAddress|LaunchFailure)\b|\bXid\b\D{0,8}(?:\(PCI:[^)]*\): )?(?:13|31|43)\b"
    ),
    DeviceFault.COMMUNICATION: (
        r"\b[NR]CCL (?:[Ee]rror|failure|Async Error)|\bnccl(?:System|Internal|Remote|UnhandledCuda)Error"
        r"|\bncclInvalid(?:Usage|Argument)\b|\bunhandled (?:cuda|hip) error|\b(?:oneCCL|HCCL) error"
        r"|\bXid\b\D{0,8}(?:\(PCI:[^)]*\): )?74\b"
    ),
    DeviceFault.LIBRARY: (
        r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|HIPSPARSE)_STATUS_(?!SUCCESS)\w"
        r"|\bcu(?:BLAS|DNN|FFT|SOLVER|SPARSE) error|\bCUFFT_(?!SUCCESS)[A-Z]|\bmiopenStatus(?!Success)\w"
        r"|\brocblas_status_(?!success)\w"
    ),
    DeviceFault.OTHER: (
        r"\b(?:CUDA|HIP|XPU|MPS|NPU|CUDA driver|CUDA runtime|SYCL) error\b|\b(?:cuda|hip)Error[A-Z]"
        r"|\bUR_RESULT_ERROR_|\bNVRM: Xid\b"
    ),
}
"""A pattern for each kind of device fault. The first pattern that matches counts."""
_COMPILED = tuple((fault, re.compile(pattern)) for fault, pattern in TABLE.items())
_TYPES = {
    "OutOfMemoryError": DeviceFault.OUT_OF_MEMORY,
    "AcceleratorError": DeviceFault.OTHER,
    "NCCLException": DeviceFault.COMMUNICATION,
}
MAX_CHARS = 8_192


def device_fault(exception_type: str, text: str) -> DeviceFault | None:
    """Return the device fault in an exception; `None` if there is none.

    `exception_type` may have its module. Only the first 8,192 characters of `text` are searched.
    """
    name = exception_type.rpartition(".")[2].rpartition(":")[2]
    text = text[:MAX_CHARS]
    known = _TYPES.get(name)
    if known is DeviceFault.OUT_OF_MEMORY:
        return known
    return next((fault for fault, pattern in _COMPILED if pattern.search(text)), known)


def fault_among(texts: Iterable[tuple[str, str]]) -> DeviceFault | None:
    """Return the most specific fault among classes and messages of an exception and its causes, or `None`."""
    found = [fault for fault in (device_fault(kind, text) for kind, text in texts) if fault is not None]
    return next((fault for fault in found if fault is not DeviceFault.OTHER), found[0] if found else None)
