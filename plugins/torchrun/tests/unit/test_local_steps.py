"""What a worker of torch's kind of agent gets of its node: its devices, and what stands before its lines."""

import socket
from types import SimpleNamespace

import pytest

from elastic_core.compat.elastic.agent.server import WorkerSpec
from elastic_core.errors import ConfigError
from elastic_torchrun.agent.local_steps import LocalSteps, worker_env
from elastic_torchrun.agent.worker_group import Worker, WorkerGroup

HANDLER = SimpleNamespace(get_run_id=lambda: "r", use_agent_store=False)


def group_of(count, **spec):
    return WorkerGroup(
        WorkerSpec(role="trainer", local_world_size=count, entrypoint="t", rdzv_handler=HANDLER, max_restarts=0, **spec)
    )


def visible(monkeypatch, inherited, rank=1):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, text in inherited.items():
        monkeypatch.setenv(name, text)
    made = worker_env(group_of(2, virtual_local_rank=True), Worker(local_rank=rank), HANDLER, restart_count=0)
    assert made["LOCAL_RANK"] == "0"
    return {name: text for name, text in made.items() if "VISIBLE" in name}


def test_each_worker_has_a_device_of_its_own(monkeypatch):
    assert visible(monkeypatch, {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert visible(monkeypatch, {"CUDA_VISIBLE_DEVICES": "7, 5"}) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert visible(monkeypatch, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "7,5"}) == {
        "CUDA_VISIBLE_DEVICES": "5"
    }
    both = {"HIP_VISIBLE_DEVICES": "3,2", "CUDA_VISIBLE_DEVICES": "7,5"}
    assert visible(monkeypatch, both) == dict.fromkeys(both, "2")
    with pytest.raises(ConfigError, match="1 in HIP_VISIBLE_DEVICES='3' for 2 workers"):
        visible(monkeypatch, {"HIP_VISIBLE_DEVICES": "3"})


def test_a_prefix_names_role_ranks_and_host():
    steps = LocalSteps(
        logs_specs=None, start_method="spawn", log_line_prefix_template="${role_name}$rank/$local_rank@${hostname} $x"
    )
    group = group_of(2)
    for worker in group.workers:
        worker.global_rank = 4 + worker.local_rank
    host = socket.gethostname()
    assert steps._prefixes(group) == {0: f"trainer4/0@{host} $x", 1: f"trainer5/1@{host} $x"}
