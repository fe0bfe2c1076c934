"""A training job on three nodes, as the faults and their judge see it."""

import gzip
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from chaos.multi_node import LEASE_S, Node, Run
from proc_kit import is_alive
from support import wait_for

SCRIPTS = Path(__file__).parent / "worker"

HANG_S = LEASE_S
RECOVERS_S = 45.0
"""For each thing that is waited for; an idle machine needs a tenth of it."""
AWAY, BACK = "store unreachable", "store back"
_OVER = re.compile(r"round (\d+) is over: (.*)")
_FOLLOWS = re.compile(
    r"\d+ nodes?( with \d+ workers?)? goe?s? on(, and \d+ more that waited)?"
    r"|\d+ nodes? left of at least \d+: waiting for \d+ more"
)
"""What follows the end of a round, which stands behind the reasons for it."""


class NodeEndedError(Exception):
    """A node has ended that should be there."""


@dataclass
class Place:
    """Where a node is, or was. A node that is lost a second time would have to wait, if it kept its id."""

    letter: str
    node: Node | None = None
    started: int = 0
    lost: int = 0

    @property
    def id(self) -> str:
        """The node's id; another one after each second loss."""
        return f"{self.letter}{self.lost // 2}"

    @property
    def agent(self) -> Node:
        """The node that is there."""
        assert self.node is not None
        return self.node


@dataclass(frozen=True)
class Steady:
    """All nodes train in one round: what their workers said, by the letter of their place."""

    at_s: float
    said: dict[str, dict[str, Any]]
    step: int

    @property
    def gen(self) -> int:
        """The round's index."""
        return int(self._any["gen"])

    @property
    def restarts(self) -> int:
        """Of the run, after failures."""
        return int(self._any["restarts"])

    @property
    def changes(self) -> int:
        """Of the membership."""
        return int(self._any["changes"])

    @property
    def pids(self) -> dict[str, int]:
        """The workers."""
        return {letter: int(line["pid"]) for letter, line in self.said.items()}

    @property
    def _any(self) -> dict[str, Any]:
        return next(iter(self.said.values()))


@dataclass
class Job:
    """One run of three nodes with a worker each, and the store that it meets in."""

    run: Run
    nnodes: str = "2:3"
    ranks: str = "star"
    options: tuple[str, ...] = ()
    places: dict[str, Place] = field(default_factory=lambda: {letter: Place(letter) for letter in "abc"})
    history: list[Node] = field(default_factory=list)
    _read: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write what the workers need."""
        shared = self.run.shared
        found = find_spec("sklearn")
        assert found is not None
        assert found.origin
        with gzip.open(Path(found.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
            np.save(shared / "digits.npy", np.loadtxt(file, delimiter=","))
        star = shared / "torch/distributed/star.py"
        star.parent.mkdir(parents=True)
        shutil.copy(SCRIPTS / "star.py", star)
        pace_s = 0.02 if self.ranks == "star" else 0.05
        (shared / "job.json").write_text(json.dumps({"ranks": self.ranks, "checkpoint_steps": 5, "pace_s": pace_s}))
        self.run.script = SCRIPTS / "train.py"

    def bring(self, place: Place) -> None:
        """Start a node where none is."""
        assert place.node is None
        place.started += 1
        options = ("--max-restarts", "1000", "--hang-timeout", f"{HANG_S:g}", *self.options)
        place.node = self.run.node(place.id, self.nnodes, *options)
        self.history.append(place.node)

    def lose(self, place: Place, *, cleanly: bool) -> Node:
        """Note that a node has gone."""
        node, place.node = place.agent, None
        if not cleanly:
            place.lost += 1
        return node

    @property
    def here(self) -> list[Place]:
        """The places that have a node."""
        return [place for place in self.places.values() if place.node is not None]

    # --- what can be seen

    def steady(self, *, steps: int, within_s: float = RECOVERS_S) -> Steady:
        """Wait until all nodes that are there train in one round, and have done so many steps of it."""

        def found() -> Steady | None:
            self.check_agents()
            said = {place.letter: lines[-1] for place in self.here if (lines := place.agent.says())}
            if len(said) < len(self.here) or any(line["world"] != len(said) for line in said.values()):
                return None
            if len({line["gen"] for line in said.values()}) > 1:
                return None
            done = [self.step_of(int(line["pid"])) for line in said.values() if is_alive(int(line["pid"]))]
            if len(done) < len(said) or min(done) < int(next(iter(said.values()))["from"]) + steps:
                return None
            return Steady(at_s=time.monotonic(), said=said, step=min(done))

        return self.comes(found, f"{len(self.here)} nodes in one round, {steps} steps further", within_s)

    def comes(self, condition: Callable[[], Any], what: str, within_s: float = RECOVERS_S) -> Any:
        """Wait for something; fail with all that is known."""
        try:
            return wait_for(condition, within_s=within_s, what=what)
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.told()}") from None

    def check_agents(self) -> None:
        """Fail if a node has ended that should be there."""
        for place in self.here:
            code = place.agent.agent.process.poll()
            if code is not None:
                raise NodeEndedError(f"node {place.agent.name} has ended with {code}\n{self.told()}")

    def step_of(self, pid: int) -> int:
        """Return the step of a worker that has begun."""
        return int((self.run.shared / f"seen-{pid}").read_text().split()[1])

    def last_seen_s(self, pid: int) -> float:
        """Return when a worker last did something; 0: never."""
        path = self.run.shared / f"seen-{pid}"
        return float(path.read_text().split()[0]) if path.exists() else 0.0

    def heard(self) -> dict[str, int]:
        """Return how much each node has said on stderr, by id and how many had it before."""
        return {f"{at}": len(node.agent.err) for at, node in enumerate(self.history)}

    def since(self, heard: dict[str, int]) -> dict[Node, str]:
        """Return what nodes have said since then; what their workers have is left out."""
        return {node: _own_lines(node.agent.err[heard.get(f"{at}", 0) :]) for at, node in enumerate(self.history)}

    def endings(self, heard: dict[str, int]) -> dict[Node, list[str]]:
        """Return why rounds have ended for nodes since then, other than by a failure: `b0 lost`, `1 node joined`."""
        return {
            node: [
                part
                for _, reasons in _OVER.findall(said)
                for part in reasons.split("; ")
                if not _FOLLOWS.fullmatch(part)
            ]
            for node, said in self.since(heard).items()
        }

    def incidents(self) -> dict[Path, dict[str, Any]]:
        """Return the failures that nodes keep in their run directories, by file; those that were read stay."""
        for node in self.history:
            for path in node.agent.runtime.glob("elastic-*/*/incident-[0-9]*.json"):
                with suppress(OSError, json.JSONDecodeError):
                    self._read[path] = json.loads(path.read_text())
        return dict(self._read)

    def told(self) -> str:
        """Return what is needed to understand a failure."""
        parts = []
        for node in self.history:
            code = node.agent.process.poll()
            state = "running" if code is None else f"ended with {code}"
            says = "\n".join(f"  {line}" for line in node.says()[-3:])
            parts.append(
                f"--- {node.name} (pid {node.agent.pid}, {state})\n{node.agent.err[-2500:]}\nits workers:\n{says}"
            )
        return "\n".join(parts)

    # --- the end

    def finish(self) -> int:
        """Let the training end some steps from now; return at which, or later where it is further by then."""
        last = self.steady(steps=1).step + 25
        order = self.run.shared / "new-order"
        order.write_text(str(last))
        order.rename(self.run.shared / "finish")
        return last

    def order(self, pid: int, what: str) -> None:
        """Tell a worker how to fail."""
        order = self.run.shared / "new-order"
        order.write_text(what)
        order.rename(self.run.shared / f"order-{pid}")

    def wake(self) -> None:
        """Let everything run that was stopped, so that it can be ended."""
        server = self.run.server
        if server is not None and getattr(server, "process", None) is not None:
            with suppress(ProcessLookupError, AttributeError):
                server.resume()  # type: ignore[union-attr]  # a cluster has none, and is not used here


def _own_lines(said: str) -> str:
    return "".join(line for line in said.splitlines(keepends=True) if line.startswith("elastic: "))


def send(pid: int, signum: int) -> bool:
    """Send a signal; return whether there was somebody."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGABRT": signal.SIGABRT}
