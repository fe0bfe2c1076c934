"""Workers on processors: a machine is a tree of files, GPUs are addresses."""

import os

import pytest

from elastic_core.accelerators.nvml import NvidiaGpus
from elastic_core.api import HookSettings, WorkersStarting
from elastic_core.cli.dry_run import describe
from elastic_core.errors import ConfigError
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.settings import Entrypoint
from elastic_core.processes.process import bound_to
from elastic_numa import AffinityMode, NumaOptions, binding, gpus, hook
from elastic_numa.binding import bound_cpus
from elastic_numa.topology import Topology, read_ranges, write_ranges
from elastic_plugin_kit import AgentHookConformance, sample_round
from elastic_torchrun.processes.binding import Binding

MODES = ("node", "socket", "exclusive", "core-complex")


class Files:
    """A tree as in sysfs."""

    def __init__(self, root):
        self.root = root

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def gpu(self, address, node):
        self.write(f"bus/pci/devices/{address}/numa_node", str(node))
        return address


def two_sockets(root, *, complexes=True):
    """Two sockets of two nodes of four cores of two threads (N and N + 16), two core complexes a node."""
    files = Files(root)
    for node in range(4):
        first = node * 4
        files.write(f"devices/system/node/node{node}/cpulist", f"{first}-{first + 3},{first + 16}-{first + 19}")
        for core in range(first, first + 4):
            pair = core // 2 * 2
            for cpu in (core, core + 16):
                folder = f"devices/system/cpu/cpu{cpu}"
                files.write(f"{folder}/topology/thread_siblings_list", f"{core},{core + 16}")
                files.write(f"{folder}/topology/physical_package_id", str(node // 2))
                caches = (
                    ("index0", "Data", 1, f"{core},{core + 16}"),
                    ("index1", "Instruction", 4, "0-31"),
                    ("index3", "Unified", 3, f"{pair}-{pair + 1},{pair + 16}-{pair + 17}"),
                )
                for name, *values in caches if complexes else ():
                    for file, value in zip(("type", "level", "shared_cpu_list"), values, strict=True):
                        files.write(f"{folder}/cache/{name}/{file}", value)
    return files


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return two_sockets(tmp_path_factory.mktemp("sysfs"))


@pytest.fixture
def place(machine, monkeypatch):
    def bound(mode, nproc, *, nodes=(), allowed=range(32), environ=None, devices=()):
        addresses = tuple(machine.gpu(f"0000:{index:02x}:00.0", node) for index, node in enumerate(nodes))
        found = NvidiaGpus(count=len(nodes), uuids=tuple(f"GPU-{n}" for n in range(len(nodes))), pci=addresses)
        monkeypatch.setattr(gpus, "nvidia_gpus", lambda **_: found)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(allowed))
        cpus = bound_cpus(AffinityMode(mode), nproc, environ=environ or {}, devices=devices, sysfs=machine.root)
        return [write_ranges(one) for one in cpus]

    return bound


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("node", ["0-3,16-19", "8-11,24-27", "8-11,24-27", "12-15,28-31"]),
        ("socket", ["0-7,16-23", "8-15,24-31", "8-15,24-31", "8-15,24-31"]),
        ("exclusive", ["0-3,16-19", "8-9,24-25", "10-11,26-27", "12-15,28-31"]),
        ("core-complex", ["0-1,16-17", "8-9,24-25", "10-11,26-27", "12-13,28-29"]),
    ],
)
def test_each_worker_goes_to_its_gpu(place, mode, expected):
    assert place(mode, 4, nodes=(0, 2, 2, 3)) == expected


@pytest.mark.parametrize(
    ("mode", "nproc", "expected"),
    [
        ("node", 4, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        ("node", 2, ["0-3,16-19", "8-11,24-27"]),
        ("node", 5, ["0-3,16-19", "0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        ("socket", 2, ["0-7,16-23", "8-15,24-31"]),
        ("socket", 3, ["0-7,16-23", "0-7,16-23", "8-15,24-31"]),
        ("exclusive", 8, [f"{n}-{n + 1},{n + 16}-{n + 17}" for n in range(0, 16, 2)]),
        ("core-complex", 8, [f"{n}-{n + 1},{n + 16}-{n + 17}" for n in range(0, 16, 2)]),
    ],
)
def test_without_gpus_workers_are_split_evenly(place, mode, nproc, expected):
    assert place(mode, nproc) == expected


def test_fewer_gpus_than_workers_decide_nothing(place):
    assert place("node", 2, nodes=(3,)) == ["0-3,16-19", "8-11,24-27"]


def test_cores_left_over_go_to_the_first(place):
    assert place("exclusive", 3, nodes=(0, 0, 0)) == ["0-1,16-17", "2,18", "3,19"]


def test_cores_are_divided_among_all_gpus_of_a_node_as_in_torch(place):
    assert place("exclusive", 1, nodes=(0, 0)) == ["0-1,16-17"]


def test_complexes_are_shared_where_they_are_few_and_the_largest_come_first(place):
    assert place("core-complex", 3, nodes=(0, 0, 0)) == ["0-1,16-17", "2-3,18-19", "0-1,16-17"]
    assert place("core-complex", 2, nodes=(0, 0), allowed=(0, 2, 3, 18)) == ["2-3,18", "0"]


def test_a_machine_that_tells_no_caches_has_one_complex_a_node(tmp_path, monkeypatch):
    machine = two_sockets(tmp_path, complexes=False)
    monkeypatch.setattr(gpus, "nvidia_gpus", lambda **_: NvidiaGpus(count=0))
    topology = Topology(machine.root, allowed=range(32))
    assert {topology.complex_of(cpu) for cpu in topology.cpus_of_node(1)} == {4}


def test_only_allowed_processors_are_given_out(place):
    assert place("node", 1, nodes=(1,), allowed=(4, 20, 31)) == ["4,20"]
    with pytest.raises(ConfigError, match=r"local rank 0 belongs to NUMA node 1, of whose .* \(allowed: 0-3\)"):
        place("node", 1, nodes=(1,), allowed=range(4))


def test_more_owners_than_cores_is_an_error(place):
    with pytest.raises(ConfigError, match="NUMA node 0 has 4 physical cores that may be used, for 5 workers or GPUs"):
        place("exclusive", 5, nodes=(0,) * 5)


def test_a_node_of_minus_one_is_the_only_one(place):
    assert place("node", 1, nodes=(-1,)) == ["0-3,16-19"]


@pytest.mark.parametrize(
    ("environ", "devices", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, (), ["8-11,24-27", "0-3,16-19"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3"}, (), ["4-7,20-23", "12-15,28-31"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("3", "2"), ["12-15,28-31", "8-11,24-27"]),
    ],
)
def test_visible_devices_are_counted(place, environ, devices, expected):
    assert place("node", 2, nodes=(0, 1, 2, 3), environ=environ, devices=devices) == expected


def test_a_gpu_that_sysfs_does_not_show(machine, monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_gpus", lambda **_: NvidiaGpus(count=1, pci=("0000:ff:00.0",)))
    with pytest.raises(ConfigError, match=r"the NUMA node of PCI device 0000:ff:00\.0 can't be read"):
        bound_cpus(AffinityMode.NODE, 1, environ={}, sysfs=machine.root)


def test_amd_gpus_are_found_by_the_kernel(tmp_path, monkeypatch):
    machine = Files(tmp_path)
    monkeypatch.setattr(gpus, "nvidia_gpus", lambda **_: NvidiaGpus(count=0))
    machine.write("class/kfd/kfd/topology/nodes/0/properties", "simd_count 0\nlocation_id 0\ndomain 0")
    machine.write("class/kfd/kfd/topology/nodes/10/properties", f"simd_count 4\nlocation_id {0xC1 << 8}\ndomain 1")
    machine.write(
        "class/kfd/kfd/topology/nodes/9/properties", f"simd_count 4\nlocation_id {0x03 << 8 | 1 << 3}\ndomain 0"
    )
    assert gpus.visible_gpus({}, sysfs=machine.root) == ("0000:03:01.0", "0001:c1:00.0")
    assert gpus.visible_gpus({"HIP_VISIBLE_DEVICES": "1"}, sysfs=machine.root) == ("0001:c1:00.0",)


def test_intel_gpus_are_found_by_the_kernel(tmp_path, monkeypatch):
    machine = Files(tmp_path)
    monkeypatch.setattr(gpus, "nvidia_gpus", lambda **_: NvidiaGpus(count=0))
    machine.write("devices/pci0/0000:4d:00.0/vendor", "0x8086")
    link = machine.root / "class/drm/renderD128/device"
    link.parent.mkdir(parents=True)
    link.symlink_to(machine.root / "devices/pci0/0000:4d:00.0")
    assert gpus.visible_gpus({}, sysfs=machine.root) == ("0000:4d:00.0",)


def test_a_kernel_without_numa_is_one_node(tmp_path):
    topology = Topology(tmp_path, allowed=(0, 1))
    assert (topology.nodes, topology.cpus_of_node(0)) == ((0,), {0, 1})


@pytest.mark.parametrize(("text", "numbers"), [("", set()), ("0", {0}), ("0-2,4,6-7", {0, 1, 2, 4, 6, 7})])
def test_ranges(text, numbers):
    assert read_ranges(text) == numbers
    assert write_ranges(numbers) == text


@pytest.mark.parametrize("mode", MODES)
def test_this_machine(mode):
    (cpus,) = bound_cpus(AffinityMode(mode), 1, environ={})
    assert cpus
    assert cpus <= os.sched_getaffinity(0)


def test_options_of_a_library_call(monkeypatch, caplog):
    options = NumaOptions(AffinityMode.NODE)
    assert isinstance(options, Binding)
    assert options.cpus_for(0, 1)

    def refuse(*_, **__):
        raise ConfigError("no such thing")

    monkeypatch.setattr(binding, "bound_cpus", refuse)
    with pytest.raises(ConfigError):
        options.cpus_for(0, 1)
    assert NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True).cpus_for(0, 1) is None
    assert "workers are not bound to processors: no such thing" in caplog.text


def test_who_starts_a_worker_is_bound_meanwhile_only():
    before = os.sched_getaffinity(0)
    with bound_to(frozenset({min(before)})):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("mode", MODES)
def test_the_command_line_says_which_processors(monkeypatch, mode):
    asked = []

    def bound(mode, nproc, *, environ, devices):
        asked.append((mode.value, nproc, devices))
        return tuple(frozenset({rank}) for rank in range(nproc))

    monkeypatch.setattr(hook, "bound_cpus", bound)
    resolution = resolve(
        {"numa_binding": mode, "nproc_per_node": "2"},
        environ={},
        entrypoint=Entrypoint(argv=("x",), name="x", python=False),
        node=Node({}),
    )
    assert resolution.settings.hook_options == {"numa_binding": mode}
    assert resolution.settings.notices == () or "numa" not in resolution.settings.notices[0]
    settings = HookSettings(name="numa-binding", local_world_size=2, options={"numa_binding": mode})
    chosen = hook.NumaBinding(settings)
    launches = chosen.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
    assert asked == [(mode, 2, ())]
    assert {rank: change.processors for rank, change in launches.workers.items()} == {0: {0}, 1: {1}}


def test_a_dry_run_shows_them_with_the_flag(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(hook, "bound_cpus", lambda *_, **__: (frozenset({0, 1, 2, 5}),))
    text = describe(resolve({"numa_binding": "node"}, str(script), environ={}, node=Node({})), {})
    assert "  runs on  processors 0-2,5 (--numa-binding)" in text
    assert "flag --numa-binding" in text


class TestNumaBinding(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        options = {"numa_binding": "node"}
        return lambda run_dir: hook.NumaBinding(HookSettings(name="numa-binding", run_dir=run_dir, options=options))
