"""The kit for backends under stock torchrun: tests that torch finds the backend, and that two nodes meet through it."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Final

import pytest

from elastic_plugin_kit.conformance.kit import Kit
from elastic_plugin_kit.conformance.store_run import fresh

_LIGHT: Final = """
import json, sys
from importlib.metadata import entry_points
(point,) = [point for point in entry_points(group="torchrun.handlers") if point.name == sys.argv[1]]
before = set(sys.modules)
made = point.load()()
heavy = sorted({name.partition(".")[0] for name in set(sys.modules) - before} & {"torch", "numpy", "elastic_core"})
print(json.dumps({"callable": callable(made), "heavy": heavy}))
"""
_NODE: Final = """
import json, sys, time
import torch.distributed.elastic.rendezvous as rendezvous
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

def say(**what):
    print(json.dumps(what), flush=True)

given = json.loads(sys.argv[1])
limit_s, conf = given.pop("limit_s"), given.pop("conf")
handler = get_rendezvous_handler(rendezvous.RendezvousParameters(**given, **conf))
said = {"backend": handler.get_backend(), "run_id": handler.get_run_id()}
try:
    made = handler.next_rendezvous()
except rendezvous.RendezvousTimeoutError as error:
    say(**said, timeout=str(error))
    sys.exit()
store, rank, world = made if isinstance(made, tuple) else (made.store, made.rank, made.world_size)
store.set(f"kit-{rank}", str(rank))
others = [store.get(f"kit-{other}").decode() for other in range(world)]
say(**said, rank=rank, world=world, others=others, closed=bool(handler.is_closed()))
store.set(f"kit-said-{rank}", str(rank))
if rank == 0:
    for other in range(world):  # each has looked before the end
        store.get(f"kit-said-{other}")
    handler.set_closed()
end = time.monotonic() + limit_s
while not handler.is_closed() and time.monotonic() < end:
    time.sleep(0.05)
say(closed=bool(handler.is_closed()), left=bool(handler.shutdown()))
"""


class TorchrunConformance(Kit):
    """Subclass it, set `backend`, and give the fixture `endpoint`: where the backend's live server is.

    Each node is a process of its own, in which torch finds the handler by its registry, as torchrun does. Skipped
    where torch is not installed.
    """

    backend: ClassVar[str] = ""
    """Its name in the group `torchrun.handlers`."""
    conf: ClassVar[Mapping[str, str]] = {}
    """Its `--rdzv-conf`."""
    late_conf: ClassVar[Mapping[str, str]] = {"join_timeout": "2"}
    """What has it wait no longer than a few seconds for other nodes."""
    limit_s: ClassVar[float] = 120.0
    """How long two nodes may take, torch's import included."""

    @pytest.fixture
    def endpoint(self) -> str:
        """Return where the server is; what a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `endpoint`, as `--rdzv-endpoint` has it")

    def test_a_start_of_torchrun_imports_nothing_heavy(self) -> None:
        """Every start of torchrun loads the entry points of all packages, whatever backend is asked for."""
        done = subprocess.run(
            [sys.executable, "-c", _LIGHT, self.backend],
            capture_output=True, text=True, timeout=self.limit_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"the entry point {self.backend!r} can't be loaded: {_last(done.stderr)}"
        answer = json.loads(done.stdout)
        assert answer["callable"], (
            f"the entry point {self.backend!r} did not return a function; expected one that makes a handler"
        )
        assert not answer["heavy"], (
            f"loading the entry point imports {', '.join(answer['heavy'])}; expected these imports where they are used"
        )

    def test_two_nodes_meet_share_a_store_and_learn_that_the_run_is_closed(self, endpoint: str) -> None:
        """Ranks 0 and 1 of 2, one store for both, and both nodes learn that the run is closed."""
        run_id = fresh("kit")
        with self._nodes(2, endpoint, run_id=run_id, nodes=2, conf=self.conf) as nodes:
            ends = [self._answers(node) for node in nodes]
        met, closed = [end[0] for end in ends], [end[-1] for end in ends]
        assert {(one["backend"], one["run_id"]) for one in met} == {(self.backend, run_id)}, met
        assert {one["rank"] for one in met} == {0, 1}, f"two nodes got other ranks than 0 and 1: {met}"
        assert {one["world"] for one in met} == {2}, f"two nodes got another world size than 2: {met}"
        assert all(one["others"] == ["0", "1"] for one in met), (
            f"the nodes did not read each other's keys; expected one store: {met}"
        )
        assert not any(one["closed"] for one in met), "is_closed returned True before set_closed; expected False"
        assert all(one["closed"] for one in closed), (
            "is_closed returned False after set_closed of the other node; expected True"
        )

    def test_a_node_that_waits_in_vain_is_told_so_in_time(self, endpoint: str) -> None:
        """By torch's `RendezvousTimeoutError`, which torchrun knows."""
        conf = {**self.conf, **self.late_conf}
        with self._nodes(1, endpoint, run_id=fresh("kit"), nodes=2, conf=conf) as (node,):
            (answer,) = self._answers(node)
        assert answer.get("timeout"), (
            f"next_rendezvous of one node of two returned {answer}; expected RendezvousTimeoutError"
        )

    @contextmanager
    def _nodes(
        self, count: int, endpoint: str, *, run_id: str, nodes: int, conf: Mapping[str, str]
    ) -> Iterator[Sequence["subprocess.Popen[str]"]]:
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed")
        given = {"backend": self.backend, "endpoint": endpoint, "run_id": run_id, "min_nodes": nodes}
        line = json.dumps({**given, "max_nodes": nodes, "conf": dict(conf), "limit_s": self.limit_s / 4})
        with ExitStack() as ends:
            started = []
            for _ in range(count):
                node = subprocess.Popen(
                    [sys.executable, "-c", _NODE, line],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                )  # fmt: skip
                ends.enter_context(node)
                ends.callback(node.kill)
                started.append(node)
            yield started

    def _answers(self, node: "subprocess.Popen[str]") -> "list[dict[str, object]]":
        try:
            out, err = node.communicate(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"a node has not ended within {self.limit_s:g} s")
        assert node.returncode == 0, f"a node ended with {node.returncode}: {_last(err)}"
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
