"""Many rounds of two kept workers: memory, descriptors and threads don't grow."""

import os
import re

import pytest

from fake_agent import WAIT_S, marked

PROGRAM = """
import os
import torch
import torch.distributed as dist
import elastic_warm as warm

def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

@warm.rounds
def train():
    dist.init_process_group("gloo")
    other = dist.new_group([0, 1])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        model(torch.ones(16, 64)).sum().backward()
        optimizer.step()
    dist.all_reduce(torch.ones(10), group=other)
    warm.should_stop()
    used = resident_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    print("used", *used, flush=True)
    if os.environ["LAST"] == "no":
        dist.barrier() if dist.get_rank() else dist.recv(torch.ones(1), src=1)

train()
"""


def test_fifty_rounds_use_no_more_than_a_few(agent):
    check(agent, 50)


@pytest.mark.chaos_full
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.environ.get("CHAOS_FULL") != "1", reason="minutes; only with CHAOS_FULL=1")
def test_two_hundred_rounds_use_no_more_than_a_few(agent):
    check(agent, 200)


def check(agent, rounds):
    """Run so many rounds, each of which is left while both workers are blocked; ranks change from round to round."""
    workers = agent.begin(PROGRAM, 2, LAST="no")
    for number in range(rounds):
        for worker in workers:
            marked(worker, number, "used")
        for worker in workers:
            agent.leave(worker, number)
        for worker in workers:
            worker.expect("left", round=number)
        agent.new_port()
        for worker in workers:
            rank = (worker.local_rank + number) % 2
            agent.place(worker, number + 1, rank, 2, LAST="yes" if number + 1 == rounds else "no")
    for worker in workers:
        assert worker.process.wait(WAIT_S) == 0
        used = [list(map(int, re.findall(r"\d+", worker.lines(number)[0]))) for number in range(rounds + 1)]
        print(used[0], used[5], used[rounds // 2], used[-1])
        memory, descriptors, threads = zip(*used, strict=True)
        assert max(descriptors[-5:]) <= max(descriptors[:10])
        assert max(threads[-5:]) <= max(threads[:10])
        assert max(memory[-5:]) - memory[rounds // 5] < 4096 + 20 * rounds
