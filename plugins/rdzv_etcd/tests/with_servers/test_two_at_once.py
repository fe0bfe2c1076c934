"""Two agents that join at the same moment over etcd."""

import subprocess

import pytest

from support import ELASTIC

SHOW = "echo rank=$GROUP_RANK of=$GROUP_WORLD_SIZE restarts=$TORCHELASTIC_RESTART_COUNT"


@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_two_nodes_that_join_at_once_form_one_round(etcd_server, run_id, tmp_path, nnodes):
    command = [
        *ELASTIC, "--rdzv-backend", "etcd", "--rdzv-endpoint", etcd_server.endpoint, "--rdzv-id", run_id,
        "--nnodes", nnodes, "--no-python", "bash", "-c", SHOW,
    ]  # fmt: skip
    nodes = [
        subprocess.Popen(
            [*command[: len(ELASTIC)], "--node-id", name, *command[len(ELASTIC) :]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    try:
        said = [node.communicate(timeout=90) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert [node.returncode for node in nodes] == [0, 0], said
    lines = sorted(line for out, _ in said for line in out.splitlines() if "rank=" in line)
    assert [line[line.index("rank=") :] for line in lines] == [f"rank={rank} of=2 restarts=0" for rank in (0, 1)], said
