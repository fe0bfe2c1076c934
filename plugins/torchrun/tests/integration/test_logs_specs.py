"""`--logs-specs`: a class written for torch says where output goes, and the agent does it."""

import json

from logs_specs_kit import WORKER

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
    assert list(agent.runtime.glob("elastic-*/*-*")) == []


def test_errors_are_read_from_the_files_of_a_class(elastic, script, tmp_path, installed):
    logs = tmp_path / "flat"
    agent = elastic("--nproc-per-node", "3", "--log-dir", logs, script(WORKER), "fail", env=installed(OURS, "Flat"))
    assert agent.wait() == 1
    assert json.loads((logs / "r0-a0.json").read_text())["message"]["message"] == "RuntimeError: the reason"
    assert "RuntimeError: the reason" in agent.err
    assert str(logs / "r0-a0.err") in agent.err


def test_a_name_that_nothing_has_ends_the_run_before_it_begins(elastic, script, tmp_path):
    agent = elastic("--logs-specs", "nowhere", script(WORKER))
    assert agent.wait() == 2
    assert "--logs-specs 'nowhere' is not installed; entry points of group torchrun.logs_specs: " in agent.err
    assert agent.out == ""
    assert list(agent.runtime.glob("elastic-*/*-*")) == []


def test_a_class_that_raises_ends_the_run_with_its_name(elastic, script, installed):
    agent = elastic(script(WORKER), env=installed(OURS.replace("root.mkdir", "root.nothing"), "Flat"))
    assert agent.wait() == 3
    assert "logs specs 'acme' (acme-logs 1.2): reify raised" in agent.err
