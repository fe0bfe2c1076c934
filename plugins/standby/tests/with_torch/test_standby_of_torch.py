"""Spares that have imported torch."""

from standby_kit import kill_a_worker
from support import wait_for

GLOO = """
import json, os, sys, time
fresh = "torch" not in sys.modules
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(json.dumps({"rank": os.environ["RANK"], "round": os.environ["ELASTIC_ROUND"], "pid": os.getpid(),
    "fresh": fresh, "sum": total.item(), "threads": torch.get_num_threads(), "omp": os.environ.get("OMP_NUM_THREADS"),
    "cuda": torch.cuda.is_initialized()}) + os.linesep)
sys.stdout.flush()
if os.environ["ELASTIC_ROUND"] == "0":
    time.sleep(600)
dist.destroy_process_group()
"""


def test_gloo_is_back_without_importing_torch_again(elastic, script, tmp_path):
    (tmp_path / "marker.py").write_text("import os; open(f'{os.path.dirname(__file__)}/ready.{os.getpid()}', 'w')")
    options = (
        "--standby",
        "--standby-start",
        "spawn",
        "--standby-imports",
        "torch,torch.distributed,marker",
        "--nproc-per-node",
        "2",
    )
    agent = elastic(*options, "--max-restarts", "1", script(GLOO), env={"PYTHONPATH": str(tmp_path)})
    wait_for(lambda: len(agent.lines()) == 2, within_s=60, what="gloo")
    wait_for(lambda: len(list(tmp_path.glob("ready.*"))) == 2, within_s=60, what="the spares")
    kill_a_worker(agent)
    assert agent.wait() == 0
    first, second = ([line for line in agent.lines() if line["round"] == each] for each in "01")
    assert [line["fresh"] for line in (*first, *second)] == [True, True, False, False]
    assert {line["sum"] for line in second} == {2.0}
    for name in ("threads", "omp", "cuda"):
        assert len({line[name] for line in (*first, *second)}) == 1, name
    assert wait_for(lambda: not agent.survivors())
