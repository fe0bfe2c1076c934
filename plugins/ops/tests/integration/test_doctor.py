"""`elastic doctor --nnodes` for real: processes that meet at a server which one of them keeps."""

import subprocess
import sys

from redis_servers import binary, free_port

DOCTOR = [
    sys.executable,
    "-m",
    "elastic_core",
    "doctor",
    "--nnodes",
    "2",
    "--time-limit",
    "60",
    "--rdzv-backend",
    "c10d",
]


def test_two_nodes_meet_where_one_of_them_hosts(tmp_path):
    binary("valkey")  # or the test is skipped
    words = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "bert", "--log-dir", str(tmp_path)]
    nodes = [
        subprocess.Popen([*DOCTOR, *words, "--node-id", name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert nodes[0].returncode == nodes[1].returncode
    (whole,) = [text for text in said if "2 nodes: " in text]
    assert "2 have met" in whole
    assert whole.count("agents' ports  1 tried") == 1
    (other,) = [text for text in said if text != whole]
    assert other.endswith("the first node shows what all have found\n")
