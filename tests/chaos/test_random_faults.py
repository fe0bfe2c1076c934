"""Random faults, one after another and two at once, on a training of three nodes: it ends as if there had been none.

`CHAOS_SEED` repeats what a seed has drawn; without it the seed of the session counts. What it drew is shown at the end.
"""

import os
import random

import pytest

from chaos.faults.engine import Engine
from chaos.faults.job import Job
from chaos.faults.plan import draw
from chaos.multi_node import Run

SEED = os.environ.get("CHAOS_SEED") or os.environ["TESTS_SEED"]


@pytest.fixture
def faults(elastic, tmp_path, request, monkeypatch, record_property):
    """Return a function that plays random faults, and tells of them in the test's report."""

    def play(server, count, *, ranks="star", pairs=0.0, options=()):
        name = request.node.name
        rng = random.Random(f"{SEED}/{name}/size")
        nnodes = rng.choice(["1:3", "2:3"])
        job = Job(Run(elastic, tmp_path, server=server), nnodes=nnodes, ranks=ranks, options=options)
        engine = Engine(job, draw(f"{SEED}/{name}", count, pairs=pairs))
        target = "chaos" if request.node.get_closest_marker("chaos_full") else "test-system"
        again = f"CHAOS_SEED={SEED} make {target} PYTEST_ARGS=\"-k '{name}'\""
        try:
            engine.play()
        except BaseException:
            print(f"seed {SEED}; again: {again}\n--nnodes {nnodes} on {job.run.backend}\n{engine.table()}")
            raise
        finally:
            job.wake()
        record_property("random faults", f"{count} on {job.run.backend}, seed {SEED}; again: {again}\n{engine.table()}")

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield play
    assert list(scratch.iterdir()) == []


@pytest.mark.timeout(240)
def test_ten_random_faults(faults, redis_server):
    faults(redis_server, 10)


PARTS = {
    "redis-1": ("redis_server", 25, "star", ()),
    "redis-2": ("redis_server", 25, "star", ()),
    "etcd-1": ("etcd_private", 20, "star", ()),
    "etcd-2": ("etcd_private", 20, "star", ()),
    "torch": ("redis_server", 10, "gloo", ("--standby",)),
}
"""A hundred together: the server, how many, how the ranks add, further options of the agents."""


@pytest.mark.chaos_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)
def test_a_hundred_random_faults(faults, request, part):
    server, count, ranks, options = PARTS[part]
    faults(request.getfixturevalue(server), count, ranks=ranks, pairs=0.3, options=options)
