"""Lightning, transformers and accelerate themselves: each script of the page, on nodes that join, fail and leave."""

import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from support import wait_for

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[4] / "docs" / "howto" / "stacks.md"
FILE = re.compile(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", re.M | re.S)
SCRIPTS = dict(FILE.findall(PAGE.read_text()))
SAMPLES, BATCH, SAVE_EVERY = 40, 8, 10
EPOCH = SAMPLES // BATCH

WITHIN = """
import json, os, pathlib, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

rank, shared = os.environ["RANK"], pathlib.Path(os.environ["TEST_SHARED"])
print(json.dumps({"gen": int(os.environ["ELASTIC_ROUND"]), "world": int(os.environ["WORLD_SIZE"])}), flush=True)

def crash(*_):
    order = shared / f"crash-{rank}"
    if order.exists():
        order.unlink()
        raise RuntimeError("a crash of the test's")

register_optimizer_step_post_hook(crash)
os.chdir(shared)
sys.argv = [SCRIPT, "100000"]
runpy.run_path(SCRIPT, run_name="__main__")
"""


class Training:
    """What the nodes' workers have trained, by rounds."""

    def __init__(self, *nodes):
        self.nodes = nodes

    def rounds(self):
        """Return the world size of each round, and for each step of it the samples of each rank that has begun it."""
        worlds, steps = {}, defaultdict(lambda: defaultdict(dict))
        for node in self.nodes:
            gen = None
            for line in node.says():
                if "gen" in line:
                    gen = line["gen"]
                    worlds[gen] = line["world"]
                else:
                    ranks = steps[gen][line["step"]]
                    assert line["rank"] not in ranks, f"round {gen}: twice {line}"
                    ranks[line["rank"]] = line["samples"]
        return worlds, steps

    def goes_on(self, *, world, after=-1, count=3, beyond=0):
        """Wait for a round after another one with so many ranks, and until it has trained so many steps; return it."""

        def found():
            worlds, steps = self.rounds()
            fits = [gen for gen, size in worlds.items() if gen > after and size == world]
            done = [gen for gen in fits if len(steps[gen]) > count and max(steps[gen]) > beyond]
            return done[-1:] and [done[-1]]

        try:
            return wait_for(found, within_s=120, what=f"a round of {world} after {after}")[0]
        except AssertionError as err:
            raise AssertionError(
                f"{err}\n{self.rounds()}\n" + "\n".join(node.agent.err for node in self.nodes)
            ) from None


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_no_step_is_lost_or_done_twice_but_after_a_crash(redis_run, name):
    run = redis_run
    script = run.shared / name
    script.write_text(SCRIPTS[name])
    run.script.write_text(f"SCRIPT = {str(script)!r}\n{WITHIN}")
    options = ("1:2", "--omp-threads", "1", "--max-restarts", "1", "--save-timeout", "120")

    a = run.node("a", *options)
    training = Training(a)
    alone = training.goes_on(world=1)
    b = run.node("b", *options)
    training.nodes = (a, b)
    joined = training.goes_on(world=2, after=alone)
    training.goes_on(world=2, after=alone, beyond=max(training.rounds()[1][joined]) + SAVE_EVERY)
    (run.shared / "crash-1").touch()
    restarted = training.goes_on(world=2, after=joined)
    b.agent.signal(signal.SIGTERM)
    assert b.agent.wait(120) == 143, b.agent.err
    left = training.goes_on(world=1, after=restarted)
    a.agent.signal(signal.SIGTERM)
    assert a.agent.wait(120) == 143, a.agent.err

    worlds, steps = training.rounds()
    assert list(worlds) == [alone, joined, restarted, left] == sorted(steps)
    lost = max(steps[joined])
    if len(steps[joined][lost]) < 2:  # begun by the rank that has not crashed
        del steps[joined][lost]
        lost -= 1
    for gen, ranks_of in steps.items():
        assert sorted(ranks_of) == list(range(min(ranks_of), max(ranks_of) + 1)), f"round {gen}: not one after another"
        assert all(len(ranks) == worlds[gen] for ranks in ranks_of.values()), f"round {gen}: some ranks alone"
    for before, after in ((alone, joined), (restarted, left)):
        assert min(steps[after]) == max(steps[before]) + 1
    again = min(steps[restarted])
    assert again % SAVE_EVERY == 0 or again == min(steps[joined])
    assert 0 <= lost + 1 - again <= SAVE_EVERY

    kept = {step: ranks for gen in sorted(steps) for step, ranks in steps[gen].items()}
    assert sorted(kept) == list(range(len(kept)))
    for first in range(0, len(kept) - EPOCH + 1, EPOCH):
        seen = [sample for step in range(first, first + EPOCH) for part in kept[step].values() for sample in part]
        assert sorted(seen) == list(range(SAMPLES)), f"the epoch that begins at step {first}"
