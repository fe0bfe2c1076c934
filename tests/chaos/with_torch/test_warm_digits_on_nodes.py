"""The example of warm rounds on two nodes whose agents are killed and started again: no bit of its weights differs."""

import os
import random
import re
import sys

import pytest

from chaos.multi_node import Run
from chaos.with_torch.test_warm_digits import TRAIN, pids, weights
from chaos.with_torch.warm_nodes import LONG_S, WARM_TIMEOUT_S
from support import wait_for

IMPORTS = "torch,torch.distributed,torch._dynamo"
OPTIONS = (
    *("--nproc-per-node", "1", "--omp-threads", "1", "--standby", "--standby-imports", IMPORTS),
    *("--warm-timeout", f"{WARM_TIMEOUT_S:g}", "--shutdown-timeout", f"{2 * WARM_TIMEOUT_S:g}"),
)


def workers(node):
    """Return the pids of a node's workers by its status; none before there is one."""
    return [pid for path in node.agent.runtime.glob("elastic-*/*/status.json") for pid in pids(path.parent)]


@pytest.mark.chaos_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("losses", [8])
def test_agents_are_killed_and_started_again(served_run: Run, elastic, losses):
    """With a fixed number of nodes the survivor waits, kept, until the other node is back: the ranks stay two."""
    env = {"PYTHON_EXEC": sys.executable}
    steps = 100 * losses
    undisturbed = elastic("--nproc-per-node", "2", "--omp-threads", "1", TRAIN, "--steps", steps, env=env)
    assert undisturbed.wait(200) == 0, undisturbed.err
    rng = random.Random(f"{os.environ['TESTS_SEED']} warm digits on nodes")
    served_run.script = TRAIN
    words = ("--steps", str(steps), "--log-steps", "1", "--step-s", "0.05")

    def start(name):
        # Another id each time, as of another host: a node that is lost again and again waits ever longer as a spare.
        return served_run.node(f"{name}{len(served_run.nodes)}", "2", *OPTIONS, env=env, words=words)

    def out():
        return "".join(node.agent.out for node in served_run.nodes)

    def trained(number):
        """Return whether both ranks have completed a step of a round: before that, no process is kept."""
        texts = [node.agent.out.partition(f"round {number}: from step ")[2] for node in served_run.nodes]
        return any(len(re.findall(r"^step \d+: ", text, re.MULTILINE)) > 1 for text in texts)

    def done():
        return max(map(int, re.findall(r"^step (\d+): ", out(), re.MULTILINE)), default=0)

    nodes = {name: start(name) for name in "ab"}
    for number in range(losses):
        what = f"a step of round {number}"
        wait_for(lambda number=number: trained(number), within_s=2 * LONG_S, what=what)
        lost = rng.choice("ab")
        (other,) = {"a", "b"} - {lost}
        kept = wait_for(lambda other=other: workers(nodes[other]), what=f"the status of {other}")
        rng.choice([nodes[lost].kill_agent, nodes[lost].power_off])()
        before = done()
        nodes[lost] = start(lost)
        begun = wait_for(
            lambda number=number: re.findall(rf"^round {number + 1}: from step (\d+), 2 ranks$", out(), re.MULTILINE),
            within_s=2 * LONG_S, what=f"round {number + 1}\n{nodes['a'].agent.err}\n{nodes['b'].agent.err}",
        )  # fmt: skip
        # Rank 0 prints a step after its own commit, and may have been lost before the other rank had that commit.
        assert int(begun[0]) >= before - 1
        wait_for(lambda other=other, kept=kept: workers(nodes[other]) == kept, what=f"{kept} to be kept")
    for node in nodes.values():
        node.ends(0, 200)
    assert weights(out()) == weights(undisturbed.out)
    wait_for(lambda: not served_run.processes(), what="the end of all processes")
