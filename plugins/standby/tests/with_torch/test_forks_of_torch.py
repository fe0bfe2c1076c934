"""Forks of an interpreter that has imported torch."""

import json
import os
import signal

import pytest

from support import wait_for

SCRIPT = """
import json, os, sys, time
given = "torch" in sys.modules and "torch._dynamo" in sys.modules
import torch
import torch.distributed as dist
first = torch.rand(1).item()
torch.mm(torch.ones(300, 300), torch.ones(300, 300))  # the pool of threads is made here
loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3)
loaded = [batch.tolist() for batch in loader]
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
sys.stdout.write(json.dumps({"rank": os.environ["RANK"], "round": os.environ["ELASTIC_ROUND"], "pid": os.getpid(),
    "given": given, "sum": total.item(), "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "seed": torch.initial_seed(), "first": first, "cuda": torch.cuda.is_initialized(), "loaded": loaded,
    "dtype": str(torch.get_default_dtype()), "deterministic": torch.are_deterministic_algorithms_enabled()})
    + os.linesep)
sys.stdout.flush()
if os.environ["ELASTIC_ROUND"] == "0" and len(sys.argv) > 1:
    time.sleep(600)
dist.destroy_process_group()
"""
SAME = ("sum", "threads", "cuda", "dtype", "loaded", "deterministic")
OWN = ("seed", "first")
IMPORTS = "torch,torch.distributed,torch._dynamo"


@pytest.mark.parametrize("omp", [(), ("--omp-threads", "2")], ids=["one thread", "two threads"])
def test_a_worker_with_torch_is_as_cold(elastic, script, omp):
    options = ("--nproc-per-node", "2", *omp)
    cold = elastic(*options, script(SCRIPT))
    assert cold.wait(within_s=120) == 0
    forked = elastic("--standby", "--standby-start", "fork", "--standby-imports", IMPORTS, *options, script(SCRIPT))
    assert forked.wait(within_s=120) == 0
    assert "not forked" not in forked.err
    assert [line["given"] for line in (*cold.lines(), *forked.lines())] == [False, False, True, True]
    for name in SAME:
        assert len({json.dumps(line[name]) for line in (*cold.lines(), *forked.lines())}) == 1, name
    for name in OWN:
        assert len({line[name] for line in (*cold.lines(), *forked.lines())}) == 4, name
    assert wait_for(lambda: not forked.survivors())


def test_a_restart_forks_again(elastic, script):
    options = ("--standby", "--standby-imports", IMPORTS, "--nproc-per-node", "2", "--max-restarts", "1")
    agent = elastic(*options, script(SCRIPT), "stay")
    wait_for(lambda: len(agent.lines()) == 2, within_s=60, what=f"gloo\n{agent.err}")
    os.kill(agent.lines()[1]["pid"], signal.SIGKILL)
    assert agent.wait(within_s=60) == 0
    assert [line["given"] for line in agent.lines()] == [True] * 4
    assert {line["sum"] for line in agent.lines()} == {2.0}
    assert wait_for(lambda: not agent.survivors())


MEETING = """
import json, os, socket, sys, time
import torch.distributed as dist
folder, rank, port = sys.argv[1], os.environ["RANK"], int(os.environ["MASTER_PORT"])
waits = "__new__" in vars(dist.TCPStore)
listening = []
connect = dist.TCPStore.__init__
def note(*args, **kwargs):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))  # as beside the agent's socket, which does not listen
            listening.append(False)
        except OSError:
            listening.append(True)
    connect(*args, **kwargs)
dist.TCPStore.__init__ = note
if rank == "0":
    while len(os.listdir(folder)) < 2:
        time.sleep(0.001)
else:
    open(f"{folder}/{rank}", "w").close()
dist.init_process_group("gloo")
dist.barrier()
sys.stdout.write(json.dumps({"rank": rank, "waits": waits, "left": "__new__" in vars(dist.TCPStore),
    "listening": listening}) + os.linesep)
sys.stdout.flush()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("options", [(), ("-p", "no:agent-store")], ids=["two checks", "one check"])
def test_ranks_that_reach_the_store_first_wait_until_it_listens(elastic, script, tmp_path, options):
    folder = tmp_path / "near"
    folder.mkdir()
    agent = elastic("--standby", "--nproc-per-node", "3", *options, script(MEETING), folder)
    assert agent.wait(within_s=60) == 0
    assert "not forked" not in agent.err
    by_rank = {line.pop("rank"): line for line in agent.lines()}
    for rank in "12":
        assert by_rank[rank] == {"waits": True, "left": False, "listening": [True]}
    assert by_rank["0"]["listening"] == [False]
    assert not by_rank["0"]["left"]
