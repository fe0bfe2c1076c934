"""How long an old worker stands still when a node joins: its last step in the old round until its first in the new one.

Two nodes with a worker each, over Redis. The worker is kept, and the new one is forked (`--standby`).
"""

from collections.abc import Mapping
from functools import partial

from benchmarks import standby
from benchmarks.bench import Bench
from benchmarks.measure import Figure, Take
from benchmarks.nodes import Command, Nodes, ours
from benchmarks.stats import Budget
from benchmarks.warm import WARM, need_warm

NAME = "warm-join"
FIGURES = {NAME: Figure("a node joins: how long a kept worker does not train", "ms", {WARM: Budget(at_most=100)})}

WORKER = """
import os, sys, time
import torch
import torch.distributed as dist
import elastic_warm as warm

state = warm.State(weights=torch.zeros(1000), step=0)
pipe = os.open(sys.argv[1], os.O_WRONLY)
last_ns = 0

def speak(word, at_ns):
    about = os.environ["BENCH_NODE"], os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), at_ns
    os.write(pipe, " ".join(map(str, (word, *about))).encode() + b"\\n")

@warm.rounds
def train(state):
    global last_ns
    dist.init_process_group("gloo")
    state.sync()
    total, began = torch.ones(1), False
    while True:
        dist.all_reduce(total)
        before_ns, last_ns = last_ns, time.monotonic_ns()
        if not began:
            speak("last", before_ns)
            speak("first", last_ns)
            began = True
        total.fill_(1)
        state.step += 1
        state.commit()
        time.sleep(0.002)

train(state)
"""


def takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of the measure."""
    need_warm(bench)
    command = ours("redis", bench.redis().endpoint)
    return {WARM: partial(join, bench, lambda node, run: [*command(node, run), "--standby"])}


def join(bench: Bench, command: Command) -> float:
    """Return the ms in which the worker of the first node completed no step."""
    with Nodes(bench.folder, command, nnodes="1:4", nproc=1, script=WORKER) as run:
        run.start("a")
        (old,) = run.firsts(1, world_size=1)
        standby.settle()
        began_ns = run.start("b")
        new = next(said for said in run.firsts(2, world_size=2, after_ns=began_ns) if said.node == "a")
        assert new.pid == old.pid, "the worker was not kept"
        (last,) = run.lasts("a", after_ns=old.at_ns)
        return (new.at_ns - last.at_ns) / 1e6
