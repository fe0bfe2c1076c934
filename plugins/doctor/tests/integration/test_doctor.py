"""`elastic doctor --nnodes` for real: processes that meet at a server which one of them keeps."""

import os
import subprocess
import sys

from patience import patience
from ports import free_port
from redis_servers import binary
from terminal_kit import CODE, GREEN, OFF, RED, YELLOW, on_a_terminal

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
    said = [node.communicate(timeout=patience(120))[0] for node in nodes]
    assert nodes[0].returncode == nodes[1].returncode
    (whole,) = [text for text in said if "2 nodes: " in text]
    assert "2 have met" in whole
    assert whole.count("agents' ports  1 tried") == 1
    (other,) = [text for text in said if text != whole]
    assert other.endswith("the first node shows what all have found\n")


def test_auto_where_nothing_says_how_many_is_one_line():
    words = [*DOCTOR[:4], "--nnodes", "auto"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "JOB_"))}
    done = subprocess.run(words, env=bare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "elastic: error: --nnodes auto: nothing here says how many nodes the run has. Try: --nnodes N\n"
    )


def test_auto_of_a_step_of_one_node_looks_at_this_one_alone():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "JOB_"))}
    words = [*DOCTOR[:4], "--nnodes", "auto", "--time-limit", "60"]
    done = subprocess.run(words, env=bare | step, capture_output=True, text=True, timeout=patience(120), check=False)
    assert "node n1: " in done.stdout, done


def test_colours_are_on_a_terminal_only():
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "JOB_"))}
    words, env = [*DOCTOR[:4], "--time-limit", "60"], bare | {"TERM": "xterm"}
    coloured = on_a_terminal(words, env=env)
    assert any(
        line.startswith((f"{GREEN}ok{OFF}    ", f"{YELLOW}warn{OFF}  ", f"{RED}fail{OFF}  ")) for line in coloured
    )
    without = on_a_terminal(words, env=env | {"NO_COLOR": "1"})
    piped = subprocess.run(words, env=env, capture_output=True, text=True, timeout=patience(120), check=False).stdout
    assert "\x1b" not in piped + "".join(without)
    heads = [[CODE.sub("", line).split()[0] for line in lines] for lines in (coloured, without, piped.splitlines())]
    assert heads[0] == heads[1] == heads[2]
