"""How a node's devices are counted: variables, NVML, the kernel's files, and torch last."""

import ctypes
import sys

import pytest

from elastic_core.accelerators import nvml
from elastic_core.accelerators.nvml import NvidiaGpus, nvidia_gpus
from elastic_core.accelerators.visible import visible_entries
from elastic_core.errors import ConfigError
from elastic_core.options import devices
from elastic_core.options.devices import Node, count_for, visible_count
from elastic_core.options.worker_options import usable_cores


class FakeNode(Node):
    """A node whose driver and torch answer what the test says."""

    def __init__(self, environ=None, *, gpus=0, uuids=(), torch_says=None, **places):
        super().__init__(environ or {}, **places)
        self.gpus = gpus
        self.uuids = uuids
        self.torch_says = torch_says
        self.asked = []

    def nvidia(self, *, with_uuids=False):
        return NvidiaGpus(count=self.gpus, uuids=self.uuids if with_uuids else ())

    def torch_kinds(self):
        return None

    def ask_torch(self, kind):
        self.asked.append(kind)
        return self.torch_says


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        ("-1", ()),
        ("0,1,3", ("0", "1", "3")),
        (" 2 , 0", ("2", "0")),
        ("0,-1,2", ("0",)),
        ("0,0", ()),
        ("00,0", ()),
        ("1,x,2", ("1",)),
        ("GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        ("GPU-a,1", ("GPU-a",)),
        ("MIG-a,MIG-b", ("MIG-a", "MIG-b")),
        ("MIG-a,GPU-b", ("MIG-a",)),
    ],
)
def test_visible_device_lists_are_read_as_the_runtimes_do(text, entries):
    assert visible_entries(text) == entries


@pytest.mark.parametrize(
    ("variable", "gpus", "uuids", "count"),
    [
        (None, 8, (), 8),
        (None, 0, (), 0),
        ("", 8, (), 0),
        ("-1", 8, (), 0),
        ("1,3,5", 8, (), 3),
        ("1,9,2", 8, (), 1),
        ("0", 0, (), 0),
        ("GPU-aa,GPU-bb", 2, ("GPU-aa11", "GPU-bb22"), 2),
        ("GPU-aa,GPU-cc", 2, ("GPU-aa11", "GPU-bb22"), 1),
    ],
)
def test_nvidia_gpus_are_what_the_variable_and_the_driver_leave(variable, gpus, uuids, count):
    node = FakeNode({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}, gpus=gpus, uuids=uuids)
    assert visible_count("cuda", node)[0] == count
    assert node.asked == []


@pytest.mark.parametrize("gpus", [2, None])
def test_mig_slices_are_counted_by_torch(gpus):
    node = FakeNode({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, gpus=gpus, torch_says=("cuda", 1))
    assert visible_count("cuda", node) == (1, "says torch")
    assert visible_count("cuda", FakeNode({"CUDA_VISIBLE_DEVICES": "MIG-a"}, gpus=0))[0] == 0


def test_an_undetermined_driver_leaves_it_to_torch():
    assert visible_count("cuda", FakeNode(gpus=None, torch_says=("cuda", 3))) == (3, "says torch")
    by_uuid = FakeNode({"CUDA_VISIBLE_DEVICES": "GPU-a"}, gpus=2, uuids=(), torch_says=("cuda", 1))
    assert visible_count("cuda", by_uuid) == (1, "says torch")


def kfd(tmp_path, *simd_counts):
    for index, count in enumerate(simd_counts):
        folder = tmp_path / "nodes" / str(index)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 8\nsimd_count {count}\nmem_banks_count 1\n")
    return tmp_path / "nodes"


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 2),
        ({"HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "GPU-12ab"}, 1),
    ],
)
def test_rocm_gpus_are_counted_from_the_kernels_topology(tmp_path, environ, count):
    node = FakeNode(environ, kfd_nodes=kfd(tmp_path, 0, 304, 304))
    assert visible_count("rocm", node)[0] == count


def test_no_kfd_means_no_rocm_gpu(tmp_path):
    assert FakeNode(kfd_nodes=tmp_path / "absent").rocm() == 0


def test_intel_gpus_are_counted_by_torch_where_there_is_one(tmp_path):
    vendor = tmp_path / "renderD128" / "device"
    vendor.mkdir(parents=True)
    (vendor / "vendor").write_text("0x8086\n")
    assert visible_count("xpu", FakeNode(drm=tmp_path, torch_says=("xpu", 2))) == (2, "says torch")
    (vendor / "vendor").write_text("0x10de\n")
    node = FakeNode(drm=tmp_path)
    assert visible_count("xpu", node)[0] == 0
    assert node.asked == []


@pytest.mark.parametrize("content", [b"0x8086\xff", None])
def test_a_device_that_can_not_be_read_hides_no_other_one(tmp_path, content):
    for number, text in ((128, content), (129, b"0x8086\n"), (130, content)):
        device = tmp_path / f"renderD{number}" / "device"
        device.mkdir(parents=True)
        if text is None:
            (device / "vendor").mkdir()  # no read works; stands for a device that goes meanwhile
        else:
            (device / "vendor").write_bytes(text)
    assert FakeNode(drm=tmp_path).has_intel_gpu()
    nodes = kfd(tmp_path, 304, 304, 304)
    for number, odd in enumerate((b"simd_count many\n", b"\xff 1\n")):
        (sorted(nodes.iterdir())[number] / "properties").write_bytes(odd)
    assert FakeNode(kfd_nodes=nodes).rocm() == 1


def test_words_stand_for_the_first_kind_that_is_there(tmp_path):
    both = FakeNode(gpus=2, kfd_nodes=kfd(tmp_path, 304))
    assert (count_for("gpu", both).kind, count_for("gpu", both).count) == ("cuda", 2)
    amd = FakeNode(gpus=0, kfd_nodes=tmp_path / "nodes")
    assert (count_for("auto", amd).kind, count_for("auto", amd).count) == ("rocm", 1)
    assert count_for("nonsense", amd) is None


def test_a_torch_without_cuda_sees_no_gpu(monkeypatch):
    node = FakeNode(gpus=8)
    monkeypatch.setattr(node, "torch_kinds", frozenset)
    found = count_for("gpu", node)
    assert (found.count, found.reason) == (0, "the installed torch is built without CUDA or ROCm")
    assert count_for("auto", node).kind == "cpu"


def test_torchs_kinds_are_read_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    version = tmp_path / "torch" / "version.py"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    version.write_text("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n")
    assert Node({}).torch_kinds() == {"cuda"}
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = '6.3'\n")
    assert Node({}).torch_kinds() == {"rocm"}
    version.write_text("something else\n")
    assert Node({}).torch_kinds() is None
    version.unlink()
    assert Node({}).torch_kinds() is None
    assert Node({}, python="/usr/bin/other").torch_kinds() is None


class FakeNvml:
    """The C functions of NVML that are used, in Python."""

    def __init__(self, *, init=0, uuids=("GPU-1", "GPU-2")):
        self.init = init
        self.uuids = uuids
        self.shut_down = 0

    def nvmlInit_v2(self):
        return self.init

    def nvmlShutdown(self):
        self.shut_down += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, text, length):
        text.value = self.uuids[handle.value - 1].encode()
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle, info):
        info._obj.domain, info._obj.bus, info._obj.device = ((0, 0x3B, 0), (1, 0xDC, 2))[handle.value - 1]
        return 0


def test_nvml_is_asked_and_closed(monkeypatch):
    library = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert nvidia_gpus() == NvidiaGpus(count=2)
    assert nvidia_gpus(with_uuids=True) == NvidiaGpus(count=2, uuids=("GPU-1", "GPU-2"))
    assert nvidia_gpus(with_pci=True) == NvidiaGpus(count=2, pci=("0000:3b:00.0", "0001:dc:02.0"))
    assert library.shut_down == 3


@pytest.mark.parametrize(("status", "count"), [(9, 0), (18, None)])
def test_nvml_that_does_not_start_means_none_or_unknown(monkeypatch, status, count):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml(init=status))
    assert nvidia_gpus() == NvidiaGpus(count=count)


def test_no_nvml_means_none_unless_device_files_say_otherwise(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml, "_DEVICE_FILES", (str(tmp_path / "nvidiactl"),))
    assert nvidia_gpus(library="libelastic-absent.so.1") == NvidiaGpus(count=0)
    (tmp_path / "nvidiactl").write_text("")
    assert nvidia_gpus(library="libelastic-absent.so.1") == NvidiaGpus(count=None)


@pytest.mark.parametrize(
    ("maximum", "cores"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8)]
)
def test_usable_cores_respect_the_cpu_quota(tmp_path, monkeypatch, maximum, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu.max").write_text(f"{maximum}\n")
    (tmp_path / "membership").write_text("0::/job\n")
    assert usable_cores(tmp_path, tmp_path / "membership") == cores


def test_a_backend_of_its_own_is_torchs_word(monkeypatch):
    monkeypatch.setattr(devices, "_own_backend_installed", lambda: True)
    node = FakeNode(torch_says=("npu", 4))
    assert (count_for("npu", node).count, count_for("auto", node).kind) == (4, "npu")
    assert count_for("npux", FakeNode(torch_says=("npux", -1))) is None


def test_a_python_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"devices could not be counted: .* Try: give the number"):
        Node({}, python=str(tmp_path / "no-python")).ask_torch("cuda")
