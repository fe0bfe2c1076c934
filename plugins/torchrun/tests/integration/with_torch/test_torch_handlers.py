"""Rendezvous handlers that were written for torch, under `elastic run`: installed as a stranger's package would be."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import wait_for
from torch_kit import WORKER, last_round

HANDLERS = """
def named():
    return make

def make(params):
    from torch.distributed import FileStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    class Backend(C10dRendezvousBackend):
        name = "shared-file"

    store = FileStore(params.endpoint, -1)
    return create_handler(store, Backend(store, params.run_id), params)

def broken():
    def refuse(params):
        raise ValueError(f"no such place: {params.get('place')}")
    return refuse

def no_function():
    return 7
"""

NAMES = {
    "shared-file": "strangers_handlers:named",
    "broken": "strangers_handlers:broken",
    "no-function": "strangers_handlers:no_function",
    "missing": "strangers_handlers_of_another_day:named",
    "c10d": "strangers_handlers:broken",
}


@pytest.fixture
def installed(tmp_path):
    """Make a distribution that brings handlers for torch, as pip would have, and return what makes Python find it."""
    site = tmp_path / "site"
    info = site / "strangers_handlers-2.1.dist-info"
    info.mkdir(parents=True)
    (site / "strangers_handlers.py").write_text(HANDLERS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-handlers\nVersion: 2.1\n")
    names = "\n".join(f"{name} = {value}" for name, value in NAMES.items())
    (info / "entry_points.txt").write_text(f"[torchrun.handlers]\n{names}\n")
    return {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def agent(elastic, script, installed, tmp_path):
    """Start agents of one run."""
    path = script(WORKER)

    def start(*args, nnodes="2"):
        options = ["--rdzv-backend", "shared-file", "--rdzv-endpoint", tmp_path / "meet", "--rdzv-id", "stranger"]
        options += ["--rdzv-conf", "last_call_timeout=1,join_timeout=40", "--nnodes", nnodes]
        return elastic(*options, *args, path, tmp_path, env=installed)

    return start


def test_two_nodes_restart_after_a_crash_and_end_together(agent, tmp_path):
    two, one = agents = [agent("--max-restarts", "1", "--nproc-per-node", n) for n in ("2", "1")]
    wait_for(lambda: [len(each.lines()) for each in agents] == [2, 1], within_s=40)
    first = two.lines() + one.lines()
    assert sorted(line["RANK"] for line in first) == ["0", "1", "2"]
    assert {line["TORCHELASTIC_USE_AGENT_STORE"] for line in first} == {"False"}
    (tmp_path / "crash2").touch()
    wait_for(lambda: [len(each.lines()) for each in agents] == [4, 2], within_s=20)
    second = two.lines()[2:] + one.lines()[1:]
    assert sorted(line["RANK"] for line in second) == ["0", "1", "2"]
    assert {line["TORCHELASTIC_RESTART_COUNT"] for line in second} == {"1"}
    assert len({(line["MASTER_ADDR"], line["MASTER_PORT"], line["WORLD_SIZE"]) for line in second}) == 1
    (tmp_path / "finish").touch()
    assert [each.wait() for each in agents] == [0, 0], two.err + one.err


def test_node_joins_and_the_last_failure_ends_all_alike(agent, tmp_path):
    agents = [agent(nnodes="1:2")]
    wait_for(lambda: last_round(agents, 1), within_s=40)
    agents.append(agent(nnodes="1:2"))
    wait_for(lambda: last_round(agents, 2), within_s=40)
    (tmp_path / "crash1").touch()
    assert [each.wait(20) for each in agents] == [3, 3], agents[0].err + agents[1].err
    assert all("rank 1" in each.err for each in agents)


def test_wait_for_others_ends_with_ctrl_c(agent):
    alone = agent()
    wait_for(lambda: "torch/lib" in Path(f"/proc/{alone.pid}/maps").read_text(), within_s=40)
    wait_for(lambda: (alone.runtime.parents[1] / "meet").exists(), within_s=40)
    alone.signal(signal.SIGINT)
    assert alone.wait(5) == 130
    assert "rendezvous 'shared-file' (strangers-handlers 2.1) can't be interrupted: left behind" in alone.err


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        (
            "broken",
            4,
            "next_rendezvous of backend 'broken' (strangers-handlers 2.1) raised ValueError: no such place: ",
        ),
        ("no-function", 3, "rendezvous backend 'no-function' (strangers-handlers 2.1): strangers_handlers:no_function"),
        (
            "missing",
            3,
            "rendezvous backend 'missing' (strangers-handlers 2.1): importing strangers_handlers_of_another_day:named",
        ),
    ],
)
def test_handler_that_is_broken_ends_in_one_line(elastic, script, installed, name, code, told):
    agent = elastic("--rdzv-backend", name, "--rdzv-conf", "place=here", script("pass"), env=installed)
    assert agent.wait() == code
    (line,) = [line for line in agent.err.splitlines() if line.startswith("elastic: error: ")]
    assert line.startswith(f"elastic: error: {told}")


def test_a_script_gets_the_strangers_handler_itself(installed, tmp_path):
    code = (
        "from elastic_core.compat.elastic.rendezvous import RendezvousParameters\n"
        "from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler\n"
        f"params = RendezvousParameters('shared-file', {str(tmp_path / 'meet')!r}, 'run', 1, 1)\n"
        "print(type(get_rendezvous_handler(params)).__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=installed, check=True)
    assert done.stdout.strip() == "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


def test_handler_needs_torch_and_says_so(elastic, script, installed, tmp_path):
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('no torch today')\n")
    agent = elastic("--rdzv-backend", "shared-file", script("pass"), env=installed)
    assert agent.wait() == 3
    (line,) = agent.err.splitlines()
    assert (
        "'shared-file' (strangers-handlers 2.1), written for torchrun: torch can't be imported (ImportError: no" in line
    )
    assert line.endswith("expected torch 2.13 to 2.15. Try: pip install 'torch>=2.13,<2.16'")


def test_list_has_them_without_importing_them(installed):
    command = [sys.executable, "-X", "importtime", "-m", "elastic_core", "plugins", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=installed, check=True)
    found = {plugin["name"]: plugin for plugin in json.loads(done.stdout)}
    assert found["shared-file"]["distribution"] == "strangers-handlers"
    assert found["shared-file"]["status"] == "hosted: written for torchrun"
    assert found["c10d"]["distribution"] == "elastic-rdzv-redis"
    assert "etcd-v3" not in found  # ours, the other way round
    assert "strangers_handlers" not in done.stderr
    assert "| torch\n" not in done.stderr
