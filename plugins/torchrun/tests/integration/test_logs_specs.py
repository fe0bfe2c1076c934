"""`--logs-specs`: a class written for torch says where output goes, and the agent does it."""

import json

import pytest

OURS = """
import os, pathlib
from elastic_core.compat.elastic.multiprocessing import LogsDest, LogsSpecs

class Flat(LogsSpecs):
    def reify(self, envs):
        root = pathlib.Path(self.root_log_dir)
        root.mkdir(exist_ok=True)
        at = {rank: f"{root}/r{rank}-a{env['TORCHELASTIC_RESTART_COUNT']}" for rank, env in envs.items()}
        for rank, env in envs.items():
            env["WHERE"] = at[rank]
        return LogsDest(
            stdouts={0: at[0] + ".out", 1: at[1] + ".out", 2: ""},
            stderrs={rank: at[rank] + ".err" for rank in envs},
            tee_stdouts={1: at[1] + ".out"},
            error_files={rank: at[rank] + ".json" for rank in envs},
            filtered_stdout=f"{root}/loss.log",
        )

    @property
    def root_log_dir(self):
        return self._root_log_dir
"""

TORCHS = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

class Noted(DefaultLogsSpecs):
    def reify(self, envs):
        dest = super().reify(envs)
        for env in envs.values():
            env["NOTED"] = "yes"
        return dest
"""

WORKER = """
import os, sys, time
rank = os.environ["RANK"]
print("loss", rank, os.environ.get("WHERE", "")[-5:], os.environ.get("NOTED", ""), flush=True)
print("on stderr", rank, file=sys.stderr, flush=True)
if len(sys.argv) > 1:
    open(f"said{rank}", "w").close()
    while rank == "0" and not os.path.exists("said1"):
        time.sleep(0.005)
    if rank == "0":
        raise RuntimeError("the reason")
"""


@pytest.fixture
def installed(tmp_path):
    """Install a class by a distribution of its own; return the environment that has it."""

    def install(source, cls):
        root = tmp_path / "site"
        info = root / "acme_logs-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-logs\nVersion: 1.2\n\n")
        (info / "entry_points.txt").write_text(f"[torchrun.logs_specs]\nacme = acme_logs:{cls}\n")
        (root / "acme_logs.py").write_text(source)
        return {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PET_LOGS_SPECS": "acme"}

    return install


def test_the_agent_does_what_a_class_says(elastic, script, tmp_path, installed):
    logs = tmp_path / "flat"
    env = installed(OURS, "Flat")
    filters = ("--duplicate-stdout-filters", "loss")
    agent = elastic("--nproc-per-node", "3", "--log-dir", logs, *filters, script(WORKER), env=env)
    assert agent.wait() == 0, agent.err
    assert sorted(agent.out.splitlines()) == ["[default1]:loss 1 r1-a0 ", "loss 2 r2-a0 "]
    assert agent.err == ""
    files = {path.name: path.read_text() for path in logs.iterdir()}
    assert files == {
        "r0-a0.out": "loss 0 r0-a0 \n",
        "r1-a0.out": "loss 1 r1-a0 \n",
        **{f"r{rank}-a0.err": f"on stderr {rank}\n" for rank in range(3)},
        "loss.log": "[default1]:loss 1 r1-a0 \n",
    }
    assert list(agent.runtime.iterdir()) == []


def test_errors_are_read_from_the_files_of_a_class(elastic, script, tmp_path, installed):
    logs = tmp_path / "flat"
    agent = elastic("--nproc-per-node", "3", "--log-dir", logs, script(WORKER), "fail", env=installed(OURS, "Flat"))
    assert agent.wait() == 1
    assert json.loads((logs / "r0-a0.json").read_text())["message"]["message"] == "RuntimeError: the reason"
    assert "RuntimeError: the reason" in agent.err
    assert str(logs / "r0-a0.err") in agent.err


@pytest.mark.torch
def test_a_class_of_torchs_works_as_it_is(elastic, script, tmp_path, installed):
    logs, env = tmp_path / "logs", installed(TORCHS, "Noted")
    options = ("--nproc-per-node", "2", "--log-dir", logs, "-r", "2", "-t", "0:1", "--local-ranks-filter", "0")
    agent = elastic(*options, script(WORKER), "fail", env=env)
    assert agent.wait() == 1
    assert agent.out == "[default0]:loss 0  yes\n"
    (attempt,) = logs.glob("*/attempt_0")
    assert (attempt / "0/stdout.log").read_text() == "loss 0  yes\n"
    assert (attempt / "1/stderr.log").read_text() == "on stderr 1\n"
    assert "RuntimeError: the reason" in agent.err
    assert "the reason" in (attempt / "0/error.json").read_text()


def test_a_name_that_nothing_has_ends_the_run_before_it_begins(elastic, script, tmp_path):
    agent = elastic("--logs-specs", "nowhere", script(WORKER))
    assert agent.wait() == 2
    assert "--logs-specs 'nowhere' is not installed; entry points of group torchrun.logs_specs: " in agent.err
    assert agent.out == ""
    assert list(agent.runtime.iterdir()) == []


def test_a_class_that_raises_ends_the_run_with_its_name(elastic, script, installed):
    agent = elastic(script(WORKER), env=installed(OURS.replace("root.mkdir", "root.nothing"), "Flat"))
    assert agent.wait() == 3
    assert "logs specs 'acme' (acme-logs 1.2): reify raised" in agent.err
