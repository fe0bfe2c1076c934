"""A class of torch's own lays out workers' logs."""

from logs_specs_kit import WORKER

TORCHS = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

class Noted(DefaultLogsSpecs):
    def reify(self, envs):
        dest = super().reify(envs)
        for env in envs.values():
            env["NOTED"] = "yes"
        return dest
"""


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
