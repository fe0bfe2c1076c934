"""Nodes of one run with other roles, sizes and scripts, as torch's library has them, over Redis."""

import subprocess
import sys

import pytest

from redis_servers import redis_server  # noqa: F401  # a fixture

NAMES = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
         "GROUP_RANK", "GROUP_WORLD_SIZE")  # fmt: skip

AGENT = f"""
import sys
from elastic_core.compat.elastic.agent.server import WorkerSpec
from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler

endpoint, role, size, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
params = RendezvousParameters("redis", endpoint, "roles", 1, nodes, "127.0.0.1", lease_ttl=20, last_call_timeout=60)
args = ("-c", "echo worker: {" ".join(f"${name}" for name in NAMES)}")
spec = WorkerSpec(role, size, rdzv_handler=get_rendezvous_handler(params), entrypoint="sh", args=args)
result = LocalElasticAgent(spec).run()
print(result.state.name, len(result.return_values), flush=True)
"""

LAUNCH = """
import sys
from elastic_torchrun.launcher.api import LaunchConfig, elastic_launch

endpoint, role, size, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = LaunchConfig(
    min_nodes=2, max_nodes=most, nproc_per_node=size, run_id="launch", role=role, rdzv_backend="redis",
    rdzv_endpoint=endpoint, rdzv_configs={"lease_ttl": 18 + size, "last_call_timeout": 0.5},
)
elastic_launch(config, "sh")("-c", "echo $ROLE_NAME: $ROLE_RANK $ROLE_WORLD_SIZE $RANK")
"""


@pytest.fixture
def agents(tmp_path, redis_server):  # noqa: F811  # the fixture
    """Starts agents of a script, waits for all, returns what they printed."""
    started = []

    def start(script, *lines):
        (tmp_path / "agent.py").write_text(script)
        for line in lines:
            command = [sys.executable, str(tmp_path / "agent.py"), redis_server.endpoint, *map(str, line)]
            started.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
                )
            )  # fmt: skip
        printed = [each.communicate(timeout=90)[0] for each in started]
        assert [each.returncode for each in started] == [0] * len(started), printed
        return printed

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_one_master_three_ps_and_three_trainers_have_ranks_as_torchs(agents):
    sizes = {"master": (4,), "ps": (1, 2, 1), "trainer": (2, 3, 1)}
    lines = [(role, size, 7) for role, counts in sizes.items() for size in counts]
    printed = agents(AGENT, *lines)
    for (_, size, _), text in zip(lines, printed, strict=True):
        assert f"SUCCEEDED {size}" in text
        assert "was begun with" not in text
    workers = [line.split()[1:] for text in printed for line in text.splitlines() if line.startswith("worker: ")]
    rows = sorted((dict(zip(NAMES, values, strict=True)) for values in workers), key=lambda row: int(row["RANK"]))
    assert [int(row["RANK"]) for row in rows] == list(range(14)), printed
    assert {(row["WORLD_SIZE"], row["GROUP_WORLD_SIZE"]) for row in rows} == {("14", "7")}
    for role, counts in sizes.items():
        own = [row for row in rows if row["ROLE_NAME"] == role]
        assert [int(row["ROLE_RANK"]) for row in own] == list(range(sum(counts)))
        assert {row["ROLE_WORLD_SIZE"] for row in own} == {str(sum(counts))}
    nodes = {}
    for row in rows:
        nodes.setdefault(int(row["GROUP_RANK"]), []).append(row)
    assert sorted(nodes) == list(range(7))
    for own in nodes.values():
        assert [int(row["LOCAL_RANK"]) for row in own] == list(range(len(own)))
        assert {(row["LOCAL_WORLD_SIZE"], row["ROLE_NAME"]) for row in own} == {(str(len(own)), own[0]["ROLE_NAME"])}
    assert sorted((own[0]["ROLE_NAME"], len(own)) for own in nodes.values()) == sorted(
        (role, size) for role, counts in sizes.items() for size in counts
    )


def test_launches_with_other_sizes_numbers_of_nodes_and_options_meet(agents):
    printed = agents(LAUNCH, ("ps", 1, 2), ("trainer", 2, 3))
    lines = sorted(line for text in printed for line in text.splitlines())
    ranks = [line.rpartition(" ")[0] for line in lines]
    assert ranks == ["ps: 0 1", "trainer: 0 2", "trainer: 1 2"]
    assert sorted(line.rpartition(" ")[2] for line in lines) == ["0", "1", "2"]
