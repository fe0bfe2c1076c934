"""A stand-in for torch, for tests in which only matters that it is there, or that its import takes time."""

import os
from pathlib import Path

import pytest

IMPORT_S = 0.3
"""How long its import takes; it sleeps."""

TEXT = f"""
import time, types
time.sleep({IMPORT_S})
__version__ = "9.9.9"

def _devices(count):
    return types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)

cuda, xpu, npu = _devices(2), _devices(0), _devices(4)
accelerator = _devices(2)
accelerator.current_accelerator = lambda: types.SimpleNamespace(type="cuda")
_C = types.SimpleNamespace(_get_privateuse1_backend_name=lambda: "npu")
"""


@pytest.fixture
def stub_torch(tmp_path: Path) -> dict[str, str]:
    """Variables with which an interpreter finds the stand-in: two CUDA devices, no XPU, four of a backend `npu`."""
    folder = tmp_path / "stub"
    folder.mkdir()
    (folder / "torch.py").write_text(TEXT)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
