"""What accelerators say, and what it is taken for."""

import time

import pytest

from elastic_core.failure.classify import judge
from elastic_core.failure.device_errors import MAX_CHARS, TABLE, device_fault, fault_among
from elastic_core.failure.incident import build_incident, to_failure
from elastic_core.types import DeviceFault, ErrorRecord, FailureClass, WorkerExit

SAID = [
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB", "out of memory"),
    ("torch.cuda.OutOfMemoryError", "", "out of memory"),
    ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be", "out of memory"),
    ("RuntimeError", "HIP out of memory. Tried to allocate", "out of memory"),
    ("RuntimeError", "XPU out of memory. Tried to allocate", "out of memory"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out of memory"),
    ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "ecc"),
    ("RuntimeError", "CUDA error: uncorrectable NVLink error detected during the execution", "ecc"),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Double Bit ECC error", "ecc"),
    ("RuntimeError", "GPU 3: Xid 94 (contained ECC error)", "ecc"),
    ("torch.AcceleratorError", "CUDA error: device-side assert triggered", "assert"),
    ("RuntimeError", "HIP error: device-side assertion `index out of bounds' failed.", "assert"),
    ("RuntimeError", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "lost"),
    ("RuntimeError", "CUDA error: no CUDA-capable device is detected", "lost"),
    ("RuntimeError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "lost"),
    ("RuntimeError", "No CUDA GPUs are available", "lost"),
    ("RuntimeError", "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "lost"),
    ("RuntimeError", "CUDA error: invalid device ordinal", "lost"),
    ("RuntimeError", "CUDA driver version is insufficient for CUDA runtime version", "driver"),
    ("RuntimeError", "Found no NVIDIA driver on your system. Please check", "driver"),
    ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", "driver"),
    ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", "kernel"),
    ("RuntimeError", "CUDA error: unspecified launch failure", "kernel"),
    ("RuntimeError", "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f", "kernel"),
    ("torch.distributed.DistBackendError", "NCCL error in: x.cpp:1331, unhandled cuda error", "communication"),
    ("RuntimeError", "ncclSystemError: System call (e.g. socket, malloc) failed", "communication"),
    ("RuntimeError", "RCCL error: internal", "communication"),
    ("c10d::nccl2::NCCLException", "internal error", "communication"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", "library"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "library"),
    ("RuntimeError", "miopenStatusUnknownError", "library"),
    ("RuntimeError", "CUDA error: operation not supported", "other"),
    ("RuntimeError", "HIP error: invalid argument", "other"),
    ("torch.AcceleratorError", "something new", "other"),
    ("ValueError", "boom", None),
    ("RuntimeError", "expected a CUDA tensor", None),
    ("RuntimeError", "Expected all tensors to be on the same device, but found cuda:0 and cpu", None),
    ("AssertionError", "Torch not compiled with CUDA enabled", None),
    ("RuntimeError", "the device was busy", None),
    ("MemoryError", "", None),
    ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", None),
]


@pytest.mark.parametrize(("kind", "message", "fault"), SAID)
def test_what_an_accelerator_says(kind, message, fault):
    assert device_fault(kind, message) == fault


def test_each_row_is_shown_by_an_example_and_each_fault_has_one_row():
    assert list(TABLE) == list(DeviceFault)
    assert {fault for _, _, fault in SAID if fault} == set(DeviceFault)


def test_the_most_exact_of_an_exception_and_its_causes_counts():
    texts = [("RuntimeError", "CUDA error: unknown error"), ("RuntimeError", "uncorrectable ECC error")]
    assert fault_among(texts) is DeviceFault.ECC
    assert fault_among(texts[:1]) is DeviceFault.OTHER
    assert fault_among([("ValueError", "boom")]) is None


def test_a_policy_sees_the_fault_and_both_classes_are_of_the_device():
    for message, kind, fault in (
        ("CUDA error: uncorrectable ECC error", FailureClass.DEVICE, DeviceFault.ECC),
        ("CUDA out of memory", FailureClass.OOM_DEVICE, DeviceFault.OUT_OF_MEMORY),
        ("boom", FailureClass.USER_EXCEPTION, None),
    ):
        error = ErrorRecord(source="hook", type="RuntimeError", message=message, timestamp_ns=1)
        exit = WorkerExit(local_rank=0, global_rank=0, pid=1, code=1, at_s=1.0, at_ns=2, runtime_s=1.0)
        found = build_incident(None, run_id="r", node_id="n", host="h", round_index=0, workers=[judge(exit, error)])
        failure = to_failure(found, at_s=0.0, uptime_s=1.0)
        assert (failure.failure_class, failure.device_fault) == (kind, fault)
        assert failure.failure_class.on_device is (fault is not None)


def test_a_message_of_any_length_takes_no_time():
    began_s = time.process_time()
    for text in ("Xid " * 100_000, "Xid" + " " * 100_000, "CUDA " * 100_000, "Assertion " * 100_000):
        assert len(text) > MAX_CHARS
        device_fault("RuntimeError", text)
    assert time.process_time() - began_s < 1.0
