"""Nodes whose workers are kept between rounds: `warm_training.py` under real agents, and what holds for all rounds."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.multi_node import FULL_FIRST, Node, Run
from patience import patience
from ports import free_port
from proc_kit import state_of
from support import wait_for

TRAINING = Path(__file__).with_name("warm_training.py")
STEP_OF_ACTIVITY = 3
WARM_TIMEOUT_S = patience(20)
"""Longer than the lease: a survivor waits so long for the end of its round after it has lost a peer."""
LEASE_S = patience(4)
"""Where a lease must end."""
LONG_LEASE_S = patience(15)
"""Where none must."""
OPTIONS = (
    *("--nproc-per-node", "2", "--omp-threads", "1", "--standby", "--warm-timeout", f"{WARM_TIMEOUT_S:g}"),
    *("--shutdown-timeout", f"{2 * WARM_TIMEOUT_S:g}"),
)
LONG_S = 60.0
"""How long an agent with its import of torch, and the rounds of a test, may take on an idle machine."""


@pytest.fixture(scope="session")
def states(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the digests of all states of a training that is one process, by step."""
    folder = tmp_path_factory.mktemp("undisturbed")
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env |= {"TEST_SHARED": str(folder)}
    ran = subprocess.run([torch_python, TRAINING], env=os.environ | env, capture_output=True, text=True, check=True)
    return [line.removeprefix("state ") for line in ran.stdout.splitlines() if line.startswith("state ")]


class WarmRun:
    """One run of the training in a store, whose workers stay in the step of an activity in round 0.

    Args:
        run: The run.
        states: The digests of an undisturbed one.
        activity: What the workers do.
        holder: The worker (node:local rank) for which the others wait; empty for none.
        lease_s: How long a node is not taken for lost.
    """

    def __init__(self, run: Run, states: list[str], activity: str, *, holder: str, lease_s: float = LEASE_S) -> None:
        run.script, run.lease_s = TRAINING, lease_s
        self.run, self.shared, self._states = run, run.shared, states
        self._env = {"ACTIVITY": activity, "HOLDER": holder, "PYTHON_EXEC": sys.executable}
        (self.shared / "hold-0").touch()

    def node(self, name: str, *options: str, conf: str = FULL_FIRST) -> Node:
        """Start an agent. By default, the first round waits for both nodes."""
        return self.run.node(name, "1:2", *OPTIONS, *options, conf=conf, env=self._env)

    def both(self, names: str, *options: str) -> dict[str, Node]:
        """Start two agents; the first has the ranks 0 and 1, and the store of the group."""
        nodes = {names[0]: self.node(names[0], *options)}
        wait_for(lambda: self.run._seats() == 1, within_s=LONG_S, what=f"a seat\n{nodes[names[0]].agent.err}")
        nodes[names[1]] = self.node(names[1], *options)
        return nodes

    def until(self, mark: str, ranks: int, *nodes: Node) -> None:
        """Wait for a mark of so many ranks."""
        paths = [self.shared / f"{mark}-{rank}" for rank in range(ranks)]
        told = "\n".join(f"{node.name}: {node.agent.err}\n{node.agent.out}" for node in nodes)
        wait_for(lambda: all(path.exists() for path in paths), within_s=LONG_S, what=f"{mark} of {ranks} ranks\n{told}")

    def began(self, node: Node, index: int) -> dict[int, dict[str, object]]:
        """Wait until both workers of a node have begun a round; return their lines by local rank."""

        def found() -> dict[object, dict[str, object]]:
            assert node.agent.process.poll() is None, node.agent.err
            lines = {line["local"]: line for line in node.says() if line["gen"] == index}
            return lines if len(lines) == 2 else {}

        return wait_for(found, within_s=LONG_S, what=f"round {index} of {node.name}\n{node.agent.err}")  # type: ignore[return-value]

    def ends(self, *nodes: Node, index: int) -> None:
        """Check that the nodes end well, in the undisturbed state, and leave no process."""
        for node in nodes:
            node.ends(0, LONG_S)
        ended = {path.name: path.read_text() for path in self.shared.glob("end-*")}
        assert ended == {f"end-{index}-{rank}": self._states[-1] for rank in range(2 * len(nodes))}
        assert {line["restarts"] for node in nodes for line in node.says()} <= {0, 1}
        wait_for(lambda: not self.run.processes(), what="the end of all processes")
        self.check_rounds()

    def check_rounds(self) -> None:
        """Check that a round began, in any process, only after each process had left the rounds before."""
        began: dict[int, float] = {}
        last: dict[int, float] = {}
        for path in self.shared.glob("alive-*"):
            begin_s, end_s = map(float, path.read_text().split())
            index = int(path.name.rpartition("-")[2])
            began[index] = min(begin_s, began.get(index, begin_s))
            last[index] = max(end_s, last.get(index, end_s))
        indices = sorted(began)
        for earlier, later in pairwise(indices):
            assert last[earlier] < began[later], f"rounds {earlier} and {later} at once"

    def saved(self, index: int) -> dict[int, str]:
        """Return what each rank has saved in a round."""
        return {int(path.name.rpartition("-")[2]): path.read_text() for path in self.shared.glob(f"saved-{index}-?")}

    def state_at(self, step: int) -> str:
        """Return what a save before a step has."""
        return f"{step} {self._states[step]}"


def pids(lines: dict[int, dict[str, object]]) -> dict[int, int]:
    """Return the processes of a node in a round by local rank."""
    return {local: int(str(line["pid"])) for local, line in lines.items()}


def blocked(pid: int) -> bool:
    """Return whether the main thread of a process waits in a system call."""
    return state_of(pid) == "S"
