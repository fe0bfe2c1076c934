"""The digits over three nodes, with every kind of stop in one run: no planned one costs a step, no image is lost."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from chaos.multi_node import LEASE_S
from patience import patience
from redis_servers import redis_server  # noqa: F401
from support import wait_for

SCRIPT = Path(__file__).resolve().parents[4] / "examples" / "planned_stops" / "train.py"
IMAGES, SAVE_EVERY = 1437, 10
BEGIN = re.compile(r"^training from step (\d+): (\d+) ranks(?:, after: (.*))?$", re.MULTILINE)
ACCURACY = re.compile(r"^held-out accuracy: ([\d.]+)%$", re.MULTILINE)


class Rounds:
    """What the rounds of one run have trained on, from the lines of node a, which has rank 0 in all of them."""

    def __init__(self, out, seen):
        self.begins = [(int(step), int(world)) for step, world, _ in BEGIN.findall(out)]
        self.steps = []
        for index, (_, world) in enumerate(self.begins):
            lines = [(seen / f"{index}-{rank}").read_text().splitlines() for rank in range(world)]
            self.steps.append([[json.loads(line) for line in of_rank if line.endswith("]")] for of_rank in lines])

    def lost(self, index):
        """Return how many steps of a round the next one has not gone on from."""
        done = max(step for of_rank in self.steps[index] for _, step, _ in of_rank) + 1
        return done - self.begins[index + 1][0]

    def images_by_epoch(self):
        """Return how often each image was in each epoch, in what counts: what a checkpoint has taken into the next."""
        found = {}
        for index, of_round in enumerate(self.steps):
            end = self.begins[index + 1][0] if index + 1 < len(self.begins) else float("inf")
            for of_rank in of_round:
                for epoch, step, images in of_rank:
                    if step < end:
                        found.setdefault(epoch, Counter()).update(images)
        return found


@pytest.mark.timeout(600)
def test_planned_stops_cost_no_step_and_each_image_comes_once_an_epoch(elastic, torch_python, redis_server, tmp_path):  # noqa: F811
    folder = tmp_path / "job"
    crash, end, seen = tmp_path / "crash", tmp_path / "end", tmp_path / "seen"

    def node(name):
        # More epochs than it takes to learn enough: how many more come before `end` goes with the machine.
        return elastic(
            *("--nnodes", "1:3", "--nproc-per-node", "1", "--omp-threads", "1", "--max-restarts", "3"),
            *("--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", f"digits-{tmp_path}"),
            *("--node-id", name, "--rdzv-conf", f"lease_ttl={LEASE_S:g},last_call_timeout=1"),
            *("--preemption-signal", "USR1", "--restart-backoff", "0"),
            *(str(SCRIPT), "--folder", str(folder), "--epochs", "12", "--save-every", str(SAVE_EVERY)),
            *("--step-s", "0.02", "--crash-when", str(crash), "--until", str(end), "--seen", str(seen)),
        )

    def begins():
        return BEGIN.findall(a.out)

    def round_begins(number, world, *agents):
        def trains():
            new = begins()
            trained = seen / f"{number - 1}-0"
            return len(new) == number and int(new[-1][1]) == world and trained.exists() and trained.stat().st_size

        try:
            wait_for(trains, within_s=60, what=f"round {number - 1} with {world} ranks")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{a.out}\n" + "\n".join(agent.err for agent in (a, *agents))) from None

    a = node("a")
    round_begins(1, 1)
    b = node("b")
    round_begins(2, 2, b)
    c = node("c")
    round_begins(3, 3, b, c)
    c.signal(signal.SIGTERM)
    assert c.wait() == 143
    round_begins(4, 2, b)
    crash.touch()
    round_begins(5, 2, b)
    again = node("d")
    round_begins(6, 3, b, again)
    b.signal(signal.SIGUSR1)
    assert b.wait() == 128 + signal.SIGUSR1
    round_begins(7, 2, again)
    again.signal(signal.SIGKILL)
    round_begins(8, 1)
    end.touch()
    assert a.wait() == 0, a.err

    rounds = Rounds(a.out, seen)
    planned, others = (0, 1, 2, 4, 5), (3, 6)
    assert [rounds.lost(index) for index in planned] == [0] * len(planned), a.out
    assert all(0 <= rounds.lost(index) <= 2 * SAVE_EVERY for index in others), (
        a.out
    )  # of two saves one may be unwritten
    epochs = rounds.images_by_epoch()
    assert sorted(epochs) == list(range(len(epochs)))
    assert all(images == Counter(range(IMAGES)) for images in epochs.values())
    (accuracy,) = map(float, ACCURACY.findall(a.out))
    assert abs(accuracy - undisturbed(torch_python, len(epochs), tmp_path)) < 2


def test_too_little_learned_is_said(elastic, tmp_path):
    agent = elastic("--omp-threads", "1", SCRIPT, "--folder", tmp_path, "--epochs", "0")
    assert agent.wait(120) == 1
    assert "below --min-accuracy 95.0%" in agent.err


def undisturbed(python, epochs, tmp_path):
    """Return the accuracy after so many epochs in which nothing happens."""
    words = ["--folder", tmp_path / "undisturbed", "--epochs", str(epochs), "--min-accuracy", "0"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, SCRIPT, *words], check=True, capture_output=True, text=True, timeout=patience(120), env=env
    )
    return float(ACCURACY.findall(done.stdout)[0])
