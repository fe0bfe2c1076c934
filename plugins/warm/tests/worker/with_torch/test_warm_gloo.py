"""Kept workers with groups of gloo: left while they are blocked, and with a new group in the next round."""

import os
import signal

from fake_agent import marked

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import elastic_warm as warm
from elastic_warm import gloo_loops

@warm.rounds
def train():
    dist.init_process_group("gloo")
    rank, number = dist.get_rank(), int(os.environ["ELASTIC_ROUND"])
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", int(total), "pid", os.getpid(), "loops", len(gloo_loops._loops()), flush=True)
    print("gradients", torch.is_grad_enabled(), flush=True)
    warm.should_stop()
    if number == 0:
        if rank == 1:
            print("idle", flush=True)
            time.sleep(600)
        torch.set_grad_enabled(False)  # as if the end of a block of no_grad was cut
        print("blocks", flush=True)
        dist.all_reduce(total)
    dist.destroy_process_group()

train()
print("end", flush=True)
"""


def test_a_survivor_leaves_and_builds_a_group_with_a_new_process(agent):
    zero, one = agent.begin(PROGRAM, 2)
    marked(zero, 0, "blocks")
    marked(one, 0, "idle")
    os.kill(one.pid, signal.SIGKILL)
    agent.leave(zero, 0)
    left = zero.expect("left", round=0)
    print(left, zero.seen)
    agent.new_port()
    agent.start(PROGRAM, 1, 2, [1])
    agent.place(zero, 1, 0, 2)
    zero.expect("taken", round=1)
    zero.expect("entered", round=1)
    zero.expect("returned", round=1)
    assert zero.process.wait(30) == 0
    assert agent.workers[1].process.wait(30) == 0
    assert zero.lines(0) == [f"sum 2 pid {zero.pid} loops 1", "gradients True", "blocks"]
    assert zero.lines(1) == [f"sum 2 pid {zero.pid} loops 1", "gradients True", "end"]
