"""Counting the memory controller's kills, in both versions of cgroups."""

import pytest

from elastic_core.processes.process import OomCounter


@pytest.mark.parametrize(
    ("cgroup", "events"),
    [
        ("0::/job/a:b\n", "job/a:b/memory.events"),
        ("0::/host/path/of/container\n", "memory.events"),
        ("4:memory:/job\n0::/other\n", "memory/job/memory.oom_control"),
        ("4:cpu,memory:/job\n", "memory/memory.oom_control"),
    ],
)
def test_kills_since_the_start_are_counted(tmp_path, cgroup, events):
    (tmp_path / "cgroup").write_text(cgroup)
    file = tmp_path / "root" / events
    file.parent.mkdir(parents=True)
    file.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 9\n")
    counter = OomCounter(proc_cgroup=tmp_path / "cgroup", cgroup_root=tmp_path / "root")
    assert counter.kills() == 0
    file.write_text("low 0\noom 4\noom_kill 5\noom_group_kill 9\n")
    assert counter.kills() == 3
    file.unlink()
    assert counter.kills() == 0


@pytest.mark.parametrize("cgroup", [None, "", "4:cpu:/job\n", "0::/\n"])
def test_a_kernel_that_does_not_tell_counts_none(tmp_path, cgroup):
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    assert OomCounter(proc_cgroup=tmp_path / "cgroup", cgroup_root=tmp_path).kills() == 0
